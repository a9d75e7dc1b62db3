"""Inlay under other engines: their own interfaces, served by Inlay's store and transfer engine.

`inlay.connect.vllm` is a KV connector for vLLM. Nothing here is imported before it is used.
"""
