"""Adapters in memory: pairs of matrices by the module that they belong to, and their files' keys.

Three layouts of routed experts are read: one pair for each expert under the names of single
modules, as vLLM and SGLang read them; PEFT's, in which those of a layer are stacked; and that of
KTransformers. The first is what is written. Shapes: r rank, N rows, M columns, E experts.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inlay.core.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from inlay.core.model_shape import ModelShape
from inlay.core.text_files import read_json_object
from inlay.models.float_arrays import Array, to_float32
from inlay.models.kt_manifest import check_manifest
from inlay.models.safetensors_file import SafetensorsFile
from inlay.models.targets import Target, targets_of
from inlay.models.weight_names import names_of

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
PREFIX = "base_model.model."
_KT_WEIGHTS = "fused_expert_lora.safetensors"
_KEY = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])(\.default)?\.weight")
_KT_KEY = re.compile(
    r"(.*\.)?layers\.(?P<layer>\d+)\..*?(?P<part>gate|up|down)_lora_(?P<side>[ab])"
)
_DTYPES = ("F32", "BF16", "F16")
_MERGE = "merge it into the model with PEFT (merge_and_unload), and name the result"
_MAX_REPEATS = 4  # in a pattern of names
# PEFT wraps the experts of a layer twice: gate and up inside, down outside.
_STACKED = {".experts.base_layer": ("expert_gate", "expert_up"), ".experts": ("expert_down",)}


@dataclass(frozen=True)
class AdapterPair:
    """What is added to one matrix: `scale * B A`.

    Attributes:
        a: `[r, M]`.
        b: `[N, r]`.
    """

    a: Array
    b: Array
    scale: float

    def rows(self, part: slice) -> Array:
        """Some rows of the product, float32."""
        product = to_float32(self.b[part]) @ to_float32(self.a)
        product *= np.float32(self.scale)
        return product


@dataclass(frozen=True)
class Adapter:
    """An adapter of one model.

    Attributes:
        pairs: by module, such as `model.layers.0.mlp.experts.3.up_proj`; views of mapped files.
        config: `adapter_config.json`.
        fingerprint: of the content, 32 hex digits.
    """

    pairs: Mapping[str, AdapterPair]
    config: Mapping[str, Any]
    fingerprint: str


def read_adapter(directory: Path, shape: ModelShape) -> Adapter:
    """Read an adapter in any of the three layouts.

    Raises:
        ModelNotFoundError: it holds none.
        ModelFileError: a file is damaged, or belongs to another model; nothing is left out.
        UnsupportedModelError: no LoRA, or a variant of it that adds something else.

    Cost: pages of files are read when pairs are used, but for the fingerprint.
    """
    config = _read_config(directory)
    names = [name for name in (WEIGHTS, _KT_WEIGHTS) if (directory / name).is_file()]
    if not names:
        raise ModelNotFoundError(f"{directory} holds no {WEIGHTS}: name an adapter's directory")
    check_manifest(directory, names)
    digest = hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=16)
    sides: dict[str, dict[str, Array]] = {}
    reader = _Reader(shape, directory)
    for name in names:
        with (directory / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, hashlib.blake2b).digest())
        for key, tensor in _tensors(directory / name):
            for module, side, matrix in reader.matrices(key, tensor):
                sides.setdefault(module, {})[side] = matrix
    if not sides:
        raise ModelFileError(f"{directory} holds no matrices: write the adapter again")
    ranks = {config["r"], *(config.get("rank_pattern") or {}).values()}
    pairs = {}
    for module, both in sides.items():
        if both.keys() != {"A", "B"}:
            raise ModelFileError(f"{directory}: {module} has lora_{'/'.join(both)} alone")
        reader.check(module, both["A"], both["B"])
        rank = len(both["A"])
        if rank not in ranks:
            given = ", ".join(map(str, sorted(ranks)))
            raise ModelFileError(
                f"{directory}: {module} has rank {rank}, and {CONFIG} gives {given}: files of two "
                "adapters are mixed"
            )
        scale = _scale(config, module, rank)
        pairs[module] = AdapterPair(both["A"], both["B"], scale)
    return Adapter(pairs, config, digest.hexdigest())


def scale_of(rank: int, alpha: float, *, rslora: bool) -> float:
    """The factor of B A.

    Source: LoRA (arXiv 2106.09685); rsLoRA (arXiv 2312.03732), which divides by the root.
    """
    return alpha / (math.sqrt(rank) if rslora else rank)


class _Reader:
    """Knows which modules a model has, and takes stacked matrices apart."""

    def __init__(self, shape: ModelShape, directory: Path) -> None:
        self._directory, self._experts = directory, shape.experts
        # Of gate and up in one matrix, which alternate, or follow each other.
        self._rows = (
            {"expert_gate": slice(0, None, 2), "expert_up": slice(1, None, 2)}
            if names_of(shape).columns_first
            else {
                "expert_gate": slice(None, shape.moe_intermediate),
                "expert_up": slice(shape.moe_intermediate, None),
            }
        )
        names = names_of(shape).names
        self._vocabulary = tuple(
            names[part].removesuffix("weight") for part in ("embedding", "head")
        )
        row = names_of(shape)
        self._of_several = {
            row.names[whole].format(layer=layer).rpartition(".")[0]
            for whole in row.stacked
            for layer in range(shape.layers)
        }
        self._known: dict[str, Target] = {}
        self._places: dict[tuple[int, str], Target] = {}
        for target in targets_of(shape):
            self._places[target.layer, target.part] = target
            self._known |= dict.fromkeys(target.modules, target)

    def matrices(self, key: str, tensor: Array) -> Iterator[tuple[str, str, Array]]:
        """Modules, sides (A or B) and matrices that one tensor of a file holds."""
        if match := _KT_KEY.fullmatch(key):
            target = self._target(int(match["layer"]), f"expert_{match['part']}", key)
            if tensor.ndim != 3 or len(tensor) != self._experts:
                raise self._other_experts(key, tensor)
            for expert, matrix in enumerate(tensor):
                yield target.name_of(expert), match["side"].upper(), matrix
            return
        name = key.removeprefix(PREFIX)
        if name.startswith(self._vocabulary):
            raise UnsupportedModelError(
                f"{self._directory}: {key} changes the embedding or the output matrix, which is "
                f"not read of adapters: {_MERGE}"
            )
        match = _KEY.fullmatch(name)
        if match is None:
            raise UnsupportedModelError(
                f"{self._directory}: {key} is no matrix of a LoRA: modules_to_save, DoRA and "
                "adapters of other kinds are not read"
            )
        module, side = match["module"], match["side"]
        if module in self._known:
            yield module, side, tensor
            return
        if module in self._of_several:
            raise UnsupportedModelError(
                f"{self._directory}: {key} changes several matrices that lie in one tensor, which "
                f"is not read of adapters: {_MERGE}"
            )
        for end, parts in _STACKED.items():
            if match := re.fullmatch(rf".*\blayers\.(\d+)\.mlp{re.escape(end)}", module):
                for part in parts:
                    yield from self._apart(self._target(int(match[1]), part, key), side, tensor)
                return
        raise self._unknown(key)

    def _apart(self, target: Target, side: str, tensor: Array) -> Iterator[tuple[str, str, Array]]:
        """Rows of A are one expert's after another's, columns of B one expert's each in turn."""
        if tensor.ndim != 2 or tensor.shape[0 if side == "A" else 1] % self._experts:
            raise self._other_experts(f"lora_{side} of {target.path}", tensor)
        if side == "A":
            parts = tensor.reshape(self._experts, -1, tensor.shape[1])
        else:
            parts = tensor.reshape(len(tensor), -1, self._experts).transpose(2, 0, 1)
            if target.part in ("expert_gate", "expert_up"):
                parts = parts[:, self._rows[target.part]]
        for expert, matrix in enumerate(parts):
            yield target.name_of(expert), side, matrix

    def _target(self, layer: int, part: str, key: str) -> Target:
        if (layer, part) not in self._places:
            raise self._unknown(key)
        return self._places[layer, part]

    def _other_experts(self, what: str, tensor: Array) -> ModelFileError:
        return ModelFileError(
            f"{self._directory}: {what} is {list(tensor.shape)}, and the model has {self._experts} "
            "experts: the adapter is another model's"
        )

    def _unknown(self, key: str) -> ModelFileError:
        return ModelFileError(
            f"{self._directory}: the model has no module for {key}: the adapter is another model's"
        )

    def check(self, module: str, a: Array, b: Array) -> None:
        """Refuse matrices that do not fit."""
        target = self._known.get(module)
        if target is None:
            raise self._unknown(module)
        if a.ndim != 2 or a.shape[1] != target.columns or b.shape != (target.rows, len(a)):
            raise ModelFileError(
                f"{self._directory}: {module} has A {list(a.shape)} and B {list(b.shape)}, and the "
                f"model's matrix is {[target.rows, target.columns]}: the adapter is another model's"
            )


