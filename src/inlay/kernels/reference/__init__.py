"""Plain NumPy form of every kernel: what the compiled ones are tested against.

Same names, arguments, results and errors as `inlay._native.kernels`; serves in its place where the
extension is missing. Written to be read, not to be fast.
"""

from inlay.kernels.reference.adapters import ExpertAdapter, LinearAdapter, add_adapters
from inlay.kernels.reference.attention import (
    MAX_GROUP,
    KvGeometry,
    paged_attention,
    rope_and_store,
)
from inlay.kernels.reference.block_hash import block_hash_chain
from inlay.kernels.reference.experts import (
    ExpertWeights,
    map_experts,
    moe,
    submit_moe,
)
from inlay.kernels.reference.formats import quantize
from inlay.kernels.reference.hand_over import HandOver, split_experts
from inlay.kernels.reference.linear import (
    LinearWeight,
    linear,
    linear_heads,
    map_linear,
    pack_linear,
)
from inlay.kernels.reference.moe_backward import SavedMoe, moe_backward, moe_saving
from inlay.kernels.reference.pending import Pending
from inlay.kernels.reference.router import router_topk
from inlay.kernels.reference.rows import gelu_mul, rms_norm, silu_mul
from inlay.kernels.reference.token_ids import parse_token_ids

__all__ = [
    "MAX_GROUP",
    "ExpertAdapter",
    "ExpertWeights",
    "HandOver",
    "KvGeometry",
    "LinearAdapter",
    "LinearWeight",
    "Pending",
    "SavedMoe",
    "add_adapters",
    "block_hash_chain",
    "gelu_mul",
    "linear",
    "linear_heads",
    "map_experts",
    "map_linear",
    "moe",
    "moe_backward",
    "moe_saving",
    "pack_linear",
    "paged_attention",
    "parse_token_ids",
    "quantize",
    "rms_norm",
    "rope_and_store",
    "router_topk",
    "silu_mul",
    "split_experts",
    "submit_moe",
]
