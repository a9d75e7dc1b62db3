"""Counting and cutting text in tokens, with the server's own tokenizer wherever there is one."""

from pathlib import Path
from typing import Any, Protocol

from inlay.core.errors import EndpointError, ModelNotFoundError
from inlay.serve.openai_client import OpenAIClient


class TokenCounter(Protocol):
    """Text to token ids and back, without special tokens."""

    source: str

    async def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        ...

    async def decode(self, token_ids: list[int]) -> str:
        """Text of token ids."""
        ...


class LocalCounter:
    """A tokenizer.json in a directory."""

    def __init__(self, directory: Path) -> None:
        """Raise ModelNotFoundError where there is no tokenizer.json."""
        file = directory / "tokenizer.json" if directory.is_dir() else directory
        if not file.is_file():
            raise ModelNotFoundError(
                f"--tokenizer {directory}: no tokenizer.json there; give the model's directory"
            )
        import tokenizers

        self.source = str(file)
        self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(file))

    async def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    async def decode(self, token_ids: list[int]) -> str:
        """Text of token ids."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))


class RemoteCounter:
    """The server's `/tokenize` and `/detokenize`, in the form Inlay and vLLM give them."""

    source = "/tokenize"

    def __init__(self, client: OpenAIClient, model: str) -> None:
        self._client = client
        self._model = model

    async def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        tokens = (await self._post("/tokenize", body)).get("tokens")
        if not isinstance(tokens, list):
            raise EndpointError("/tokenize answered without `tokens`")
        return tokens

    async def decode(self, token_ids: list[int]) -> str:
        """Text of token ids."""
        body = {"model": self._model, "tokens": token_ids}
        answer = await self._post("/detokenize", body)
        return str(answer.get("prompt", answer.get("text", "")))

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        reply = await self._client.post(path, body)
        reply.raise_for_status()
        answer = reply.json()
        return answer if isinstance(answer, dict) else {}


async def find_counter(
    client: OpenAIClient, model: str, directory: Path | None
) -> TokenCounter | None:
    """The named tokenizer, else the server's, else None."""
    if directory is not None:
        return LocalCounter(directory)
    remote = RemoteCounter(client, model)
    try:
        await remote.encode("one two three")
    except EndpointError:
        return None
    return remote