def _read_config(directory: Path) -> dict[str, Any]:
    file = directory / CONFIG
    try:
        config = read_json_object(file, remedy="write the adapter again")
    except OSError:
        raise ModelNotFoundError(f"{directory} holds no {CONFIG}: name an adapter's dir") from None
    if config.get("peft_type", "LORA") != "LORA":
        raise UnsupportedModelError(
            f"{file}: peft_type {config['peft_type']} is not read: only LORA"
        )
    for key in ("use_dora", "lora_bias", "modules_to_save", "fan_in_fan_out"):
        if config.get(key):
            raise UnsupportedModelError(
                f"{file}: {key} is {json.dumps(config[key])}, which is not read of adapters: "
                f"{_MERGE}"
            )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not _is_rank(rank) or not _is_number(alpha):
        raise ModelFileError(
            f"{file} has r {str(rank)[:40]} and lora_alpha {str(alpha)[:40]}: r must be a whole "
            "number from 1, and lora_alpha a number that float32 holds"
        )
    for key, fits in (("alpha_pattern", _is_number), ("rank_pattern", _is_rank)):
        patterns = config.get(key) or {}
        if not isinstance(patterns, dict) or not all(map(fits, patterns.values())):
            raise ModelFileError(f"{file}: {key} must have a number for each pattern")
    for pattern in config.get("alpha_pattern") or {}:
        _check_pattern(file, pattern)
    return config


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= float(np.finfo(np.float32).max)


