"""A KV connector for vLLM: KV shared through Inlay's store, and prompts computed elsewhere.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "InlayConnector",
        "kv_connector_module_path": "inlay.connect.vllm", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"store": "127.0.0.1:7300"}}'

The class needs vLLM, the other modules do not. docs/guides/vllm.md has the versions that it was
run with.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "InlayConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from inlay.connect.vllm.connector import InlayConnector

    return InlayConnector
