"""What KTransformers' classes, operators and keywords become here: tables, and how to look in them.

A rule names a class that takes a module's place, and for each phase an operator. Inlay has its own
part for every module, whatever they are called; a name says which modules it is for, and sometimes
on which device, and both are checked. What Inlay cannot do is refused with the nearest that it can.

Source: KTransformers' injection framework (its `archive/`, state of August 2026).
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from inlay.experts.modules import Family

DEFAULT = "default"
"""The class of rules that leave the module as it is and say its devices alone."""


@dataclass(frozen=True)
class ClassRow:
    """A class that takes a module's place.

    Attributes:
        families: of modules that it is for.
        refused: why not, and what is nearest; empty: it is taken.
    """

    families: tuple[Family, ...]
    refused: str = ""


@dataclass(frozen=True)
class OperatorRow:
    """What computes a module in one phase.

    Attributes:
        families: of modules that it is for.
        on: where it can be: on the CPU, on a device with its own memory, or on both.
        refused: as of a class.
        note: what it does there and not here, in one line; empty: nothing.
    """

    families: tuple[Family, ...]
    on: Literal["cpu", "device", "both"] = "both"
    refused: str = ""
    note: str = ""


@dataclass(frozen=True)
class KeywordRow:
    """A keyword of a class.

    Attributes:
        kind: what its value is.
        families: of modules where it means something.
        fulfilled: values that Inlay's behaviour is anyway; there is nothing to tell of them.
        note: why other values have no effect; empty: they have.
    """

    kind: Literal["device", "operator", "backend", "map", "flag", "count"]
    families: tuple[Family, ...] = ()
    fulfilled: tuple[Any, ...] = ()
    note: str = ""


_LINEAR: tuple[Family, ...] = ("linear", "router", "head")
_NOT_ASCEND = "it is for Ascend NPUs; Inlay runs on CPUs and CUDA devices: take {nearest}"
_NOT_INTEL = "it is for Intel GPUs (xpu); Inlay runs on CPUs and CUDA devices: take {nearest}"
_NO_MODEL = "Inlay has no model of this architecture: see docs/guides/add-a-model.md"


def _for(families: tuple[Family, ...], *names: str) -> dict[str, ClassRow]:
    return dict.fromkeys(names, ClassRow(families))


def _refused(families: tuple[Family, ...], reason: str, **names: str) -> dict[str, ClassRow]:
    """Names with the nearest of each."""
    return {
        name: ClassRow(families, reason.format(nearest=nearest)) for name, nearest in names.items()
    }


CLASSES: Mapping[str, ClassRow] = {
    **_for(_LINEAR, "KTransformersLinear"),
    **_for(("experts",), "KTransformersExperts", "KTransformersExpertsV2", "KGlm4Experts"),
    **_for(
        ("mixture",),
        "KDeepseekV2MoE", "KDeepseekV3MoE", "KDeepseekV3MoEV2", "KQwen2MoeSparseMoeBlock",
        "KQwen2MoeSparseMoeBlockV2", "KQwen3MoeSparseMoeBlock", "KQwen3MoeSparseMoeBlockV2",
        "KMistralSparseMoEBlock", "KGlm4MoeMoE",
    ),
    **_for(("router",), "KMoEGate", "KMoEGateQwen2Moe"),
    **_for(
        ("attention",),
        "KDeepseekV2Attention", "KQwen2MoeAttention", "KQwen3MoeAttention", "KGlm4MoeAttention",
        "flashinfer_attn", "deepseek_torch_attn",
    ),
    **_for(("model",), "KDeepseekV2Model", "KQwen2MoeModel", "KQwen3MoeModel", "KLlamaModel"),
    **_for(
        ("rope",),
        "RotaryEmbedding", "RotaryEmbeddingV2", "RotaryEmbeddingV3", "RotaryEmbeddingV4",
        "YarnRotaryEmbedding", "YarnRotaryEmbeddingV3", "KQwen3MoeRotaryEmbedding",
        "KGlm4MoeRotaryEmbedding",
    ),
    **_for(
        ("norm",),
        "RMSNorm", "KQwen2MoeRMSNorm", "KQwen3MoeRMSNorm", "KGlm4MoeRMSNorm",
        "DeepseekV3RMSNormTorch",
    ),
    **_for(("mlp",), "kDeepseekV3MLP", "KQwen2MoeMLP", "KGlm4MoeMLP"),
    "KLlamaAttention": ClassRow(
        ("attention",),
        "it picks blocks of a long context by a guess at what matters, and Inlay reads all: take "
        "class: default",
    ),
    "DynamicNTKScalingRotaryEmbedding": ClassRow(
        ("rope",), "Inlay has rotations of config.json's kinds default, linear, llama3 and yarn"
    ),
    **_refused(("experts",), _NO_MODEL, KSmallthinkerExperts=""),
    **_refused(("mixture",), _NO_MODEL, KSmallthinkerMoeBlock="", KQwen3NextSparseMoeBlockV2=""),
    **_refused(
        ("attention",),
        _NO_MODEL,
        KSmallthinkerAttention="", KQwen3NextAttention="", KQwen3NextGatedDeltaNet="",
    ),
    **_refused(("norm",), _NO_MODEL, KSmallthinkerRMSNorm="", KQwen3NextRMSNorm=""),
    **_refused(("rope",), _NO_MODEL, KSmallthinkerRotaryEmbedding=""),
    **_refused(("mlp",), _NO_MODEL, KSmallthinkerDenseMlpBlock=""),
    **_refused(("router",), _NOT_INTEL, KMoEGateIPEXLLM="KMoEGate"),
    **_refused(("attention",), _NOT_INTEL, KQwen3MoeAttentionIPEXLLM="KQwen3MoeAttention"),
    **_refused(("norm",), _NOT_INTEL, KDeepseekRMSNormIPEXLLM="RMSNorm"),
    **_refused(_LINEAR, _NOT_ASCEND, KTransformersLinearW8A8A2="KTransformersLinear"),
    **_refused(("experts",), _NOT_ASCEND, KTransformersExpertsW8A8="KTransformersExperts"),
    **_refused(
        ("mixture",),
        _NOT_ASCEND,
        KDeepseekV3MoEW8A8="KDeepseekV3MoE", KQwen3MoeSparseMoeBlockW8A8="KQwen3MoeSparseMoeBlock",
    ),
    **_refused(("router",), _NOT_ASCEND, KDeepseekV3GateA2="KMoEGate"),
    **_refused(
        ("attention",),
        _NOT_ASCEND,
        KDeepseekV2AttentionW8A8A2="KDeepseekV2Attention",
        KDeepseekV2AttentionW8A8A2Serve="KDeepseekV2Attention",
        KQwen3MoeAttentionW8A8A2Serve="KQwen3MoeAttention",
    ),
    **_refused(
        ("norm",),
        _NOT_ASCEND,
        KDeepseekV3RMSNormW8A8="RMSNorm", KQwen3MoeRMSNormW8A8="KQwen3MoeRMSNorm",
    ),
    **_refused(
        ("mlp",),
        _NOT_ASCEND,
        KDeepseekV3MLPW8A8A2V1="kDeepseekV3MLP", KDeepseekV3MLPW8A8A2V2="kDeepseekV3MLP",
        KQwen3MoeMLPW8A8A2="KQwen2MoeMLP",
    ),
}  # fmt: skip
"""By the last part of the import path."""

_HELD = "matrices are held as --weight-format says; its own is {format}"

OPERATORS: Mapping[str, OperatorRow] = {
    "KLinearTorch": OperatorRow(_LINEAR),
    "KLinearMarlin": OperatorRow(_LINEAR, "device", note=_HELD.format(format="+int4:g128")),
    "VLinearMarlin": OperatorRow(_LINEAR, "device", note=_HELD.format(format="+int4:g128")),
    "KLinearQ8": OperatorRow(_LINEAR, "device", note=_HELD.format(format="+int8")),
    "KLinearFP8": OperatorRow(_LINEAR, "device", note=_HELD.format(format="+fp8:g128")),
    "KLinearCPUInfer": OperatorRow(_LINEAR, "cpu"),
    "KLinearIPEXLLM": OperatorRow(_LINEAR, refused=_NOT_INTEL.format(nearest="KLinearTorch")),
    "KLinearTorchW8A8A2": OperatorRow(_LINEAR, refused=_NOT_ASCEND.format(nearest="KLinearQ8")),
    "KExpertsTorch": OperatorRow(("experts",)),
    "KExpertsMarlin": OperatorRow(
        ("experts",),
        "device",
        note="experts are held as --weight-format says; its own is int4:g128",
    ),
    "KExpertsCPU": OperatorRow(("experts",), "cpu"),
    "KSFTExpertsCPU": OperatorRow(("experts",), "cpu"),
    "KExpertsCPUW8A8": OperatorRow(
        ("experts",), refused=_NOT_ASCEND.format(nearest="KExpertsCPU with backend: AMXInt8")
    ),
}
"""What `generate_op` and `prefill_op` may name. Inlay has one operator of each kind and device."""

BACKENDS: Mapping[str, str | None] = {
    "llamafile": None,
    "AMXInt8": "int8",
    "AMXBF16": "bfloat16",
    "AMXInt4": "int4:g32",
}
"""Weight formats of host experts; None: the one that the files have."""

KEYWORDS: Mapping[str, KeywordRow] = {
    "generate_device": KeywordRow("device"),
    "prefill_device": KeywordRow("device"),
    "out_device": KeywordRow("device"),
    "generate_op": KeywordRow("operator"),
    "prefill_op": KeywordRow("operator"),
    "backend": KeywordRow("backend", ("experts",)),
    "transfer_map": KeywordRow("map", ("model",)),
    "absorb_for_prefill": KeywordRow(
        "flag",
        ("attention",),
        fulfilled=(True,),
        note="attention is computed against the latent in both phases, as with True",
    ),
    "per_layer_prefill_intput_threshold": KeywordRow(
        "count",
        ("model",),
        fulfilled=(0,),
        note="prompts go through all layers in chunks of engine.scheduler.prefill_chunk tokens",
    ),
    "device": KeywordRow(
        "device", note="generate_device and prefill_device say where a module runs"
    ),
}

_PARTS: Mapping[Family, str] = {
    "model": "decoder",
    "layer": "decoder layer",
    "embedding": "embedding",
    "attention": "attention to pages",
    "linear": "matrix",
    "norm": "norm",
    "rope": "rotation",
    "mlp": "MLP",
    "mixture": "mixture",
    "router": "router",
    "experts": "weights in its memory",
    "head": "output matrix",
}


def part_of(family: Family) -> str:
    """What Inlay runs in a module's place, in a word; of experts, where they are resident."""
    return _PARTS[family]


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean x?` where one is close, capital letters aside."""
    names = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), list(names), n=1, cutoff=0.6)
    return f"; did you mean {names[close[0]]}?" if close else ""