def _is_rank(value: Any) -> bool:
    return type(value) is int and value >= 1


def _check_pattern(file: Path, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ModelFileError(f"{file}: alpha_pattern {pattern!r} is none ({error})") from None
    # Such may take longer than anybody lives, while nothing else in the process goes on.
    if re.search(r"\)[*+{]", pattern) or sum(map(pattern.count, "*+{")) > _MAX_REPEATS:
        raise ModelFileError(
            f"{file}: alpha_pattern {pattern[:80]!r} repeats a group, or has more than "
            f"{_MAX_REPEATS} repetitions: give names of modules"
        )


def _scale(config: Mapping[str, Any], module: str, rank: int) -> float:
    """Of a pair; patterns may give some modules another alpha."""
    alpha = config["lora_alpha"]
    # A pattern of stacked experts names their parameter.
    names = [module, re.sub(r"\.\d+\.(gate|up)_proj$", ".gate_up_proj", module)]
    names.append(re.sub(r"\.experts\.\d+\.", ".experts.", module))
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if any(re.fullmatch(rf"(.*\.)?({pattern})", name) for name in names):
            alpha = value
    return scale_of(rank, float(alpha), rslora=bool(config.get("use_rslora")))


def _tensors(file: Path) -> Iterator[tuple[str, Array]]:
    opened = SafetensorsFile(file)
    for key, stored in opened.tensors.items():
        if stored.dtype not in _DTYPES:
            raise UnsupportedModelError(
                f"{file}: {key} is {stored.dtype}: matrices are read in float32, bfloat16 and "
                "float16"
            )
        yield key, opened.array(key)
