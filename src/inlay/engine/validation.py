"""Checks a request against what the engine can do, before any work is spent on it."""

import math

from inlay.core.errors import ContextLengthError, RequestError
from inlay.core.messages import EngineInfo, GenerateRequest, SamplingParams
from inlay.core.token_ids import TOKEN_BYTES, unpack_token_ids


def check_request(request: GenerateRequest, info: EngineInfo, max_running: int) -> int:
    """Validate a request.

    Returns:
        Its output limit per choice, resolved against the context.

    Raises:
        ContextLengthError: prompt and output do not fit into the context.
        RequestError: a value is out of its range; `param` names the field.
    """
    _check_prompt(request.prompt, info.vocab_size)
    _check_params(request.params, info.vocab_size, max_running)
    _check_produced(request, info.vocab_size)
    return _output_limit(request, info.max_context_tokens)


def _output_limit(request: GenerateRequest, context: int) -> int:
    prompt, wanted = request.num_tokens, request.params.max_tokens
    if prompt + (1 if wanted is None else wanted) > context:
        if wanted is None or prompt >= context:
            message = f"the prompt has {prompt} tokens, and the context holds {context}"
        else:
            message = (
                f"the prompt has {prompt} tokens and max_tokens is {wanted}, together "
                f"{prompt + wanted}, but the context holds {context}"
            )
        raise ContextLengthError(f"{message}: shorten the prompt or the output", "prompt")
    return context - prompt if wanted is None else wanted


def _check_prompt(prompt: bytes, vocab_size: int) -> None:
    if not prompt:
        raise RequestError("the prompt is empty: it needs at least one token", "prompt")
    if len(prompt) % TOKEN_BYTES:
        raise RequestError(
            f"the prompt has {len(prompt)} bytes: token ids have {TOKEN_BYTES} each", "prompt"
        )
    highest = max(unpack_token_ids(prompt))
    if highest >= vocab_size:
        raise RequestError(
            f"the prompt has token id {highest}, but the model's ids are 0..{vocab_size - 1}",
            "prompt",
        )


def _check_produced(request: GenerateRequest, vocab_size: int) -> None:
    produced, num_choices = request.produced, request.params.n
    if produced and (len(produced) != num_choices or not any(p is not None for p in produced)):
        raise RequestError(
            f"produced has {len(produced)} entries for n = {num_choices} choices, of which "
            f"{sum(p is None for p in produced)} are finished: give one for each, one unfinished"
        )
    if any(not 0 <= token_id < vocab_size for tokens in produced for token_id in tokens or ()):
        raise RequestError(f"produced has a token id that is not in 0..{vocab_size - 1}")
    if request.phase == "decode" and request.params.prompt_logprobs is not None:
        raise RequestError(
            "prompt_logprobs need the prompt to be computed where its answer is: send the request "
            "to one instance",
            "prompt_logprobs",
        )


def _check_params(params: SamplingParams, vocab_size: int, max_running: int) -> None:
    in_range = (
        ("temperature", params.temperature, 0.0, math.inf),
        ("top_k", params.top_k, 0, math.inf),
        ("min_p", params.min_p, 0.0, 1.0),
        ("presence_penalty", params.presence_penalty, -2.0, 2.0),
        ("frequency_penalty", params.frequency_penalty, -2.0, 2.0),
        ("repetition_penalty", params.repetition_penalty, 0.0, 1000.0),
        ("max_tokens", params.max_tokens or 0, 0, math.inf),
        ("min_tokens", params.min_tokens, 0, math.inf),
        ("n", params.n, 1, max_running),
        ("logprobs", params.logprobs or 0, 0, vocab_size),
        ("prompt_logprobs", params.prompt_logprobs or 0, 0, vocab_size),
    )
    for name, value, low, high in in_range:
        if not (low <= value <= high and math.isfinite(value)):
            limit = f"at least {low}" if high == math.inf else f"in {low}..{high}"
            raise RequestError(f"{name} must be {limit}, got {value}", name)
    for name, value in (
        ("top_p", params.top_p),
        ("repetition_penalty", params.repetition_penalty),
    ):
        if not (value > 0 and math.isfinite(value)) or (name == "top_p" and value > 1):
            limit = "in (0, 1]" if name == "top_p" else "above 0"
            raise RequestError(f"{name} must be {limit}, got {value}", name)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise RequestError(
            f"min_tokens {params.min_tokens} is above max_tokens {params.max_tokens}", "min_tokens"
        )
    if not all(params.stop):
        raise RequestError("stop must not hold an empty text", "stop")
    for name, ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        for token_id in ids:
            if not 0 <= token_id < vocab_size:
                raise RequestError(
                    f"{name} names token id {token_id}, but the model's ids are "
                    f"0..{vocab_size - 1}",
                    name,
                )
    for bias in params.logit_bias.values():
        if not -100 <= bias <= 100:
            raise RequestError(f"logit_bias must be in -100..100, got {bias}", "logit_bias")
