"""A KV connector for vLLM: KV shared through Inlay's store, and prompts computed elsewhere.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "InlayConnector",
        "kv_connector_module_path": "inlay.connect.vllm", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"store": "127.0.0.1:7300"}}'

Importing it needs vLLM; see docs/guides/vllm.md for the versions that it was run with.
"""

from inlay.connect.vllm.connector import InlayConnector

__all__ = ["InlayConnector"]
