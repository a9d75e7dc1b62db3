"""How makers say in config.json what their weights are: `quantization_config`, by its method.

`read.read_quantization` is the door. A method (`integers`, `small_floats`, `compressed`,
`bitsandbytes`) says of each module by its name in which form its matrix is; `modules` knows the
names, and `options` refuses what nobody has looked at.
"""
