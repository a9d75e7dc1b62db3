"""Conversions of values, as the rows of several programs need them."""

import json
import math
from collections.abc import Mapping

from inlay.core.errors import ConfigError
from inlay.core.units import parse_bytes
from inlay.serve.migrate.rows import PARTED, Aside, Convert, Fate

_ON = frozenset({"", "true", "on", "yes", "1"})
_OFF = frozenset({"false", "off", "no", "0"})

LEFT_TO_INLAY = Aside(Fate.NEEDLESS, "that value leaves the choice to the program, as Inlay does")

INT4, INT8, INT8_GROUPS = "int4", "int8", "int8:g32"
"""Weight formats: 4 bits in groups of 32; 8 bits with a scale per row, or per group of 32."""


def whole(least: int = 1, most: int | None = None, below: Aside | None = None) -> Convert:
    """A whole number of a range.

    Args:
        below: what a smaller one means; without it, it is an error.
    """
    wanted = f"a whole number of at least {least}"
    if most is not None:
        wanted = f"a whole number in {least}..{most}"

    def convert(value: str) -> str | Aside:
        try:
            number = int(value)
        except ValueError:
            raise ValueError(wanted) from None
        if number < least and below is not None:
            return below
        if number < least or (most is not None and number > most):
            raise ValueError(wanted)
        return str(number)

    return convert


def threads(value: str) -> str | Aside:
    """A number of threads; less than one, or `$(nproc)`, is all."""
    if value.strip("$()`{}").startswith("nproc"):
        return Aside(Fate.NEEDLESS, "Inlay takes all physical cores that it may use by itself")
    return whole(1, 1024, below=LEFT_TO_INLAY)(value)


def tokens(least: int = 1) -> Convert:
    """A number of tokens as vLLM takes them: `8192`, `8k` (8000), `8K` (8192), `auto`, -1."""

    def convert(value: str) -> str | Aside:
        if value.lower() == "auto":
            return LEFT_TO_INLAY
        factors = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
        try:
            factor = factors.get(value[-1:], 1)
            number = int(float(value[:-1]) * factor) if factor > 1 else int(value)
        except (ValueError, OverflowError):
            raise ValueError("a number of tokens, such as 8192 or 8k") from None
        if number < 0:
            return LEFT_TO_INLAY
        if number < least:
            raise ValueError(f"a number of tokens of at least {least}")
        return str(number)

    return convert


def choice(table: Mapping[str, str | Aside], otherwise: str | Aside | None = None) -> Convert:
    """What stands for the value in a table, whatever its case."""
    folded = {name.lower(): value for name, value in table.items()}

    def convert(value: str) -> str | Aside:
        found = folded.get(value.lower(), otherwise)
        if found is None:
            raise ValueError("one of " + ", ".join(table))
        return found

    return convert


def switch(on: str | Aside, off: str | Aside = LEFT_TO_INLAY) -> Convert:
    """What a switch stands for, when it is on and when it is off."""

    def convert(value: str) -> str | Aside:
        if value.lower() not in _ON | _OFF:
            raise ValueError("on or off")
        return on if value.lower() in _ON else off

    return convert


def is_switch_word(word: str, *, digits: bool) -> bool:
    """Whether it may follow a switch: `on`, `false`, and 0 and 1 where digits may."""
    return word.lower() in (_ON | _OFF | {"auto"}) - {""} - (set() if digits else {"0", "1"})


