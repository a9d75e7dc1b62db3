"""What tools for quantising leave of a matrix, by loops over their specifications.

Each function gives the tensors of the files and the floats that they stand for, and shares nothing
with what reads them.
"""

import json
from functools import partial
from typing import Any

import numpy as np
import torch

Tensors = dict[str, torch.Tensor]
Made = tuple[Tensors, torch.Tensor]

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
# The quantiles of a normal distribution that bitsandbytes has; files bring them along.
NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
]  # fmt: skip
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def integers(
    weight_NK: torch.Tensor, bits: int, group_of: list[int], symmetric: bool, scale_dtype: Any
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], torch.Tensor, torch.Tensor]:
    """Codes [N, K], zero points and scales [N, G], and what they mean."""
    rows, columns = weight_NK.shape
    groups, most = max(group_of) + 1, 2**bits - 1
    codes = np.zeros((rows, columns), np.int64)
    zeros = np.zeros((rows, groups), np.int64)
    scales = torch.zeros(rows, groups, dtype=scale_dtype)
    meant = torch.zeros(rows, columns)
    for row in range(rows):
        values = weight_NK[row].double().numpy()
        for group in range(groups):
            own = [column for column in range(columns) if group_of[column] == group]
            least, largest = min(0.0, values[own].min()), max(0.0, values[own].max())
            step = 2 * max(largest, -least) / most if symmetric else (largest - least) / most
            scales[row, group] = step
            scale = float(scales[row, group])
            zeros[row, group] = 2 ** (bits - 1) if symmetric else round(-least / scale)
            zero = zeros[row, group]
            codes[row, own] = np.clip(np.round(values[own] / scale) + zero, 0, most)
            meant[row, own] = torch.from_numpy((codes[row, own] - zero) * scale).float()
    return codes, zeros, scales, meant


