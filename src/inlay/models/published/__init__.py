"""Quantised matrices of checkpoints: what their makers' tensors are called, and what they mean.

`files.QuantizedFiles` reads them as `rows.QuantizedRows`, whose codes kernels take as they are, or
as floats where kernels have no such codes. `layouts` is the table of methods; `integers`,
`small_floats` and `bitsandbytes` have what is in it.
"""
