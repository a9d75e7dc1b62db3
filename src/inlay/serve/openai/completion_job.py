"""Completion requests: checked, tokenised, and cut into one engine request per prompt."""

import contextlib
import re
import secrets
from typing import cast

import msgspec

from inlay.core.errors import RequestError
from inlay.core.messages import GenerateRequest
from inlay.core.token_ids import TOKEN_BYTES, pack_token_ids
from inlay.kernels import parse_token_ids
from inlay.serve.openai.protocol import CompletionRequest, decode_body
from inlay.serve.openai.sampling import build_params, check_n
from inlay.serve.openai.structure import find_structure
from inlay.serve.service import Service

_DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for completions that do not say how long they may get."""


class _Prompt(msgspec.Struct):
    prompt: str | list[str | int | list[int]] | None


_prompt_decoder = msgspec.json.Decoder(_Prompt)
_decoder = msgspec.json.Decoder(CompletionRequest)
_PROMPT = re.compile(rb'"prompt"[ \n\r\t]*:')
_TAKEN = b'"%b"' % secrets.token_hex(16).encode()
"""JSON in place of a prompt; no client can have written it."""


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


def read_completion(raw: bytes, vocab_size: int) -> tuple[CompletionRequest, list[str | bytes]]:
    """A body, and its prompts as `read_prompts` has them.

    A prompt of token ids is taken out before the rest is decoded, as a decoder takes longer to pass
    over it than all else does. If something else than the body's prompt was found, or there is
    anything wrong, the body is read as it came.
    """
    at = _PROMPT.search(raw)
    taken = None if at is None else parse_token_ids(raw, vocab_size, at.end())
    if at is not None and taken is not None:
        token_ids, end = taken
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            body = _decoder.decode(b"".join((raw[: at.end()], _TAKEN, raw[end:])))
            if bytes(body.prompt) == _TAKEN:
                return body, [token_ids]
    body = decode_body(raw, _decoder)
    return body, read_prompts(body.prompt, vocab_size)


async def prepare_completion(
    service: Service, body: CompletionRequest, prompts: list[str | bytes]
) -> CompletionJob:
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
        packed = await pack_prompt(service, prompt, body)
        wanted = 1 if drop_output else body.max_tokens
        params = build_params(
            body,
            defaults=service.defaults,
            limits=service.limits,
            max_tokens=service.output_limit(
                len(packed) // TOKEN_BYTES, wanted, _DEFAULT_MAX_TOKENS, param="max_tokens"
            ),
            logprobs=logprobs,
            prompt_logprobs=logprobs if echo else None,
            structure=structure,
        )
        requests.append(service.request("cmpl", body, packed, params))
        if not echo:
            texts.append("")
        elif isinstance(prompt, str):
            texts.append(prompt)
        else:
            skip = params.skip_special_tokens
            texts.append(service.text.decode(requests[-1].token_ids, skip_special_tokens=skip))
    return CompletionJob(
        answer_id=requests[0].request_id,
        name=name,
        requests=requests,
        prompts=texts,
        drop_output=drop_output,
    )


def read_prompts(prompt: msgspec.Raw, vocab_size: int) -> list[str | bytes]:
    """The prompts of a request: each a text, or packed token ids of the vocabulary.

    Raises:
        RequestError: it is neither a text, nor a list of token ids, nor a list of either.
    """
    json = bytes(prompt)
    whole = parse_token_ids(json, vocab_size)
    if whole is not None and whole[1] == len(json):
        return [whole[0]]
    found = decode_body(b'{"prompt":%b}' % json, _prompt_decoder).prompt
    if found is None:
        raise RequestError("prompt is missing", "prompt")
    if isinstance(found, str):
        return [found]
    if not found:
        raise RequestError("prompt is an empty list: it must have at least one entry", "prompt")
    if all(isinstance(entry, int) for entry in found):
        return [_packed(cast(list[int], found), vocab_size)]
    return [_entry(i, entry, vocab_size) for i, entry in enumerate(found)]


def _entry(i: int, entry: str | int | list[int], vocab_size: int) -> str | bytes:
    if isinstance(entry, int):
        raise RequestError(
            f"prompt[{i}] is a number beside texts or lists: a prompt is a text, a list of "
            "texts, a list of token ids, or a list of such lists",
            "prompt",
        )
    return entry if isinstance(entry, str) else _packed(entry, vocab_size)


def _packed(token_ids: list[int], vocab_size: int) -> bytes:
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
        bad = next(i for i in token_ids if not 0 <= i < vocab_size)
        raise RequestError(
            f"prompt has the token id {bad}: token ids are in 0..{vocab_size - 1}", "prompt"
        )
    return pack_token_ids(token_ids)


async def pack_prompt(service: Service, prompt: str | bytes, body: CompletionRequest) -> bytes:
    """The token ids of one of `read_prompts`, at least one."""
    if isinstance(prompt, str):
        special = body.add_special_tokens is not False
        prompt = pack_token_ids(await service.prompts.tokenise(prompt, add_special_tokens=special))
    if not prompt:
        raise RequestError("prompt is empty: it must have at least one token", "prompt")
    return prompt
