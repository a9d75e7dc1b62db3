"""`inlay plan`: what a model will do on a machine, before anything of it is downloaded.

`model` finds its config.json, `machine` the hardware; `make` puts both through
`inlay.core.offload` and `inlay.core.roofline`, `changes` tries what would help, `report` prints.
"""
