"""Completion requests: checked, tokenised, and cut into one engine request per prompt."""

import struct
from collections.abc import Sequence
from typing import cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from inlay.core.errors import RequestError
from inlay.core.messages import GenerateRequest
from inlay.serve.openai.protocol import CompletionRequest
from inlay.serve.openai.sampling import build_params, check_n
from inlay.serve.openai.structure import find_structure
from inlay.serve.service import Service

_DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for completions that do not say how long they may get."""


class CompletionJob(msgspec.Struct, frozen=True, kw_only=True):
    """A completion request, checked: one engine request per prompt.

    Attributes:
        prompts: the text that `echo` repeats, one per request.
        drop_output: the request asked for no token at all (`max_tokens: 0`), only for the echo.
    """

    answer_id: str
    name: str
    requests: list[GenerateRequest]
    prompts: list[str]
    drop_output: bool

    @property
    def choices_per_prompt(self) -> int:
        """The request's `n`."""
        return self.requests[0].params.n


async def prepare_completion(service: Service, body: CompletionRequest) -> CompletionJob:
    """Check a completion request and tokenise its prompts."""
    name = service.check_model(body.model)
    if body.suffix:
        raise RequestError("suffix is not supported: this model only continues texts", "suffix")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise RequestError(
            f"best_of is {body.best_of}: choosing the best of several is not supported, so it "
            f"must equal n ({body.n or 1}) or be left out",
            "best_of",
        )
    logprobs = body.logprobs
    if logprobs is not None:
        logprobs = service.limits.check_logprobs("logprobs", logprobs)
    echo = bool(body.echo)
    prompts = _prompts(body.prompt)
    n = check_n(body.n, service.limits)
    if len(prompts) * n > service.limits.max_choices:
        raise RequestError(
            f"{len(prompts)} prompts with n {n} are more than "
            f"{service.limits.max_choices} choices, this server's limit",
            "n",
        )
    structure = find_structure(body)
    drop_output = echo and body.max_tokens == 0
    requests, texts = [], []
    for prompt in prompts:
        ids = await _prompt_ids(service, prompt, body)
        wanted = 1 if drop_output else body.max_tokens
        params = build_params(
            body,
            defaults=service.defaults,
            limits=service.limits,
            max_tokens=service.output_limit(
                len(ids), wanted, _DEFAULT_MAX_TOKENS, param="max_tokens"
            ),
            logprobs=logprobs,
            prompt_logprobs=logprobs if echo else None,
            structure=structure,
        )
        requests.append(service.request("cmpl", body, ids, params))
        if not echo:
            texts.append("")
        elif isinstance(prompt, str):
            texts.append(prompt)
        else:
            skip = params.skip_special_tokens
            texts.append(service.text.decode(ids, skip_special_tokens=skip))
    return CompletionJob(
        answer_id=requests[0].request_id,
        name=name,
        requests=requests,
        prompts=texts,
        drop_output=drop_output,
    )


def _prompts(prompt: str | list[str | int | list[int]] | None) -> list[str | list[int]]:
    """The prompts of a request: one text, one list of tokens, or a list of either."""
    if prompt is None:
        raise RequestError("prompt is missing", "prompt")
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("prompt is an empty list: it must have at least one entry", "prompt")
    if _packed(prompt) is not None or all(isinstance(entry, int) for entry in prompt):
        return [cast(list[int], prompt)]
    found: list[str | list[int]] = []
    for i, entry in enumerate(prompt):
        if isinstance(entry, int):
            raise RequestError(
                f"prompt[{i}] is a number beside texts or lists: a prompt is a text, a list of "
                "texts, a list of token ids, or a list of such lists",
                "prompt",
            )
        found.append(entry)
    return found


def _packed(prompt: Sequence[object]) -> NDArray[np.int64] | None:
    """Entries that are numbers as an array, else None. Prompts are long, and loops are slow."""
    try:
        return np.frombuffer(struct.pack(f"{len(prompt)}q", *prompt), np.int64)
    except struct.error:
        return None


async def _prompt_ids(
    service: Service, prompt: str | list[int], body: CompletionRequest
) -> list[int]:
    if isinstance(prompt, str):
        special = body.add_special_tokens is not False
        ids = await service.prompts.tokenise(prompt, add_special_tokens=special)
    else:
        ids = prompt
        vocab_size = service.limits.vocab_size
        packed = _packed(ids)
        if packed is None or (ids and not 0 <= packed.min() <= packed.max() < vocab_size):
            bad = next(i for i in ids if not 0 <= i < vocab_size)
            raise RequestError(
                f"prompt has the token id {bad}: token ids are in 0..{vocab_size - 1}", "prompt"
            )
    if not ids:
        raise RequestError("prompt is empty: it must have at least one token", "prompt")
    return ids
