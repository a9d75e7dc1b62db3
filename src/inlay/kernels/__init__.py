"""CPU kernels: typed doors to the compiled core, chosen for the processor at run time.

Every function here works on NumPy arrays or torch CPU tensors in place and gives a token the same
bits whatever else is in the call, however the work is chunked, and with any number of threads.
Without the compiled extension (or with `INLAY_NATIVE=0`) the same calls run the plain NumPy forms
of `inlay.kernels.reference`. This package knows no models, caches or schedulers.

Pass NumPy arrays where calls are frequent: an array costs about 0.1 us per argument, a torch
tensor 1 to 2 us (DLPack). `tensor.numpy()` shares memory; keep such views beside the tensors.

Shape letters in names: T tokens, B sequences, N output columns, K inner size or top-k, M model
dim, F expert width, E experts, H heads, D head dim, P positions or pages, R half the rotary dim
or the rank of a LoRA.
"""

from inlay.core.weight_format import FORMATS
from inlay.kernels._adapters import ExpertAdapter, LinearAdapter, add_adapters
from inlay.kernels._arrays import Array
from inlay.kernels._attention import KvGeometry, kv_geometry, paged_attention, rope_and_store
from inlay.kernels._block_hash import block_hash_chain
from inlay.kernels._hand_over import HandOver
from inlay.kernels._linear import LinearWeight, head_rows, linear, linear_heads, pack_linear
from inlay.kernels._moe import (
    SILU,
    Activation,
    ExpertWeights,
    moe,
    pack_experts,
    router_topk,
    submit_moe,
)
from inlay.kernels._moe_training import (
    ExpertLora,
    MoeGradients,
    SavedMoe,
    moe_backward,
    moe_saving,
)
from inlay.kernels._packed_file import PackedFile
from inlay.kernels._packed_layout import PackedLayout, expert_bytes, linear_bytes
from inlay.kernels._pending import Pending
from inlay.kernels._quantize import quantize
from inlay.kernels._rows import gelu_mul, rms_norm, silu_mul
from inlay.kernels._stream_words import StreamWords
from inlay.kernels._token_ids import parse_token_ids
from inlay.kernels.isa import (
    available_isas,
    compiled_isas,
    cpu_features,
    force_isa,
    native_problem,
    selected_isa,
)
from inlay.kernels.limits import MemoryProbe, measure_peak, measure_read_gbs
from inlay.kernels.threads import (
    num_threads,
    set_num_threads,
    set_spin_us,
    set_topology,
    spin_us,
    topology,
    usable_processors,
)

__all__ = [
    "FORMATS",
    "SILU",
    "Activation",
    "Array",
    "ExpertAdapter",
    "ExpertLora",
    "ExpertWeights",
    "HandOver",
    "KvGeometry",
    "LinearAdapter",
    "LinearWeight",
    "MemoryProbe",
    "MoeGradients",
    "PackedFile",
    "PackedLayout",
    "Pending",
    "SavedMoe",
    "StreamWords",
    "add_adapters",
    "available_isas",
    "block_hash_chain",
    "compiled_isas",
    "cpu_features",
    "expert_bytes",
    "force_isa",
    "gelu_mul",
    "head_rows",
    "kv_geometry",
    "linear",
    "linear_bytes",
    "linear_heads",
    "measure_peak",
    "measure_read_gbs",
    "moe",
    "moe_backward",
    "moe_saving",
    "native_problem",
    "num_threads",
    "pack_experts",
    "pack_linear",
    "paged_attention",
    "parse_token_ids",
    "quantize",
    "rms_norm",
    "rope_and_store",
    "router_topk",
    "selected_isa",
    "set_num_threads",
    "set_spin_us",
    "set_topology",
    "silu_mul",
    "spin_us",
    "submit_moe",
    "topology",
    "usable_processors",
]
