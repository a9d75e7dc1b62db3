"""How engines are told to sample: one table of what each calls it."""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from inlay.core.errors import RequestError
from inlay.core.messages import SamplingParams, Structure


def any_of(choices: str) -> str:
    """A regex of texts, from a JSON list of them."""
    marks = r"\.^$*+?{}[]|()"
    escaped = ("".join(f"\\{c}" if c in marks else c for c in one) for one in json.loads(choices))
    return f"({'|'.join(escaped)})"


class _As(NamedTuple):
    """What an engine calls something, and how it wants the value."""

    name: str
    value: Callable[[Any], Any] = lambda value: value


_ENGINES = ("vllm", "sglang")
"""Of the columns below."""


def _both(name: str, value: Callable[[Any], Any] = lambda value: value) -> tuple[_As, _As]:
    return _As(name, value), _As(name, value)


_FIELDS: Mapping[str, tuple[_As, _As]] = {
    "temperature": _both("temperature"),
    "top_p": _both("top_p"),
    "top_k": (_As("top_k"), _As("top_k", lambda top_k: top_k or -1)),
    "min_p": _both("min_p"),
    "presence_penalty": _both("presence_penalty"),
    "frequency_penalty": _both("frequency_penalty"),
    "repetition_penalty": _both("repetition_penalty"),
    "logit_bias": _both("logit_bias", lambda bias: {str(one): by for one, by in bias.items()}),
    "stop": _both("stop", list),
    "stop_token_ids": _both("stop_token_ids", list),
    "max_tokens": (_As("max_tokens"), _As("max_new_tokens")),
    "min_tokens": (_As("min_tokens"), _As("min_new_tokens")),
    "ignore_eos": _both("ignore_eos"),
    "seed": (_As("seed"), _As("sampling_seed", lambda seed: seed & 0x7FFFFFFF)),
    "skip_special_tokens": _both("skip_special_tokens"),
}
_STRUCTURES: Mapping[str, tuple[_As | None, _As | None]] = {
    "json_object": (
        _As("json_object", lambda _: True),
        _As("json_schema", lambda _: '{"type": "object"}'),
    ),
    "json_schema": (_As("json", json.loads), _As("json_schema")),
    "regex": (_As("regex"), _As("regex")),
    "choice": (_As("choice", json.loads), _As("regex", any_of)),
    "lark": (_As("grammar"), None),
}


def sampling_fields(engine: str, params: SamplingParams) -> dict[str, Any]:
    """Parameters as an engine takes them. What is not set is left out: None, and an empty bias."""
    column = _ENGINES.index(engine)
    return {
        known[column].name: known[column].value(value)
        for ours, known in _FIELDS.items()
        if (value := getattr(params, ours)) is not None and value != {}
    }


def structure_fields(engine: str, structure: Structure | None) -> dict[str, Any]:
    """A grammar as an engine takes it; empty: there is none.

    Raises:
        RequestError: it takes none of this kind.
    """
    if structure is None:
        return {}
    known = _STRUCTURES[structure.kind][_ENGINES.index(engine)]
    if known is None:
        raise RequestError(
            f"grammars of the kind {structure.kind} are not to be had from {engine}", "structure"
        )
    return {known.name: known.value(structure.value)}


def refuse_prompt_logprobs(params: SamplingParams) -> None:
    """Streams have none of them."""
    if params.prompt_logprobs is not None:
        raise RequestError(
            "log probabilities of the prompt are not to be had from this engine while it streams: "
            "ask it directly",
            "prompt_logprobs",
        )
