"""From request fields to `SamplingParams`: ranges, defaults and combinations."""

from dataclasses import dataclass
from typing import TypeVar

from inlay.core.errors import RequestError
from inlay.core.messages import SamplingParams, Structure
from inlay.serve.openai.protocol import GenerationBody

T = TypeVar("T")

_MAX_SEED = 2**63 - 1
_MAX_STOPS = 128
_MAX_DIGITS = 20


@dataclass(frozen=True, kw_only=True)
class SamplingDefaults:
    """What a model's `generation_config.json` says about fields that a request leaves out."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class SamplingLimits:
    """The server's bounds on what a request may ask for.

    Attributes:
        max_n: largest `n`: the choices of one prompt run together in the engine.
        max_choices: largest number of prompts times `n` of one request.
    """

    vocab_size: int
    max_n: int
    max_choices: int
    max_logprobs: int

    def check_logprobs(self, param: str, count: int) -> int:
        """Check a number of alternatives per token."""
        if not 0 <= count <= self.max_logprobs:
            raise RequestError(f"{param} is {count}: it must be in 0..{self.max_logprobs}", param)
        return count


def build_params(
    body: GenerationBody,
    *,
    defaults: SamplingDefaults,
    limits: SamplingLimits,
    max_tokens: int | None,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    structure: Structure | None = None,
    skip_special_tokens: bool | None = None,
) -> SamplingParams:
    """Check the sampling fields of a request and fill in the defaults.

    Raises:
        RequestError: a field is outside its range; the message gives value and range.
    """
    top_k = _or(body.top_k, defaults.top_k)
    if top_k == -1:
        top_k = 0
    skip = skip_special_tokens
    if skip is None:
        skip = _or(body.skip_special_tokens, True)
    params = SamplingParams(
        temperature=_within("temperature", _or(body.temperature, defaults.temperature), 0, 100),
        top_p=_above("top_p", _within("top_p", _or(body.top_p, defaults.top_p), 0, 1)),
        top_k=_whole("top_k", top_k, 0, 2**31 - 1),
        min_p=_within("min_p", _or(body.min_p, defaults.min_p), 0, 1),
        presence_penalty=_within("presence_penalty", _or(body.presence_penalty, 0.0), -2, 2),
        frequency_penalty=_within("frequency_penalty", _or(body.frequency_penalty, 0.0), -2, 2),
        repetition_penalty=_above(
            "repetition_penalty",
            _within(
                "repetition_penalty",
                _or(body.repetition_penalty, defaults.repetition_penalty),
                0,
                1000,
            ),
        ),
        logit_bias=_logit_bias(body.logit_bias, limits.vocab_size),
        stop=_stops(body.stop),
        stop_token_ids=_token_ids(body.stop_token_ids, limits.vocab_size),
        max_tokens=max_tokens,
        min_tokens=_whole("min_tokens", _or(body.min_tokens, 0), 0, 2**31 - 1),
        ignore_eos=_or(body.ignore_eos, False),
        seed=None if body.seed is None else _seed(body.seed),
        n=check_n(body.n, limits),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        structure=structure,
        skip_special_tokens=skip,
    )
    if max_tokens is not None and params.min_tokens > max_tokens:
        raise RequestError(
            f"min_tokens is {params.min_tokens}: it must not be above max_tokens ({max_tokens})",
            param="min_tokens",
        )
    return params


def check_n(n: int | None, limits: SamplingLimits) -> int:
    """The number of choices per prompt.

    Raises:
        RequestError: more than the engine runs together, or none.
    """
    return _whole("n", _or(n, 1), 1, limits.max_n)


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def _within(name: str, value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise RequestError(f"{name} is {value}: it must be in {low}..{high}", param=name)
    return float(value)


def _above(name: str, value: float) -> float:
    if value <= 0:
        raise RequestError(f"{name} is {value}: it must be above 0", param=name)
    return value


def _whole(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise RequestError(f"{name} is {value}: it must be in {low}..{high}", param=name)
    return value


def _seed(seed: int) -> int:
    if not -(2**63) <= seed <= _MAX_SEED:
        raise RequestError(f"seed is {seed}: it must fit into 64 bits", param="seed")
    return seed & _MAX_SEED


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > _MAX_STOPS:
        raise RequestError(f"stop has {len(stops)} texts: at most {_MAX_STOPS}", param="stop")
    if any(not text for text in stops):
        raise RequestError("stop has an empty text, which would end every answer", param="stop")
    return stops


def _token_ids(ids: list[int] | None, vocab_size: int) -> tuple[int, ...]:
    for token_id in ids or ():
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"stop_token_ids has {token_id}: token ids are in 0..{vocab_size - 1}",
                param="stop_token_ids",
            )
    return tuple(ids or ())


def _logit_bias(bias: dict[str, float] | None, vocab_size: int) -> dict[int, float]:
    found: dict[int, float] = {}
    for key, value in (bias or {}).items():
        is_number = key.isascii() and key.isdigit() and len(key) <= _MAX_DIGITS
        if not is_number or int(key) >= vocab_size:
            shown = key if len(key) <= _MAX_DIGITS else key[:_MAX_DIGITS] + "..."
            raise RequestError(
                f"logit_bias has the key {shown!r}: keys are token ids in 0..{vocab_size - 1}",
                param="logit_bias",
            )
        found[int(key)] = _within(f"logit_bias[{key}]", value, -100, 100)
    return found
