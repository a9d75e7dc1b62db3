"""A whole run: find model and tokenizer, make prompts, warm up, load, count, report."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from inlay import __version__
from inlay.core.errors import ConfigError, EndpointError
from inlay.serve.bench.load import ClientLoad, LoadConfig, run_load
from inlay.serve.bench.records import RequestRecord
from inlay.serve.bench.report import print_report, request_dict
from inlay.serve.bench.statistics import Slo, Summary, summarise
from inlay.serve.bench.tokens import TokenCounter, find_counter
from inlay.serve.bench.workload import Prompt, WorkloadConfig, make_prompts
from inlay.serve.openai_client import OpenAIClient

_PATHS = {True: "/v1/chat/completions", False: "/v1/completions"}


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """One run of `inlay bench serve`.

    Attributes:
        endpoint: `chat`, `completions`, or `auto`: completions for random prompts, else chat.
        ignore_eos: ask for exactly the output length (Inlay, vLLM and SGLang know the field).
    """

    url: str
    model: str | None = None
    endpoint: str = "auto"
    api_key: str | None = None
    tokenizer: Path | None = None
    ignore_eos: bool = True
    workload: WorkloadConfig
    load: LoadConfig
    slo: Slo | None = None
    output: Path | None = None

    def __post_init__(self) -> None:
        if self.endpoint not in ("auto", "chat", "completions"):
            raise ConfigError(f"--endpoint must be auto, chat or completions, got {self.endpoint}")
        if self.output is not None and not self.output.absolute().parent.is_dir():
            raise ConfigError(f"--output {self.output}: there is no directory for it")

    @property
    def chat(self) -> bool:
        """Whether requests go to the chat endpoint."""
        if self.endpoint == "auto":
            return self.workload.dataset != "random"
        return self.endpoint == "chat"


async def run_bench(config: BenchConfig, out: Console, progress: Console) -> Summary:
    """Run, print the report to `out`, write the JSON file.

    Raises:
        EndpointError: the server cannot be reached, or refuses the warm-up request or all
            requests.
        ConfigError: the dataset cannot be used.
    """
    client = OpenAIClient(config.url, api_key=config.api_key)
    try:
        model = config.model or await client.first_model()
        counter = await find_counter(client, model, config.tokenizer)
        prompts = await make_prompts(config.workload, counter, chat=config.chat)
        bodies = [_body(config, model, prompt) for prompt in prompts]
        path = _PATHS[config.chat]
        await _warm_up(client, path, bodies[0])
        with _progress_bar(progress, len(bodies)) as advance:
            records, own_load = await run_load(
                client, path, bodies, config.load, lambda record: advance()
            )
        if not any(record.ok for record in records):
            raise EndpointError(
                f"all {len(records)} requests failed; the first: {records[0].error}"
            )
        await _retokenise(records, counter)
    finally:
        await client.close()
    summary = summarise(records, config.slo)
    title = f"{model} at {client.base_url}{path}: {config.workload.description}"
    print_report(out, summary, own_load, config.slo, title)
    _print_failures(progress, records)
    if config.output is not None:
        report = _report(config, model, counter, summary, own_load, records)
        config.output.write_text(json.dumps(report, indent=1) + "\n")
        out.print(f"wrote {config.output}", style="dim", highlight=False)
    return summary


def _body(config: BenchConfig, model: str, prompt: Prompt) -> dict[str, Any]:
    body = prompt.body(chat=config.chat) | {
        "model": model,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return body | {"ignore_eos": True} if config.ignore_eos else body


async def _warm_up(client: OpenAIClient, path: str, body: dict[str, Any]) -> None:
    """One request before the clock runs; a broken set-up shows here, with its own message."""
    # Another prompt than the measured ones, so that no answer comes from a cache it filled.
    key = "messages" if "messages" in body else "prompt"
    warm: Any = [{"role": "user", "content": "Hello"}] if key == "messages" else "Hello"
    reply = await client.post(
        path, {**body, key: warm, "max_tokens": 4, "stream": False, "stream_options": None}
    )
    reply.raise_for_status()


@contextmanager
def _progress_bar(console: Console, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr, where that is a terminal; gives a function that moves it by one."""
    bar = Progress(
        TextColumn("requests"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        refresh_per_second=4,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("requests", total=total)
        yield lambda: bar.advance(task)


async def _retokenise(records: Sequence[RequestRecord], counter: TokenCounter | None) -> None:
    """Count each answer's tokens again, from its text."""
    if counter is None:
        return
    gate = asyncio.Semaphore(8)

    async def count(record: RequestRecord) -> None:
        async with gate:
            record.retokenised_tokens = len(await counter.encode(record.text))

    await asyncio.gather(*(count(record) for record in records if record.ok))


def _print_failures(console: Console, records: Sequence[RequestRecord]) -> None:
    """The distinct reasons of failed requests."""
    reasons: dict[str, int] = {}
    for record in records:
        if record.error is not None:
            reasons[record.error] = reasons.get(record.error, 0) + 1
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1])[:5]:
        console.print(f"{count} failed: {reason}", style="red", markup=False, highlight=False)


def _report(
    config: BenchConfig,
    model: str,
    counter: TokenCounter | None,
    summary: Summary,
    own_load: ClientLoad,
    records: Sequence[RequestRecord],
) -> dict[str, Any]:
    """Everything for the JSON file. Seconds throughout."""
    start_s = min(record.sent_s for record in records)
    rate = config.load.request_rate
    return {
        "schema": 1,
        "inlay": __version__,
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": {
            "url": config.url,
            "model": model,
            "endpoint": _PATHS[config.chat],
            "ignore_eos": config.ignore_eos,
            "request_rate": "inf" if rate == float("inf") else rate,
            "concurrency": config.load.concurrency,
            "slo": asdict(config.slo) if config.slo else None,
            "tokenizer": counter.source if counter else None,
            **{f"workload_{key}": value for key, value in asdict(config.workload).items()},
            "workload_description": config.workload.description,
        },
        "metrics": summary.as_dict(),
        "client": own_load.as_dict(),
        "requests": [request_dict(record, start_s) for record in records],
    }