def gibibytes(value: str) -> str | Aside:
    """A number of GiB as a size."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError("a number of GiB")
    written = f"{number:.3f}".rstrip("0").rstrip(".")
    return LEFT_TO_INLAY if written == "0" else f"{written}GiB"


def size(value: str) -> str:
    """Bytes, with or without a unit; of bare letters `G` counts in 1024, `g` in 1000."""
    if value[-1:].isalpha() and value[-2:-1].isdigit():
        value += "iB" if value[-1:].isupper() else "B"
    try:
        if parse_bytes(value) >= 1:
            return value
    except ConfigError:
        pass
    raise ValueError("a size such as 8GiB")


def names(value: str) -> str:
    """Names with commas between them, none of them empty."""
    found = [name.strip() for name in value.split(",")]
    if not all(found):
        raise ValueError("names with commas between them")
    return ",".join(found)


def adapters(value: str) -> str:
    """`NAME=DIR`, a directory alone, which is its name then, or vLLM's and SGLang's JSON; several
    with commas between them.
    """
    found: list[tuple[str, str]] = []
    left = value
    while left:
        if left.startswith("{"):
            try:
                one, end = json.JSONDecoder().raw_decode(left)
            except ValueError:
                one, end = {}, len(left)
            pair = [one.get(key) or one.get(f"lora_{key}") for key in ("name", "path")]
        else:
            end = left.find(",") if "," in left else len(left)
            name, equals, path = left[:end].partition("=")
            pair = [name, path if equals else name]
        left = left[end:].removeprefix(",")
        if not all(isinstance(part, str) and part for part in pair):
            raise ValueError("NAME=DIRECTORY, or JSON with a name and a path")
        found.append((pair[0], pair[1]))
    if not found:
        raise ValueError("NAME=DIRECTORY")
    return PARTED.join(f"{name}={path}" for name, path in found)


def first(value: str) -> str:
    """The first of several values."""
    return text(value.partition(",")[0])


def origins(value: str) -> str:
    """A JSON list of web origins, or one origin."""
    if not value.startswith("["):
        return text(value)
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError("a JSON list of origins")
    return ",".join(found)


def text(value: str) -> str:
    """Any text but none."""
    if not value:
        raise ValueError("not empty")
    return value


device = choice(
    {"auto": "auto", "cuda": "cuda", "cpu": "cpu"},
    otherwise=Aside(Fate.NOT_YET, "Inlay runs on CPUs, and on GPUs with CUDA"),
)
"""`--device` of vLLM and SGLang."""

log_level = choice(
    {name: name for name in ("debug", "info", "warning", "error")},
    otherwise=Aside(Fate.NEEDLESS, "the levels of INLAY_LOG are debug, info, warning and error"),
)
"""A level of the log."""

_FLOATS: dict[str, str | Aside] = {
    "auto": LEFT_TO_INLAY,
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float32": "float32",
    "float": "float32",
    "fp32": "float32",
    "f32": "float32",
}
weight_dtype = choice(
    {
        **_FLOATS,
        **dict.fromkeys(
            ("float16", "half", "fp16"),
            Aside(Fate.NEEDLESS, "float16 files are read and held as they are"),
        ),
    }
)
"""`--dtype` of the model."""

_KV_8_BITS = Aside(Fate.NOT_YET, "keys and values stay in the dtype of the model's files")
kv_dtype = choice(
    {
        **_FLOATS,
        **dict.fromkeys(
            ("float16", "half", "fp16", "f16"),
            Aside(Fate.NEEDLESS, "keys and values have the dtype of the files: the same 2 bytes"),
        ),
    },
    otherwise=_KV_8_BITS,
)
"""The dtype of keys and values."""

_UNQUANTISED = "Inlay quantises float weights itself; files that hold {} are not read"
# What only files have that are quantised already.
_PUBLISHED = (
    "auto-round",
    "awq",
    "awq_marlin",
    "compressed-tensors",
    "gptq",
    "gptq_marlin",
    "modelopt",
    "modelopt_fp4",
    "moe_wna16",
    "mxfp4",
)
quantization = choice(
    {
        **dict.fromkeys(("bitsandbytes", "w4afp8", "int4", "torchao_int4"), INT4),
        **dict.fromkeys(("fp8", "w8a8_fp8", "fbgemm_fp8", "ptpc_fp8", "int8"), INT8_GROUPS),
        **dict.fromkeys(("w8a8_int8", "experts_int8", "blockwise_int8"), INT8_GROUPS),
        **dict.fromkeys(
            _PUBLISHED,
            Aside(Fate.NEEDLESS, "what the files hold is read, as their config.json says"),
        ),
        "none": LEFT_TO_INLAY,
    },
    otherwise=Aside(Fate.NOT_YET, _UNQUANTISED.format("this format") + ": see --weight-format"),
)
"""`--quantization` of vLLM and SGLang."""
