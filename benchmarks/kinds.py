"""Kinds of processor: a case has one accepted record for each.

What leads with AVX-512 may trail with AVX2, so records of different kinds never replace each other.
Instructions that decide less than these kinds do are in the record alone (`machine.isa`).
"""

import re
from collections.abc import Mapping
from typing import Any

KIND_OF_ISA = {
    "amx": "amx",
    "avx512_bf16": "avx512_bf16",
    "avx512_vnni": "avx512",
    "avx512": "avx512",
    "avx2_vnni": "avx2",
    "avx2": "avx2",
    "scalar": "scalar",
}
CPU_KINDS = tuple(dict.fromkeys(KIND_OF_ISA.values()))
GPU_KIND = re.compile(r"gpu-[a-z0-9]+(?:-[a-z0-9]+)*")

MAKERS = {"nvidia", "amd", "intel", "r", "tm"}


def kind_of(machine: Mapping[str, Any], *, on_gpu: bool) -> str:
    """The kind of a record that was taken on this machine.

    Args:
        machine: what `benchmarks.machine.machine` says.
        on_gpu: whether the case runs on a GPU; elsewhere a GPU that is idle changes nothing.
    """
    if not on_gpu:
        return KIND_OF_ISA[machine["isa"]]
    words = re.findall(r"[a-z0-9]+", machine["gpus"][0].lower())
    return "-".join(["gpu", *(word for word in words if word not in MAKERS)])


def is_kind(name: str) -> bool:
    """Whether a name is one of a kind of processor."""
    return name in CPU_KINDS or GPU_KIND.fullmatch(name) is not None