def words(codes: np.ndarray[Any, Any], bits: int) -> torch.Tensor:
    """Codes of a row as a stream of bits, the lowest of the first one first, in words of 32."""
    rows, columns = codes.shape
    packed = np.zeros((rows, -(-columns * bits // 32)), np.uint64)
    for column in range(columns):
        for bit in range(bits):
            word, place = divmod(column * bits + bit, 32)
            packed[:, word] |= (codes[:, column].astype(np.uint64) >> bit & 1) << np.uint64(place)
    return torch.from_numpy(packed.astype(np.uint32).view(np.int32))


def awq(name: str, weight_NK: torch.Tensor, group: int = 32, symmetric: bool = False) -> Made:
    """AutoAWQ, version gemm."""
    module, columns = name.removesuffix(".weight"), weight_NK.shape[1]
    of_column = [column // group for column in range(columns)]
    codes, zeros, scales, meant = integers(weight_NK, 4, of_column, symmetric, torch.float16)

    def packed(values_XN: np.ndarray[Any, Any]) -> torch.Tensor:
        order = [8 * (n // 8) + AWQ_ORDER[n % 8] for n in range(values_XN.shape[1])]
        return words(values_XN[:, order], 4)

    return {
        f"{module}.qweight": packed(codes.T),
        f"{module}.qzeros": packed(zeros.T),
        f"{module}.scales": scales.T.contiguous(),
    }, meant


def gptq(
    name: str,
    weight_NK: torch.Tensor,
    bits: int = 4,
    group: int = 32,
    symmetric: bool = True,
    by_activations: bool = False,
    less: int = 1,
    order: bool = True,
    scale_dtype: torch.dtype = torch.float16,
) -> Made:
    """AutoGPTQ; GPTQModel's second version with `less` 0, AutoRound without `order`."""
    module, columns = name.removesuffix(".weight"), weight_NK.shape[1]
    group = columns if group == -1 else group
    places = list(range(columns))
    if by_activations:
        places = torch.randperm(columns, generator=torch.Generator().manual_seed(3)).tolist()
    of_column = [place // group for place in places]
    codes, zeros, scales, meant = integers(weight_NK, bits, of_column, symmetric, scale_dtype)
    tensors = {
        f"{module}.qweight": words(codes, bits).T.contiguous(),
        f"{module}.qzeros": words(np.maximum(zeros - less, 0).T, bits),
        f"{module}.scales": scales.T.contiguous(),
    }
    if order:
        tensors[f"{module}.g_idx"] = torch.tensor(of_column, dtype=torch.int32)
    if less and (zeros < 1).any():  # of the first version, which has no zero point 0
        raise AssertionError("make weights on both sides of zero")
    return tensors, meant


def packed(
    name: str,
    weight_NK: torch.Tensor,
    bits: int = 4,
    group: int = 32,
    symmetric: bool = True,
    by_activations: bool = False,
) -> Made:
    """compressed-tensors, `pack-quantized`."""
    rows, columns = weight_NK.shape
    group = columns if group == -1 else group
    places = list(range(columns))
    if by_activations:
        places = torch.randperm(columns, generator=torch.Generator().manual_seed(3)).tolist()
    of_column = [place // group for place in places]
    codes, zeros, scales, meant = integers(weight_NK, bits, of_column, symmetric, torch.bfloat16)
    tensors = {
        f"{name}_packed": words(codes, bits),
        f"{name}_scale": scales,
        f"{name}_shape": torch.tensor([rows, columns]),
    }
    if not symmetric:
        tensors[f"{name}_zero_point"] = words(zeros.T, bits).T.contiguous()
    if by_activations:
        tensors[f"{name}_g_idx"] = torch.tensor(of_column, dtype=torch.int32)
    return tensors, meant


def int8_rows(name: str, weight_NK: torch.Tensor) -> Made:
    """compressed-tensors, `int-quantized`: W8A8."""
    scales = (weight_NK.abs().amax(1, keepdim=True) / 127).bfloat16()
    codes = (weight_NK / scales.float()).round().clamp(-128, 127)
    return {name: codes.to(torch.int8), f"{name}_scale": scales}, codes * scales.float()


def fp8_rows(name: str, weight_NK: torch.Tensor, whole: bool = False, more: str = "_scale") -> Made:
    """A scale for each row, or for the `whole` matrix, which has one for activations, too."""
    largest = weight_NK.abs().max() if whole else weight_NK.abs().amax(1, keepdim=True)
    scales = largest / 448
    codes = (weight_NK / scales).to(torch.float8_e4m3fn)
    tensors = {name: codes, f"{name}{more}": scales}
    if whole:
        tensors[f"{name.removesuffix('.weight')}.input_scale"] = torch.tensor(0.5)
    return tensors, codes.float() * scales


def mxfp8(name: str, weight_NK: torch.Tensor) -> Made:
    """A power of two for each 32 of a row."""
    rows, columns = weight_NK.shape
    exponents = torch.zeros(rows, columns // 32, dtype=torch.uint8)
    codes = torch.zeros(rows, columns, dtype=torch.float8_e4m3fn)
    meant = torch.zeros(rows, columns)
    for group in range(columns // 32):
        part = slice(32 * group, 32 * group + 32)
        exponent = torch.floor(torch.log2(weight_NK[:, part].abs().amax(1))) - 8
        exponents[:, group] = (exponent + 127).to(torch.uint8)
        power = 2.0 ** exponent[:, None]
        codes[:, part] = (weight_NK[:, part] / power).clamp(-448, 448).to(torch.float8_e4m3fn)
        meant[:, part] = codes[:, part].float() * power
    return {name: codes, f"{name}_scale": exponents}, meant


def _e2m1(scaled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and values of the nearest, two codes to a byte."""
    values = torch.tensor(E2M1)
    nearest = (scaled.abs()[..., None] - values).abs().argmin(-1)
    codes = nearest + 8 * (scaled < 0)
    pairs = (codes[:, 0::2] + 16 * codes[:, 1::2]).to(torch.uint8)
    return pairs, torch.copysign(values[nearest], scaled)


def nvfp4(name: str, weight_NK: torch.Tensor, of_modelopt: bool = False) -> Made:
    """e2m1 in groups of 16 with an e4m3 scale each, and one float32 for all of them."""
    groups = weight_NK.reshape(len(weight_NK), -1, 16)
    largest = weight_NK.abs().max()
    inverse = (448 * 6 / largest).float()
    direct = (largest / (448 * 6)).float()
    of_all = direct if of_modelopt else 1 / inverse
    scales = (groups.abs().amax(-1) / 6 / of_all).to(torch.float8_e4m3fn)
    steps = scales.float() * direct if of_modelopt else scales.float() / inverse
    wide = steps.repeat_interleave(16, 1)
    pairs, values = _e2m1(weight_NK / wide)
    module = name.removesuffix(".weight")
    if of_modelopt:
        whole = {f"{name}_scale_2": direct, f"{module}.input_scale": torch.tensor(0.1)}
        return {name: pairs, f"{name}_scale": scales} | whole, values * wide
    whole = {
        f"{name}_global_scale": inverse.reshape(1),
        f"{module}.input_global_scale": torch.ones(1),
    }
    return {f"{name}_packed": pairs, f"{name}_scale": scales} | whole, values * wide


def mxfp4_rows(name: str, weight_NK: torch.Tensor) -> Made:
    """compressed-tensors, `mxfp4-pack-quantized`."""
    groups = weight_NK.reshape(len(weight_NK), -1, 32)
    exponents = torch.floor(torch.log2(groups.abs().amax(-1))) - 2
    wide = (2.0**exponents).repeat_interleave(32, 1)
    pairs, values = _e2m1(weight_NK / wide)
    scales = (exponents + 127).to(torch.uint8)
    return {f"{name}_packed": pairs, f"{name}_scale": scales}, values * wide


def nf4(name: str, weight_NK: torch.Tensor, nested: bool = True, block: int = 64) -> Made:
    """bitsandbytes in 4 bits: blocks of the matrix as one row, `nested` with scales of 8 bits."""
    flat = weight_NK.flatten()
    table = torch.tensor(NF4)
    blocks = -(-len(flat) // block)
    absmax = torch.stack([flat[block * b : block * (b + 1)].abs().max() for b in range(blocks)])
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": block, "dtype": "float16"}
    state["shape"] = list(weight_NK.shape)
    tensors = {f"{name}.quant_map": table}
    used = absmax
    if nested:
        offset = absmax.mean()
        state |= {"nested_blocksize": 8, "nested_dtype": "float32", "nested_offset": float(offset)}
        steps = torch.linspace(-1, 1, 256)
        bytes_of, used = torch.zeros(blocks, dtype=torch.uint8), torch.zeros(blocks)
        of_group = torch.zeros(-(-blocks // 8))
        for b in range(blocks):
            group = slice(8 * (b // 8), 8 * (b // 8) + 8)
            of_group[b // 8] = (absmax[group] - offset).abs().max()
            bytes_of[b] = ((absmax[b] - offset) / of_group[b // 8] - steps).abs().argmin()
            used[b] = steps[int(bytes_of[b])] * of_group[b // 8] + offset
        tensors |= {
            f"{name}.absmax": bytes_of,
            f"{name}.nested_absmax": of_group,
            f"{name}.nested_quant_map": steps,
        }
    else:
        tensors[f"{name}.absmax"] = absmax
    codes, meant = [], torch.zeros(len(flat))
    for place, value in enumerate(flat.tolist()):
        scale = used[place // block]
        code = int((value / float(scale) - table).abs().argmin())
        codes.append(code)
        meant[place] = table[code] * scale
    pairs = [16 * high + low for high, low in zip(codes[0::2], codes[1::2], strict=True)]
    tensors[name] = torch.tensor(pairs, dtype=torch.uint8)[:, None]
    text = json.dumps(state).encode()
    tensors[f"{name}.quant_state.bitsandbytes__nf4"] = torch.tensor(list(text), dtype=torch.uint8)
    return tensors, meant.view(weight_NK.shape)


def bnb_int8(name: str, weight_NK: torch.Tensor) -> Made:
    """bitsandbytes in 8 bits: rows by their largest weight."""
    largest = weight_NK.abs().amax(1)
    codes = (weight_NK * (127 / largest[:, None])).round()
    module = name.removesuffix(".weight")
    tensors = {
        name: codes.to(torch.int8),
        f"{module}.SCB": largest,
        f"{module}.weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return tensors, (codes.double() * largest.double()[:, None] / 127).float()


def compressed(packing: str, **weights: Any) -> dict[str, Any]:
    """The configuration of compressed-tensors with one group."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": packing,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*mlp.gate$"],
        "quantization_status": "compressed",
    }


_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
_BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}
_PARTS = ("_proj.weight", "experts.")


def _method(make: Any, **config: Any) -> tuple[Any, dict[str, Any], tuple[str, ...]]:
    return make, config, _PARTS


PUBLISHED = {
    "awq": _method(awq, quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm"),
    "awq_sym": _method(
        partial(awq, symmetric=True),
        quant_method="auto-round",
        bits=4,
        group_size=32,
        sym=True,
        packing_format="auto_round:auto_awq",
    ),
    "gptq": _method(gptq, **_GPTQ),
    "gptq_asym": _method(partial(gptq, symmetric=False), **_GPTQ | {"sym": False}),
    "gptq_v2": _method(
        partial(gptq, symmetric=False, less=0, scale_dtype=torch.float32),
        **_GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"},
    ),
    "gptq_order": _method(partial(gptq, by_activations=True), **_GPTQ | {"desc_act": True}),
    "gptq_3_bits": _method(partial(gptq, bits=3), **_GPTQ | {"bits": 3}),
    "gptq_8_bits": _method(partial(gptq, bits=8), **_GPTQ | {"bits": 8}),
    "auto_round": _method(
        partial(gptq, order=False, group=-1),
        quant_method="auto-round",
        bits=4,
        group_size=-1,
        sym=True,
        data_type="int",
        packing_format="auto_round:auto_gptq",
    ),
    "packed_asym": _method(
        partial(packed, symmetric=False),
        **compressed(
            "pack-quantized", num_bits=4, type="int", strategy="group", group_size=32,
            symmetric=False,
        ),
    ),
    "packed_order": _method(
        partial(packed, by_activations=True),
        **compressed(
            "pack-quantized", num_bits=4, type="int", strategy="group", group_size=32,
            symmetric=True, actorder="group",
        ),
    ),
    "packed_8_bits": _method(
        partial(packed, bits=8, group=-1),
        **compressed(
            "pack-quantized", num_bits=8, type="int", strategy="channel", symmetric=True
        ),
    ),
    "int8_rows": _method(
        int8_rows,
        **compressed("int-quantized", num_bits=8, type="int", strategy="channel", symmetric=True),
    ),
    "fp8_rows": _method(
        fp8_rows,
        **compressed(
            "float-quantized", num_bits=8, type="float", strategy="channel", symmetric=True
        ),
    ),
    "fp8_whole": _method(
        partial(fp8_rows, whole=True),
        quant_method="fp8",
        activation_scheme="static",
        ignored_layers=["lm_head"],
    ),
    "fp8_inverse": _method(
        partial(fp8_rows, whole=True, more="_scale_inv"),
        quant_method="fp8",
        activation_scheme="static",
        weight_block_size=None,
        modules_to_not_convert=["lm_head"],
    ),
    "mxfp8": _method(
        mxfp8,
        **compressed(
            "mxfp8-quantized", num_bits=8, type="float", strategy="group", group_size=32,
            symmetric=True, scale_dtype="torch.uint8",
        ),
    ),
    "nvfp4": _method(
        nvfp4,
        **compressed(
            "nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group",
            group_size=16, symmetric=True,
        ),
    ),
    "nvfp4_modelopt": _method(
        partial(nvfp4, of_modelopt=True),
        quant_method="modelopt",
        quant_algo="NVFP4",
        ignore=["lm_head", "model.layers.*.mlp.gate"],
        producer={"name": "modelopt"},
    ),
    "mxfp4_rows": _method(
        mxfp4_rows,
        **compressed(
            "mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32,
            symmetric=True,
        ),
    ),
    "nf4": _method(nf4, **_BNB, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
    "nf4_plain": _method(partial(nf4, nested=False), **_BNB, bnb_4bit_quant_type="nf4"),
    "bnb_int8": _method(
        bnb_int8, quant_method="bitsandbytes", load_in_8bit=True, llm_int8_threshold=6.0
    ),
}  # fmt: skip
