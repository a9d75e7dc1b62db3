"""`/tokenize`, `/detokenize` and `/tokenizer_info`, in vLLM's form."""

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from inlay.core.errors import RequestError
from inlay.serve.openai.errors import json_response
from inlay.serve.openai.http import read_body
from inlay.serve.openai.protocol import (
    ChatRequest,
    DetokenizeRequest,
    TokenizeRequest,
    decode_body,
)
from inlay.serve.openai.tools import plan_tools
from inlay.serve.service import Service

_tokenize = msgspec.json.Decoder(TokenizeRequest)
_detokenize = msgspec.json.Decoder(DetokenizeRequest)


class TokenizeRoutes:
    """Texts and chats to tokens, and back."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def tokenize(self, request: Request) -> Response:
        """Tokens of a prompt, or of a chat as the model would see it."""
        service = self._service
        body = decode_body(await read_body(request, service.config.max_body_bytes), _tokenize)
        service.check_model(body.model)
        if body.messages is not None:
            plan = plan_tools(body.tools, None, None)
            chat = ChatRequest(
                messages=body.messages,
                chat_template_kwargs=body.chat_template_kwargs,
                add_generation_prompt=body.add_generation_prompt,
            )
            _, ids = await service.prompts.render(chat, plan)
        elif body.prompt is not None:
            special = body.add_special_tokens is not False
            ids = await service.prompts.tokenise(body.prompt, add_special_tokens=special)
        else:
            raise RequestError("prompt is missing: give prompt or messages", "prompt")
        answer: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": service.info.max_context_tokens,
            "tokens": ids,
            "token_strs": None,
        }
        if body.return_token_strs:
            answer["token_strs"] = [service.text.token_text(i) for i in ids]
        return json_response(answer)

    async def detokenize(self, request: Request) -> Response:
        """The text of tokens, special ones included."""
        service = self._service
        body = decode_body(await read_body(request, service.config.max_body_bytes), _detokenize)
        service.check_model(body.model)
        if body.tokens is None:
            raise RequestError("tokens is missing", "tokens")
        vocab_size = service.limits.vocab_size
        bad = next((i for i in body.tokens if not 0 <= i < vocab_size), None)
        if bad is not None:
            raise RequestError(f"tokens has {bad}: token ids are in 0..{vocab_size - 1}", "tokens")
        text = await asyncio.to_thread(service.text.decode, body.tokens, skip_special_tokens=False)
        return json_response({"prompt": text})

    async def info(self, request: Request) -> Response:
        """What clients need to render chats themselves (lm-eval asks for it)."""
        text = self._service.text
        return json_response(
            {
                "chat_template": text.chat_template,
                **text.special_tokens,
                "vocab_size": text.vocab_size,
                "model_max_length": self._service.info.max_context_tokens,
            }
        )
