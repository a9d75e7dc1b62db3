"""The compiled core. Use it through the packages, e.g. `inlay.kernels`; the doors carry the docs.

Submodules are written as classes here; tests compare names and parameters with the extension.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

class kernels:
    class LinearWeight:
        def __init__(
            self, out_features: int, in_features: int, format: str = "float32"
        ) -> None: ...
        def set_rows(self, first: int, rows_NK: Any) -> None: ...
        def set_rows_quantized(self, first: int, q_NK: Any, scales_NG: Any) -> None: ...
        def dequantize(self) -> npt.NDArray[np.float32]: ...
        def panels(self) -> npt.NDArray[np.uint8]: ...
        @property
        def shape(self) -> tuple[int, int]: ...
        @property
        def format(self) -> str: ...
        @property
        def nbytes(self) -> int: ...

    class ExpertWeights:
        def __init__(
            self,
            num_experts: int,
            hidden: int,
            intermediate: int,
            format: str = "float32",
            bias: bool = False,
        ) -> None: ...
        def set(
            self,
            expert: int,
            gate_FM: Any,
            up_FM: Any,
            down_MF: Any,
            gate_bias_F: Any = None,
            up_bias_F: Any = None,
            down_bias_M: Any = None,
        ) -> None: ...
        def dequantize(
            self, expert: int
        ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float32]]: ...
        def panels(self, expert: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]: ...
        def biases(self) -> npt.NDArray[np.float32] | None: ...
        @property
        def num_experts(self) -> int: ...
        @property
        def hidden(self) -> int: ...
        @property
        def intermediate(self) -> int: ...
        @property
        def format(self) -> str: ...
        @property
        def nbytes(self) -> int: ...

    class KvGeometry:
        def __init__(
            self, layers: int, page_tokens: int, kv_heads: int, head_dim: int, dtype: str
        ) -> None: ...
        @property
        def layers(self) -> int: ...
        @property
        def page_tokens(self) -> int: ...
        @property
        def kv_heads(self) -> int: ...
        @property
        def head_dim(self) -> int: ...
        @property
        def dtype(self) -> str: ...
        @property
        def page_bytes(self) -> int: ...

    class MemoryProbe:
        def __init__(self, threads: int | None = None) -> None: ...
        def read_gbs(self) -> float: ...
        @property
        def nbytes(self) -> int: ...

    class Pending:
        def wait(self, timeout_s: float | None = None) -> None: ...
        @property
        def done(self) -> bool: ...

    @staticmethod
    def quantize(
        weight_NK: Any, format: str
    ) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]: ...
    @staticmethod
    def pack_linear(weight_NK: Any, format: str | None = None) -> LinearWeight: ...
    @staticmethod
    def map_linear(
        out_features: int, in_features: int, format: str, panels: Any
    ) -> LinearWeight: ...
    @staticmethod
    def map_experts(
        num_experts: int,
        hidden: int,
        intermediate: int,
        format: str,
        gate_up: Any,
        down: Any,
        biases: Any = None,
    ) -> ExpertWeights: ...
    @staticmethod
    def linear(
        x_TK: Any, weight: LinearWeight, out_TN: Any, bias_N: Any = None, accumulate: bool = False
    ) -> None: ...
    @staticmethod
    def moe(
        x_TM: Any,
        experts: ExpertWeights,
        expert_ids_TK: Any,
        routing_TK: Any,
        out_TM: Any,
        accumulate: bool = False,
        expert_mask_E: Any = None,
        alpha: float = 1.0,
        limit: float = ...,
        up_offset: float = 0.0,
        shared: ExpertWeights | None = None,
    ) -> None: ...
    @staticmethod
    def submit_moe(
        x_TM: Any,
        experts: ExpertWeights,
        expert_ids_TK: Any,
        routing_TK: Any,
        out_TM: Any,
        accumulate: bool = False,
        expert_mask_E: Any = None,
        alpha: float = 1.0,
        limit: float = ...,
        up_offset: float = 0.0,
        shared: ExpertWeights | None = None,
    ) -> Pending: ...
    @staticmethod
    def router_topk(
        logits_TE: Any, top_k: int, normalize: bool, out_ids_TK: Any, out_weights_TK: Any
    ) -> None: ...
    @staticmethod
    def rms_norm(x_TM: Any, weight_M: Any, eps: float, out_TM: Any) -> None: ...
    @staticmethod
    def silu_mul(gate_up_T2F: Any, out_TF: Any) -> None: ...
    @staticmethod
    def rope_and_store(
        qkv_TX: Any,
        positions_T: Any,
        cos_PR: Any,
        sin_PR: Any,
        kv_pool: Any,
        geometry: KvGeometry,
        layer: int,
        slots_T: Any,
        q_norm_D: Any = None,
        k_norm_D: Any = None,
        norm_eps: float = 1e-6,
    ) -> None: ...
    @staticmethod
    def paged_attention(
        q_THD: Any,
        kv_pool: Any,
        geometry: KvGeometry,
        layer: int,
        page_table_BP: Any,
        query_starts_B1: Any,
        context_lens_B: Any,
        scale: float,
        out_THD: Any,
        sliding_window: int = 0,
        sinks_H: Any = None,
    ) -> None: ...
    @staticmethod
    def isa_variants() -> list[tuple[str, str, str, str, str]]: ...
    @staticmethod
    def formats() -> list[tuple[str, int, int, int, int]]: ...
    @staticmethod
    def selected_isa() -> str: ...
    @staticmethod
    def request_isa(name: str) -> None: ...
    @staticmethod
    def cpu_features() -> list[str]: ...
    @staticmethod
    def memory_probe_bytes(threads: int) -> int: ...
    @staticmethod
    def measure_peak(kind: str, threads: int | None = None) -> float: ...
    @staticmethod
    def usable_processors() -> int: ...
    @staticmethod
    def topology() -> list[list[int]]: ...
    @staticmethod
    def set_topology(nodes: list[list[int]] | None) -> None: ...
    @staticmethod
    def num_threads() -> int: ...
    @staticmethod
    def set_num_threads(num_threads: int) -> None: ...
    @staticmethod
    def spin_us() -> int: ...
    @staticmethod
    def set_spin_us(spin_us: int) -> None: ...

class block_hash:
    @staticmethod
    def block_hash_chain(
        namespace_key: bytes, parent: bytes, token_ids: Any, block_tokens: int
    ) -> bytes: ...
