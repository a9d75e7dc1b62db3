"""Streams completions from a server, as `inlay bench serve` does, for the serving cases."""

from collections.abc import Sequence
from typing import Any

import uvloop

from inlay.serve.bench.load import LoadConfig, run_load
from inlay.serve.bench.records import RequestRecord
from inlay.serve.openai_client import OpenAIClient


def stream_completions(url: str, bodies: Sequence[dict[str, Any]]) -> list[RequestRecord]:
    """Send all bodies to `/v1/completions` at once and wait for the last token of each.

    Raises:
        RuntimeError: one of them failed.
    """
    records = uvloop.run(_stream(url, bodies))
    if failed := [record.error for record in records if record.error]:
        raise RuntimeError(f"{len(failed)} of {len(records)} requests failed: {failed[0]}")
    return records


async def _stream(url: str, bodies: Sequence[dict[str, Any]]) -> list[RequestRecord]:
    client = OpenAIClient(url)
    try:
        config = LoadConfig(concurrency=len(bodies))
        records, _ = await run_load(client, "/v1/completions", bodies, config)
        return records
    finally:
        await client.close()


def completion_body(prompt: list[int] | str, max_tokens: int) -> dict[str, Any]:
    """A greedy streamed completion of exactly `max_tokens` tokens."""
    return {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
