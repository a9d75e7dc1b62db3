"""What the name of a model says about its files."""

import re

MODEL = "MODEL"
"""Stands on the line where the command names no model that Inlay can read."""

GGUF_FILE = "#gguf_file"
"""The target of a flag that says which file of a repository it is."""

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_UNREAD = re.compile(
    r"(?i)(?:^|[-_.])(aqlm|eetq|exl2|exl3|hqq|mlx|quip)"
    r"(?=$|[-_.])"
)
_QUANT = re.compile(
    r"(?i)(?:^|[-_.:/])((?:UD-)?(?:(?:I?Q|TQ)\d\w*|BF16|FP?16|FP?32|MXFP4\w*))(?=$|[-.])"
)
_HUB_URL = re.compile(
    r"https://huggingface\.co/(?P<name>[\w.-]+/[\w.-]+)/(?:resolve|blob)/(?P<revision>[^/]+)/"
    r"(?P<file>[^?]+)(?:\?.*)?"
)
_DEFAULT_QUANT = "Q4_K_M"  # what llama.cpp fetches where `-hf` names none


def is_hub_name(name: str) -> bool:
    """Whether it is `org/name` rather than a directory."""
    return _HUB_NAME.fullmatch(name) is not None


def unread_format(name: str) -> str | None:
    """The format of files, as the last part of a name says it, that Inlay cannot read."""
    found = _UNREAD.findall(name.rstrip("/").rpartition("/")[2])
    return str(found[-1]) if found else None


def gguf_quant(name: str) -> str | None:
    """`Q4_K_M` of a GGUF's file or `NAME:QUANT`; None where the name does not tell."""
    found = _QUANT.findall(name.rstrip("/").rpartition("/")[2])
    return str(found[-1]).upper() if found else None


def unread_quant(name: str) -> str | None:
    """The quantisation of a GGUF that llama.cpp and its library do not know."""
    quant = gguf_quant(name) if is_gguf(name) else None
    return quant if quant and re.fullmatch(r"IQ\d_K(SS?|T|L)?|I?Q\w+_R\d+", quant) else None


def gguf_name(name: str, file: str | None) -> str | None:
    """What `inlay serve` calls a GGUF that another program calls by a path, a hub name or a URL.

    Args:
        file: of the repository `name`, if one is named; None: llama.cpp's choice.

    Returns:
        A path as it is, or `NAME:QUANT`; None where neither can be told.
    """
    url = _HUB_URL.fullmatch(name)
    if url is not None:
        quant = gguf_quant(url["file"])
        revision = "" if url["revision"] == "main" else f"@{url['revision']}"
        return quant and f"{url['name']}{revision}:{quant}"
    if "://" in name:
        return None
    if not is_hub_name(name) or name.lower().endswith(".gguf"):
        return name
    quant = _DEFAULT_QUANT if file is None else gguf_quant(file)
    return quant and f"{name}:{quant}"


def is_gguf(name: str) -> bool:
    """Whether it names a file, or a quantisation on the hub."""
    return name.lower().endswith(".gguf") or ":" in name.rpartition("/")[2]
