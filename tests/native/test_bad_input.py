"""Wrong arguments raise an `ArgumentError` that names them, from kernels and references alike."""

from collections.abc import Callable
from typing import Any

import hypothesis.extra.numpy as npst
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from inlay import kernels
from inlay.core.errors import ArgumentError, WaitTimeoutError
from inlay.kernels import _backend, reference
from tests.support.exported import Exported


def f(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def misaligned(rows: int, cols: int) -> np.ndarray:
    memory = np.zeros(rows * cols * 4 + 1, np.uint8)
    return memory[1:].view(np.float32).reshape(rows, cols)


def linear(k: Any, **changed: Any) -> None:
    given = {"x_TK": f(2, 8), "out_TN": f(2, 4), "bias_N": None, **changed}
    k.linear(given["x_TK"], k.pack_linear(f(4, 8)), given["out_TN"], bias_N=given["bias_N"])


def linear_heads(k: Any, **changed: Any) -> None:
    given = {"x_THK": f(2, 3, 8), "weight": 192, "out_THN": f(2, 3, 4), **changed}
    weight = k.LinearWeight(given["weight"], 8, "float32")
    k.linear_heads(given["x_THK"], weight, given["out_THN"])


def latents(k: Any, **changed: Any) -> None:
    given = {"q_THD": f(1, 2, 8), "out_THD": f(1, 2, 6), "kv_pool": f(3, 4 * 8), **changed}
    k.paged_attention(
        given["q_THD"], given["kv_pool"], k.KvGeometry(1, 4, 1, 8, "float32", True), 0,
        np.zeros((1, 1), np.int32), np.array([0, 1], np.int32), np.array([3], np.int32), 1.0,
        given["out_THD"],
    )  # fmt: skip


def moe(k: Any, **changed: Any) -> None:
    given = {
        "x_TM": f(2, 8),
        "expert_ids_TK": np.zeros((2, 2), np.int32),
        "routing_TK": f(2, 2),
        "out_TM": f(2, 8),
        "expert_mask_E": None,
        **changed,
    }
    experts = k.ExpertWeights(3, 8, 4, "float32")
    k.moe(
        given["x_TM"], experts, given["expert_ids_TK"], given["routing_TK"], given["out_TM"],
        expert_mask_E=given["expert_mask_E"],
    )  # fmt: skip


LORA_SHAPES = ((3, 2, 8), (3, 4, 2), (3, 2, 8), (3, 4, 2), (3, 2, 4), (3, 8, 2))
LORA_NAMES = ("gate_a_ERM", "gate_b_EFR", "up_a_ERM", "up_b_EFR", "down_a_ERF", "down_b_EMR")


def training(k: Any, **changed: Any) -> None:
    """Both passes, of the compiled core or of the references, whose names and order are the same.

    `lora.up_b_EFR=...` changes one of the six matrices.
    """
    given = {
        "x_TM": f(2, 8),
        "expert_ids_TK": np.zeros((2, 2), np.int32),
        "routing_TK": f(2, 2),
        "out_TM": f(2, 8),
        "lora": True,
        "lora.scale": 1.0,
        "dropout": 0.0,
        "grad_out_TM": f(2, 8),
        "grad_x_TM": f(2, 8),
        "grad_routing_TK": f(2, 2),
        "grad_lora": True,
        **changed,
    }
    ops = _backend.ops if isinstance(k, Native) else reference

    def six(name: str) -> Any:
        if given[name] is not True:
            return given[name]
        pairs = zip(LORA_NAMES, LORA_SHAPES, strict=True)
        return tuple(given.get(f"{name}.{matrix}", f(*shape)) for matrix, shape in pairs)

    saved = ops.moe_saving(
        given["x_TM"], ops.ExpertWeights(3, 8, 4, "float32"), given["expert_ids_TK"],
        given["routing_TK"], given["out_TM"], six("lora"), given["lora.scale"], given["dropout"],
    )  # fmt: skip
    ops.moe_backward(
        saved, given["grad_out_TM"], given["grad_x_TM"], given["grad_routing_TK"],
        six("grad_lora"),
    )  # fmt: skip


def hand_over(k: Any, **changed: Any) -> None:
    given = {
        "x_2TM": f(2, 3, 8),
        "ids_2TK": np.zeros((2, 3, 2), np.int32),
        "routing_2TK": f(2, 3, 2),
        "out_2TM": f(2, 3, 8),
        "words_L2": np.zeros((1, 2), np.uint32),
        "rows": 2,
        "on_host_LE": np.ones((1, 3), np.bool_),
        "deferred_T": np.ones(2, np.int32),
        "counted_T": None,
        "timeout_s": 60.0,
        "layer": 0,
        "out_LE": np.zeros((1, 3), np.uint32),
        **changed,
    }
    made = k.HandOver(
        [k.ExpertWeights(3, 8, 4, "float32")], given["x_2TM"], given["ids_2TK"],
        given["routing_2TK"], given["out_2TM"], given["words_L2"],
    )  # fmt: skip
    pending = made.begin(
        given["rows"], on_host_LE=given["on_host_LE"], deferred_T=given["deferred_T"],
        counted_T=given["counted_T"], timeout_s=given["timeout_s"],
    )  # fmt: skip
    made.ask(given["layer"])
    made.wait_answer(0, 60)
    pending.wait(60)
    made.take_counts(given["out_LE"])


def quantised_rows(k: Any, **changed: Any) -> None:
    given = {"first": 0, "q_NK": np.zeros((2, 40), np.int8), "scales_NG": f(2, 2), **changed}
    weight = k.LinearWeight(4, 40, "int4:g32")
    weight.set_rows_quantized(given["first"], given["q_NK"], given["scales_NG"])


def expert(k: Any, **changed: Any) -> None:
    given = {
        "expert": 1,
        "gate_FM": f(3, 8),
        "up_FM": f(3, 8),
        "down_MF": f(8, 3),
        "gate_bias_F": f(3),
        "up_bias_F": None,
        "down_bias_M": f(8),
        **changed,
    }
    k.ExpertWeights(2, 8, 3, "int8:g32", True).set(**given)


def quantised(k: Any, **changed: Any) -> None:
    given = {"weight_NK": f(2, 40), "format": "int4:g64", **changed}
    k.quantize(given["weight_NK"], given["format"])


def router(k: Any, **changed: Any) -> None:
    given = {
        "logits_TE": f(2, 5),
        "top_k": 2,
        "out_ids_TK": np.zeros((2, 2), np.int32),
        "out_weights_TK": f(2, 2),
        "correction_E": None,
        "groups": 1,
        "groups_per_token": 1,
        "scale": 1.0,
        **changed,
    }
    k.router_topk(
        given["logits_TE"], given["top_k"], True, given["out_ids_TK"], given["out_weights_TK"],
        correction_E=given["correction_E"], groups=given["groups"],
        groups_per_token=given["groups_per_token"], scale=given["scale"],
    )  # fmt: skip


def norm(k: Any, **changed: Any) -> None:
    given = {"x_TM": f(2, 8), "weight_M": f(8), "eps": 1e-6, "out_TM": f(2, 8), **changed}
    k.rms_norm(given["x_TM"], given["weight_M"], given["eps"], given["out_TM"])


def silu(k: Any, **changed: Any) -> None:
    given = {"gate_up_T2F": f(2, 8), "out_TF": f(2, 4), **changed}
    k.silu_mul(given["gate_up_T2F"], given["out_TF"])


def rope(k: Any, **changed: Any) -> None:
    given = {
        "qkv_TX": f(2, 4 * 8),
        "positions_T": np.zeros(2, np.int32),
        "cos_PR": f(10, 4),
        "sin_PR": f(10, 4),
        "kv_pool": np.zeros((3, 2 * 4 * 8 * 4), np.uint8),
        "layer": 0,
        "slots_T": np.arange(2, dtype=np.int64),
        "q_norm_D": None,
        "norm_eps": 1e-6,
        **changed,
    }
    k.rope_and_store(
        given["qkv_TX"], given["positions_T"], given["cos_PR"], given["sin_PR"], given["kv_pool"],
        k.KvGeometry(1, 4, 1, 8, "float32"), given["layer"], given["slots_T"],
        q_norm_D=given["q_norm_D"], norm_eps=given["norm_eps"],
    )  # fmt: skip


def attention(k: Any, **changed: Any) -> None:
    given = {
        "q_THD": f(3, 2, 8),
        "kv_pool": np.zeros((3, 2 * 4 * 8 * 4), np.uint8),
        "layer": 0,
        "page_table_BP": np.zeros((2, 2), np.int32),
        "query_starts_B1": np.array([0, 1, 3], np.int32),
        "context_lens_B": np.array([5, 2], np.int32),
        "scale": 1.0,
        "out_THD": f(3, 2, 8),
        "sliding_window": 0,
        "sinks_H": None,
        "softcap": 0.0,
        **changed,
    }
    k.paged_attention(
        given["q_THD"], given["kv_pool"], k.KvGeometry(1, 4, 1, 8, "float32"), given["layer"],
        given["page_table_BP"], given["query_starts_B1"], given["context_lens_B"], given["scale"],
        given["out_THD"], sliding_window=given["sliding_window"], sinks_H=given["sinks_H"],
        softcap=given["softcap"],
    )  # fmt: skip


i32 = np.int32
CASES: list[tuple[Callable[..., None], str, Any]] = [
    (linear, "x_TK", f(2, 9)),
    (linear, "x_TK", f(8)),
    (linear, "x_TK", f(2, 8).astype(np.float64)),
    (linear, "x_TK", f(2, 16)[:, ::2]),
    (linear, "x_TK", [[1.0] * 8] * 2),
    (linear, "x_TK", None),
    (linear, "x_TK", np.array([["a"] * 8] * 2)),
    (linear, "out_TN", f(3, 4)),
    (linear, "out_TN", f(2, 5)),
    (linear, "out_TN", read_only(f(2, 4))),
    (linear, "out_TN", f(4, 2).T),
    (linear, "bias_N", f(5)),
    (linear, "bias_N", f(1, 4)),
    (linear_heads, "x_THK", f(2, 3, 9)),
    (linear_heads, "x_THK", f(2, 24)),
    (linear_heads, "x_THK", f(2, 3, 16)[..., ::2]),
    (linear_heads, "weight", 64),
    (linear_heads, "out_THN", f(2, 2, 4)),
    (linear_heads, "out_THN", f(2, 3, 8)[..., ::2]),
    (linear_heads, "out_THN", read_only(f(2, 3, 4))),
    (latents, "q_THD", f(1, 2, 6)),
    (latents, "out_THD", f(1, 2, 5)),
    (latents, "out_THD", f(1, 2, 10)),
    (latents, "out_THD", f(1, 2, 0)),
    (latents, "out_THD", f(1, 3, 6)),
    (latents, "kv_pool", f(3, 2 * 4 * 8)),
    (moe, "x_TM", f(2, 9)),
    (moe, "expert_ids_TK", np.zeros((2, 2), np.int64)),
    (moe, "expert_ids_TK", np.array([[0, 1], [2, 3]], i32)),
    (moe, "expert_ids_TK", np.zeros((3, 2), i32)),
    (moe, "routing_TK", f(2, 3)),
    (moe, "routing_TK", np.array([[1, 1], [1, np.nan]], np.float32)),
    (moe, "routing_TK", np.array([[1, np.inf], [1, 1]], np.float32)),
    (moe, "out_TM", f(1, 8)),
    (moe, "out_TM", read_only(f(2, 8))),
    (moe, "expert_mask_E", f(3)),
    (moe, "expert_mask_E", np.ones(2, np.uint8)),
    (moe, "expert_mask_E", np.ones(6, np.bool_)[::2]),
    (training, "x_TM", f(2, 9)),
    (training, "x_TM", f(8)),
    (training, "expert_ids_TK", np.array([[0, 1], [2, 3]], i32)),
    (training, "expert_ids_TK", np.zeros((2, 2), np.int64)),
    (training, "routing_TK", f(2, 3)),
    (training, "routing_TK", np.array([[1, 1], [1, np.nan]], np.float32)),
    (training, "out_TM", read_only(f(2, 8))),
    (training, "lora", (f(3, 2, 8),) * 5),
    (training, "lora.gate_a_ERM", f(3, 0, 8)),
    (training, "lora.gate_a_ERM", f(2, 2, 8)),
    (training, "lora.gate_b_EFR", f(3, 4, 3)),
    (training, "lora.up_a_ERM", f(3, 2, 16)[..., ::2]),
    (training, "lora.down_a_ERF", f(3, 2, 5)),
    (training, "lora.down_a_ERF", f(2, 4)),
    (training, "lora.down_b_EMR", np.ones((3, 8, 2), np.int32)),
    (training, "lora.scale", np.nan),
    (training, "dropout", 1.0),
    (training, "dropout", np.nan),
    (training, "grad_out_TM", f(3, 8)),
    (training, "grad_out_TM", f(2, 9)),
    (training, "grad_x_TM", read_only(f(2, 8))),
    (training, "grad_x_TM", f(2, 7)),
    (training, "grad_routing_TK", f(2, 3)),
    (training, "grad_routing_TK", f(2, 4)[:, ::2]),
    (training, "grad_lora", None),
    (training, "grad_lora.gate_a_ERM", f(3, 3, 8)),
    (training, "grad_lora.up_b_EFR", f(3, 4, 3)),
    (training, "grad_lora.down_b_EMR", read_only(f(3, 8, 2))),
    (hand_over, "x_2TM", f(2, 3, 9)),
    (hand_over, "x_2TM", f(3, 3, 8)),
    (hand_over, "x_2TM", f(3, 8)),
    (hand_over, "x_2TM", f(2, 3, 16)[:, :, ::2]),
    (hand_over, "ids_2TK", np.zeros((2, 3, 2), np.int64)),
    (hand_over, "ids_2TK", np.zeros((2, 4, 2), i32)),
    (hand_over, "ids_2TK", np.full((2, 3, 2), 3, i32)),
    (hand_over, "routing_2TK", f(2, 3, 3)),
    (hand_over, "routing_2TK", np.full((2, 3, 2), np.inf, np.float32)),
    (hand_over, "out_2TM", f(2, 2, 8)),
    (hand_over, "out_2TM", read_only(f(2, 3, 8))),
    (hand_over, "out_2TM", f(2, 6, 8)[:, ::2]),
    (hand_over, "words_L2", np.zeros((2, 2), np.uint32)),
    (hand_over, "words_L2", np.zeros((1, 3), np.uint32)),
    (hand_over, "words_L2", np.zeros((1, 2), i32)),
    (hand_over, "words_L2", read_only(np.zeros((1, 2), np.uint32))),
    (hand_over, "rows", -1),
    (hand_over, "rows", 4),
    (hand_over, "on_host_LE", np.ones((1, 4), np.bool_)),
    (hand_over, "on_host_LE", np.ones((2, 3), np.bool_)),
    (hand_over, "on_host_LE", f(1, 3)),
    (hand_over, "deferred_T", np.ones(3, i32)),
    (hand_over, "deferred_T", np.array([0, -1], i32)),
    (hand_over, "deferred_T", np.ones(2, np.int64)),
    (hand_over, "counted_T", np.ones(3, np.bool_)),
    (hand_over, "counted_T", f(2)),
    (hand_over, "timeout_s", -1.0),
    (hand_over, "timeout_s", np.nan),
    (hand_over, "timeout_s", 1e7),
    (hand_over, "layer", 1),
    (hand_over, "layer", -1),
    (hand_over, "out_LE", np.zeros((1, 4), np.uint32)),
    (hand_over, "out_LE", read_only(np.zeros((1, 3), np.uint32))),
    (hand_over, "out_LE", np.zeros((1, 3), i32)),
    (quantised_rows, "first", -1),
    (quantised_rows, "first", 3),
    (quantised_rows, "first", 2**62),
    (quantised_rows, "q_NK", np.zeros((2, 40), np.uint8)),
    (quantised_rows, "q_NK", np.zeros((2, 41), np.int8)),
    (quantised_rows, "q_NK", np.zeros((2, 80), np.int8)[:, ::2]),
    (quantised_rows, "q_NK", np.full((2, 40), 8, np.int8)),
    (quantised_rows, "scales_NG", f(1, 2)),
    (quantised_rows, "scales_NG", f(2, 1)),
    (quantised_rows, "scales_NG", f(2, 4)[:, ::2]),
    (expert, "expert", 2),
    (expert, "expert", -1),
    (expert, "gate_FM", f(3, 9)),
    (expert, "up_FM", f(8, 3)),
    (expert, "down_MF", f(3, 8)),
    (expert, "down_MF", np.full((8, 3), np.inf, np.float32)),
    (expert, "gate_bias_F", f(8)),
    (expert, "up_bias_F", np.ones(3, np.uint16)),
    (expert, "down_bias_M", f(16)[::2]),
    (quantised, "weight_NK", f(2, 0)),
    (quantised, "weight_NK", f(40)),
    (quantised, "weight_NK", np.full((2, 40), np.nan, np.float32)),
    (quantised, "format", "int4"),
    (quantised, "format", "bfloat16"),
    (router, "top_k", 0),
    (router, "top_k", 6),
    (router, "logits_TE", np.array([[1, np.nan, 1, 1, 1]] * 2, np.float32)),
    (router, "logits_TE", np.array([[1, 1, np.inf, 1, 1]] * 2, np.float32)),
    (router, "logits_TE", np.array([[1, 1, 1, 1, 1], [-np.inf] * 5], np.float32)),
    (router, "out_ids_TK", np.zeros((2, 3), i32)),
    (router, "out_weights_TK", f(1, 2)),
    (router, "groups", 0),
    (router, "groups", 2),
    (router, "groups", 6),
    (router, "groups_per_token", 0),
    (router, "groups_per_token", 2),
    (router, "scale", float("inf")),
    (router, "correction_E", f(4)),
    (norm, "x_TM", f(2, 0)),
    (norm, "weight_M", f(7)),
    (norm, "weight_M", None),
    (norm, "eps", -1.0),
    (norm, "eps", float("nan")),
    (norm, "out_TM", f(2, 7)),
    (silu, "gate_up_T2F", f(2, 9)),
    (silu, "out_TF", f(3, 4)),
    (rope, "qkv_TX", f(2, 31)),
    (rope, "qkv_TX", f(2, 16)),
    (rope, "positions_T", np.zeros(3, i32)),
    (rope, "positions_T", np.array([0, 10], i32)),
    (rope, "positions_T", np.array([0, -1], i32)),
    (rope, "cos_PR", f(10, 5)),
    (rope, "sin_PR", f(9, 4)),
    (rope, "kv_pool", np.zeros((3, 8), np.uint8)),
    (rope, "kv_pool", np.zeros((3, 2 * 4 * 8), np.int32)),
    (rope, "layer", 1),
    (rope, "layer", -1),
    (rope, "slots_T", np.array([0, 12], np.int64)),
    (rope, "slots_T", np.zeros(2, i32)),
    (rope, "q_norm_D", f(4)),
    (rope, "norm_eps", float("inf")),
    (attention, "q_THD", f(3, 2, 7)),
    (attention, "q_THD", f(3, 0, 8)),
    (attention, "q_THD", f(3, 97, 8)),
    (attention, "kv_pool", np.zeros((3, 9), np.uint8)),
    (attention, "layer", 1),
    (attention, "page_table_BP", np.zeros((2, 1), i32)),
    (attention, "page_table_BP", np.full((2, 2), 3, i32)),
    (attention, "page_table_BP", np.full((2, 2), -1, i32)),
    (attention, "page_table_BP", np.zeros((1, 2), i32)),
    (attention, "query_starts_B1", np.array([0, 1, 2], i32)),
    (attention, "query_starts_B1", np.array([1, 1, 3], i32)),
    (attention, "query_starts_B1", np.array([0, 4, 3], i32)),
    (attention, "query_starts_B1", np.array([0, 3], i32)),
    (attention, "context_lens_B", np.array([5, 1], i32)),
    (attention, "scale", float("nan")),
    (attention, "sliding_window", -1),
    (attention, "softcap", -1.0),
    (attention, "softcap", float("inf")),
    (attention, "softcap", float("nan")),
    (attention, "sinks_H", f(3)),
    (attention, "sinks_H", np.zeros(2)),
    (attention, "sinks_H", np.array([0, np.nan], np.float32)),
    (attention, "sinks_H", np.array([np.inf, 0], np.float32)),
    (attention, "out_THD", f(3, 2, 9)),
    (attention, "out_THD", read_only(f(3, 2, 8))),
]


@pytest.mark.parametrize("module", [kernels, reference], ids=["native", "reference"])
@pytest.mark.parametrize("call,name,value", CASES)
def test_the_error_names_the_argument(
    call: Callable[..., None], name: str, value: Any, module: Any
) -> None:
    module = module if module is not kernels else Native()
    with pytest.raises(ArgumentError, match=f"^{name}: "):
        call(module, **{name: value})


class Native:
    """The doors, with the constructors in their place."""

    def __getattr__(self, name: str) -> Any:
        from inlay import _native

        return getattr(kernels, name, None) or getattr(_native.kernels, name)


@pytest.mark.parametrize(
    "call",
    [
        linear,
        linear_heads,
        moe,
        training,
        hand_over,
        quantised_rows,
        expert,
        quantised,
        router,
        norm,
        silu,
        rope,
        attention,
        latents,
    ],  # fmt: skip
)
def test_the_unchanged_call_is_good(call: Callable[..., None]) -> None:
    call(Native())
    call(reference)


def test_only_the_kernels_can_see_these() -> None:
    with pytest.raises(ArgumentError, match="^x_TK: is not aligned"):
        linear(Native(), x_TK=misaligned(2, 8))
    with pytest.raises(ArgumentError, match="^x_TK: must be in CPU memory|^x_TK: must be a NumPy"):
        linear(Native(), x_TK=torch.ones(2, 8, device="meta"))
    shared = f(2, 12)
    with pytest.raises(ArgumentError, match="^out_TN: shares memory with x_TK"):
        linear(Native(), x_TK=shared[:, :8], out_TN=shared[:, 6:10])
    overlapping = np.lib.stride_tricks.as_strided(f(8), (2, 4), (4, 4))
    with pytest.raises(ArgumentError, match="^out_TN: its rows overlap"):
        linear(Native(), out_TN=overlapping)
    meeting = np.lib.stride_tricks.as_strided(f(24), (2, 3, 4), (16, 16, 4))
    with pytest.raises(ArgumentError, match="^out_THN: its heads or tokens overlap"):
        linear_heads(Native(), out_THN=meeting)
    for nothing in (np.zeros((2, 8), "V0"), np.zeros((2, 8), [])):
        with pytest.raises(ArgumentError, match="^x_TK: its dtype"):
            linear(Native(), x_TK=nothing)
    with pytest.raises(ArgumentError, match="^x_TK: has shape .* 2.60 elements"):
        linear(Native(), x_TK=torch.ones(1, 1).expand(2**40, 2**21))


def test_dlpack_is_checked_as_the_buffer_is() -> None:
    tensor = torch.frombuffer(bytearray(2 * 8 * 4 + 1), dtype=torch.float32, offset=1, count=16)
    with pytest.raises(ArgumentError, match="^x_TK: is not aligned"):
        linear(Native(), x_TK=tensor.reshape(2, 8))
    out = Exported(read_only(f(2, 4)))
    with pytest.raises(ArgumentError, match="^out_TN: is read-only"):
        linear(Native(), out_TN=out)
    linear(Native(), x_TK=Exported(read_only(f(2, 8))), out_TN=Exported(f(2, 4)))


def i32s(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


POOL = np.zeros((3, 2 * 4 * 8 * 4), np.uint8)
OVERLAPS: list[tuple[Callable[..., None], str, Any, dict[str, Any]]] = [
    (linear, "out_TN", f(2, 4), {"x_TK": f(2, 8), "bias_N": f(4)}),
    (
        moe,
        "out_TM",
        f(2, 8),
        {
            "x_TM": f(2, 8),
            "expert_ids_TK": i32s(2, 2),
            "routing_TK": f(2, 2),
            "expert_mask_E": np.ones(3, np.bool_),
        },
    ),
    (
        training,
        "out_TM",
        f(2, 8),
        {
            "x_TM": f(2, 8),
            "expert_ids_TK": i32s(2, 2),
            "routing_TK": f(2, 2),
            "lora.gate_a_ERM": f(3, 2, 8),
        },
    ),
    (
        training,
        "grad_x_TM",
        f(2, 8),
        {"grad_out_TM": f(2, 8), "lora.gate_b_EFR": f(3, 4, 2)},
    ),
    (training, "grad_routing_TK", f(2, 2), {"grad_x_TM": f(2, 8)}),
    (
        training,
        "grad_lora.up_a_ERM",
        f(3, 2, 8),
        {"grad_out_TM": f(2, 8), "grad_lora.gate_a_ERM": f(3, 2, 8)},
    ),
    (
        hand_over,
        "out_2TM",
        f(2, 3, 8),
        {
            "x_2TM": f(2, 3, 8),
            "ids_2TK": i32s(2, 3, 2),
            "routing_2TK": f(2, 3, 2),
            "words_L2": np.zeros((1, 2), np.uint32),
        },
    ),
    (hand_over, "words_L2", np.zeros((1, 2), np.uint32), {"x_2TM": f(2, 3, 8)}),
    (norm, "out_TM", f(2, 8), {"weight_M": f(8)}),
    (router, "out_ids_TK", i32s(2, 2), {"logits_TE": f(2, 5), "out_weights_TK": f(2, 2)}),
    (router, "out_weights_TK", f(2, 2), {"logits_TE": f(2, 5)}),
    (
        rope,
        "qkv_TX",
        f(2, 4 * 8),
        {
            "positions_T": i32s(2),
            "cos_PR": f(10, 4),
            "sin_PR": f(10, 4),
            "kv_pool": POOL,
            "slots_T": np.zeros(2, np.int64),
            "q_norm_D": f(8),
        },
    ),
    (
        rope,
        "kv_pool",
        POOL,
        {
            "positions_T": i32s(2),
            "cos_PR": f(10, 4),
            "sin_PR": f(10, 4),
            "slots_T": np.zeros(2, np.int64),
            "q_norm_D": f(8),
        },
    ),
    (
        attention,
        "out_THD",
        f(3, 2, 8),
        {
            "q_THD": f(3, 2, 8),
            "kv_pool": POOL,
            "page_table_BP": i32s(2, 2),
            "query_starts_B1": i32s(3),
            "context_lens_B": i32s(2),
            "sinks_H": f(2),
        },
    ),
]


@pytest.mark.parametrize("module", [kernels, reference], ids=["native", "reference"])
@pytest.mark.parametrize(
    "call,out,value,other,input",
    [(call, out, value, *item) for call, out, value, inputs in OVERLAPS for item in inputs.items()],
)
def test_the_output_where_an_input_lies(
    call: Callable[..., None], out: str, value: Any, other: str, input: Any, module: Any
) -> None:
    memory = np.zeros(max(value.nbytes, input.nbytes), np.uint8)
    given = {
        name: memory[: array.nbytes].view(array.dtype).reshape(array.shape)
        for name, array in ((out, value), (other, input))
    }
    module = module if module is not kernels else Native()
    with pytest.raises(ArgumentError, match=f"^{out}: shares memory with {other}"):
        call(module, **given)


@pytest.mark.parametrize("module", [kernels, reference], ids=["native", "reference"])
def test_in_place(module: Any) -> None:
    module = module if module is not kernels else Native()
    x = f(2, 8)
    norm(module, x_TM=x, out_TM=x)
    np.testing.assert_allclose(x, 1, rtol=1e-5)
    rows = f(3, 8)
    with pytest.raises(ArgumentError, match="^out_TM: shares memory with x_TM"):
        norm(module, x_TM=rows[:2], out_TM=rows[1:])
    gate_up = f(2, 8)
    silu(module, gate_up_T2F=gate_up, out_TF=gate_up[:, :4])
    np.testing.assert_allclose(gate_up[:, :4], 1 / (1 + np.exp(-1)), rtol=1e-5)
    with pytest.raises(ArgumentError, match="^out_TF: shares memory with gate_up_T2F"):
        silu(module, gate_up_T2F=gate_up, out_TF=gate_up[:, 4:])


@pytest.mark.parametrize("module", [Native(), reference], ids=["native", "reference"])
def test_weights(module: Any) -> None:
    with pytest.raises(ArgumentError, match="^weight_NK: "):
        module.pack_linear(f(0, 3))
    with pytest.raises(ArgumentError, match="^weight_NK: "):
        module.pack_linear(f(3, 3).astype(np.float16))
    with pytest.raises(ArgumentError, match="^format: .*'mxfp4'; got 'int3'"):
        module.pack_linear(f(3, 3), "int3")
    with pytest.raises(ArgumentError, match="^in_features: "):
        module.LinearWeight(3, 0, "float32")
    with pytest.raises(ArgumentError, match="^first: "):
        module.LinearWeight(3, 2, "float32").set_rows(2, f(2, 2))
    with pytest.raises(ArgumentError, match="^rows_NK: "):
        module.LinearWeight(3, 2, "float32").set_rows(0, f(2, 3))
    experts = module.ExpertWeights(2, 4, 3, "float32")
    with pytest.raises(ArgumentError, match="^expert: "):
        experts.set(2, f(3, 4), f(3, 4), f(4, 3))
    with pytest.raises(ArgumentError, match="^down_MF: "):
        experts.set(0, f(3, 4), f(3, 4), f(3, 4))
    with pytest.raises(ArgumentError, match="^hidden: "):
        module.ExpertWeights(2, 0, 3, "float32")
    with pytest.raises(ArgumentError, match="^head_dim: "):
        module.KvGeometry(1, 16, 1, 0, "float32")
    with pytest.raises(ArgumentError, match="^head_dim: must be even"):
        module.KvGeometry(1, 16, 1, 7, "float32")


@pytest.mark.parametrize("module", [Native(), reference], ids=["native", "reference"])
def test_sizes_beyond_any_machine(module: Any) -> None:
    big, most = 2**30, 2**31 - 1
    empty = np.zeros(64, np.uint8)
    empty = empty[-empty.ctypes.data % 64 :][:0]  # as a file's pages are aligned
    for name, sizes in {
        "num_experts": [(big, 65536, 65536), (most, most, most), (2**20, 8192, 8192)],
        "out_features": [(most, most), (2**25, 2**25)],
    }.items():
        made = module.ExpertWeights if name == "num_experts" else module.LinearWeight
        mapped = module.map_experts if name == "num_experts" else module.map_linear
        for size in sizes:
            with pytest.raises(ArgumentError, match=f"^{name}: .*2.47 bytes"):
                made(*size, "float32")
            with pytest.raises(ArgumentError, match=f"^{name}: .*2.47 bytes"):
                mapped(*size, "float32", *[empty] * (len(size) - 1))
    with pytest.raises(ArgumentError, match="^num_experts: .*2.47 bytes"):
        module.ExpertWeights(2**30, 2**15, 1, "int8", True)
    for size in [(2**20, 2**20, 2048, 1024), (1, 2**20, 65536, 1024)]:
        with pytest.raises(ArgumentError, match="^layers: .*2.47 bytes"):
            module.KvGeometry(*size, "float32")


@pytest.mark.parametrize("module", [Native(), reference], ids=["native", "reference"])
def test_biases_need_room(module: Any) -> None:
    experts = module.ExpertWeights(2, 4, 3)
    with pytest.raises(ArgumentError, match="^down_bias_M: .*bias=True"):
        experts.set(0, f(3, 4), f(3, 4), f(4, 3), down_bias_M=f(4))
    experts = module.ExpertWeights(2, 4, 3, "float32", True)
    with pytest.raises(ArgumentError, match="^up_bias_F: "):
        experts.set(0, f(3, 4), f(3, 4), f(4, 3), up_bias_F=f(4))


@pytest.mark.parametrize(
    "wrong", [{"alpha": np.nan}, {"limit": 0.0}, {"limit": np.nan}, {"up_offset": np.inf}], ids=str
)
def test_activation(wrong: dict[str, float]) -> None:
    name, value = next(iter(wrong.items()))
    arguments = (f(1, 8), np.zeros((1, 1), np.int32), f(1, 1), f(1, 8))
    with pytest.raises(ArgumentError, match=f"^activation.{name}: "):
        moe_with(kernels, *arguments, activation=kernels.Activation(**wrong))
    with pytest.raises(ArgumentError, match=f"^activation.{name}: "):
        moe_with(reference, *arguments, **{name: value})


@pytest.mark.parametrize("module", [Native(), reference], ids=["native", "reference"])
def test_layers_of_a_hand_over(module: Any) -> None:
    buffers = (f(2, 1, 8), i32s(2, 1, 1), f(2, 1, 1), f(2, 1, 8), np.zeros((2, 2), np.uint32))
    layer = module.ExpertWeights(3, 8, 4)
    for layers in ([], [layer, None], [layer, layer, module.ExpertWeights(3, 9, 4)]):
        with pytest.raises(ArgumentError, match="^layers: "):
            module.HandOver(layers, *buffers)
    with pytest.raises(ArgumentError, match="^words_L2: "):
        module.HandOver([layer] * 3, *buffers)


@pytest.mark.parametrize("module", [kernels, reference], ids=["native", "reference"])
def test_shared_experts_must_fit(module: Any) -> None:
    with pytest.raises(ArgumentError, match="^shared: "):
        moe_with(
            module, f(1, 8), np.zeros((1, 1), np.int32), f(1, 1), f(1, 8),
            shared=module.ExpertWeights(1, 9, 4),
        )  # fmt: skip


def moe_with(module: Any, x: Any, ids: Any, weights: Any, out: Any, **changed: Any) -> None:
    module.moe(x, module.ExpertWeights(3, 8, 4), ids, weights, out, **changed)


def test_pack_experts() -> None:
    with pytest.raises(ArgumentError, match="^up_EFM: "):
        kernels.pack_experts(f(2, 3, 4), f(3, 3, 4), f(2, 4, 3))
    with pytest.raises(ArgumentError, match="^gate_EFM: "):
        kernels.pack_experts(f(3, 4), f(3, 4), f(4, 3))
    with pytest.raises(ArgumentError, match="^up_FM: "):
        kernels.pack_experts(f(2, 3, 4), f(2, 3, 5), f(2, 4, 3))


ANY_ARRAY = st.one_of(
    npst.arrays(
        st.sampled_from([np.float32, np.int32, np.int64, np.uint8, np.float64, np.uint16]),
        npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    ),
    st.none(),
    st.text(max_size=3),
    st.integers(),
    st.binary(max_size=40),
)


@settings(max_examples=300)
@given(case=st.sampled_from(CASES), value=ANY_ARRAY)
def test_anything_else_raises_or_works(
    case: tuple[Callable[..., None], str, Any], value: Any
) -> None:
    call, name, _ = case
    try:
        call(Native(), **{name: value})
    except (ArgumentError, TypeError):
        pass
    except WaitTimeoutError:
        assert name == "timeout_s"  # no time at all is a time, and may be over too soon
