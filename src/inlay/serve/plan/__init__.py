"""`inlay plan`: what a model will do on a machine, before anything of it is downloaded.

`model` finds its config.json, `machine` the hardware, `placing` says what lies where; `make` puts
them through `inlay.core.roofline`, `changes` tries what would help, `report` prints, `record` makes
JSON.
"""
