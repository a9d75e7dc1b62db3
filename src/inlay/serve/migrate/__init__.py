"""`inlay migrate`: from the launch commands of other servers to the line of `inlay serve`.

Each program is a table of rows (`sglang`, `ktransformers`, `llama_cpp`, `vllm`); reading a command
(`shell`, `flags`) and making the line (`line`) know no program. Nothing here loads a model.
"""
