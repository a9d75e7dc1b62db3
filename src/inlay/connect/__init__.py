"""Inlay under other engines: their own interfaces, served by Inlay's store and transfer engine.

Each part speaks one foreign interface, with its names, return codes and environment variables,
which nothing else in Inlay knows: `inlay.connect.vllm` is a KV connector of vLLM,
`inlay.connect.mooncake` Mooncake's Python API. Nothing here is imported before it is used.
"""
