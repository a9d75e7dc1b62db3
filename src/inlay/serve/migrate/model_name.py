"""What the name of a model says about its files."""

import re

MODEL = "MODEL"
"""Stands on the line where the command names no model that Inlay can read."""

GGUF_FILE = "#gguf_file"
"""The target of a flag that says which file of a repository it is."""

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_UNREAD = re.compile(
    r"(?i)(?:^|[-_.])(awq|gptq|nvfp4|bnb|w8a8|w8a16|int4|int8|4bit|8bit|exl2)"
    r"(?=$|[-_.])"
)
_QUANT = re.compile(r"(?i)(?:^|[-_.:/])((?:I?Q|TQ)\d\w*|BF16|F16|FP16|F32|MXFP4\w*)(?=$|[-.])")
_DEFAULT_QUANT = "Q4_K_M"  # what llama.cpp fetches where `-hf` names none


def is_hub_name(name: str) -> bool:
    """Whether it is `org/name` rather than a directory."""
    return _HUB_NAME.fullmatch(name) is not None


def unread_format(name: str) -> str | None:
    """The format of files, as the last part of a name says it, that Inlay cannot read."""
    found = _UNREAD.findall(name.rstrip("/").rpartition("/")[2])
    return str(found[-1]) if found else None


def gguf_quant(name: str) -> str | None:
    """`Q4_K_M` of a GGUF's file or repository; None where its name does not tell."""
    file = name.rstrip("/").rpartition("/")[2]
    found = _QUANT.findall(file)
    if found:
        return str(found[-1]).upper()
    return None if file.lower().endswith(".gguf") or "$" in file else _DEFAULT_QUANT


def nearest_format(quant: str) -> str | None:
    """The weight format of about as many bits; None for those of float16, which `auto` reads."""
    if quant in ("F32", "BF16"):
        return {"F32": "float32", "BF16": "bfloat16"}[quant]
    if quant in ("F16", "FP16"):
        return None
    return "int8:g32" if re.match(r"I?Q[5-8]", quant) else "int4"
