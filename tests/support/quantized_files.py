"""Checkpoints with quantised weights, made from those with floats as their makers' tools do.

Packing is by loops over the specifications, so that it shares nothing with what reads it.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from tests.support.published_methods import PUBLISHED
from tests.support.tiny_models import write_shards

FP8_CONFIG = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
INT4_CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": 32,
            },
        }
    },
    "ignore": [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
    ],
}
MXFP4_CONFIG = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]

Tensors = dict[str, torch.Tensor]


def fp8(name: str, weight_NK: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """What the files hold of a matrix, and the floats that it stands for."""
    rows, columns = weight_NK.shape
    codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    scales = torch.empty(-(-rows // 128), -(-columns // 128))
    meant = torch.empty(rows, columns)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = slice(128 * i, 128 * (i + 1)), slice(128 * j, 128 * (j + 1))
            scales[i, j] = weight_NK[block].abs().max() / 448
            codes[block] = (weight_NK[block] / scales[i, j]).to(torch.float8_e4m3fn)
            meant[block] = codes[block].float() * scales[i, j]
    return {name: codes, f"{name}_scale_inv": scales}, meant


def int4(name: str, weight_NK: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """As `fp8`, with groups of 32 and bfloat16 scales."""
    rows, columns = weight_NK.shape
    words = np.zeros((rows, columns // 8), np.uint32)
    scales = torch.empty(rows, columns // 32, dtype=torch.bfloat16)
    meant = torch.empty(rows, columns)
    for row in range(rows):
        for group in range(columns // 32):
            part = slice(32 * group, 32 * (group + 1))
            scales[row, group] = weight_NK[row, part].abs().max() / 7.5
            scale = float(scales[row, group])
            for column in range(part.start, part.stop):
                value = min(7, max(-8, round(float(weight_NK[row, column]) / scale)))
                words[row, column // 8] |= (value + 8) << (4 * (column % 8))
                meant[row, column] = value * scale
    tensors = {
        f"{name}_packed": torch.from_numpy(words.view(np.int32)),
        f"{name}_scale": scales,
        f"{name}_shape": torch.tensor([rows, columns]),
    }
    return tensors, meant


def mxfp4(name: str, weight_EMN: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """As `fp8`, of fused experts: the matrices of the files are transposed."""
    weight = weight_EMN.transpose(1, 2).contiguous()
    experts, rows, columns = weight.shape
    groups = weight.view(-1, 32)
    exponents = torch.floor(torch.log2(groups.abs().amax(dim=1))) - 2
    scaled = (groups / 2 ** exponents[:, None]).clamp(-6, 6)
    values = torch.tensor(E2M1)
    nearest = (scaled.abs()[..., None] - values).abs().argmin(dim=-1)
    codes = nearest + 8 * (scaled < 0)
    meant = torch.copysign(values[nearest], scaled) * 2 ** exponents[:, None]
    packed = (codes[:, 0::2] + 16 * codes[:, 1::2]).to(torch.uint8)
    shape = (experts, rows, columns // 32)
    tensors = {
        f"{name}_blocks": packed.view(*shape, 16),
        f"{name}_scales": (exponents + 127).to(torch.uint8).view(shape),
    }
    return tensors, meant.view(experts, rows, columns).transpose(1, 2).contiguous()


METHODS: dict[str, tuple[Any, dict[str, Any], tuple[str, ...]]] = {
    "fp8": (fp8, FP8_CONFIG, ("proj.weight", "kv_a_proj_with_mqa.weight")),
    "int4": (int4, INT4_CONFIG, ("experts.",)),
    "mxfp4": (mxfp4, MXFP4_CONFIG, ("experts.gate_up_proj", "experts.down_proj")),
    **PUBLISHED,
}


def quantize_files(source: Path, target: Path, meant: Path, method: str, shards: int = 1) -> None:
    """Write a float model's directory again: quantised, and as the floats that this stands for."""
    make, quantization, parts = METHODS[method]
    quantized, floats = {}, {}
    for name, tensor in load_file(source / "model.safetensors").items():
        wanted = any(part in name for part in parts) and "shared" not in name
        if wanted and tensor.dim() > 1 and not name.endswith("_bias"):
            tensors, floats[name] = make(name, tensor.float())
            quantized |= tensors
        else:
            quantized[name] = floats[name] = tensor
    config = json.loads((source / "config.json").read_text())
    for directory, content, more in (
        (target, quantized, {"quantization_config": quantization}),
        (meant, floats, {}),
    ):
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(config | more))
        write_shards(directory, {name: one.contiguous() for name, one in content.items()}, shards)
