"""`inlay bench serve`: load on any OpenAI-compatible server."""

from pathlib import Path
from typing import Annotated

import typer


def bench_serve(
    url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None, typer.Option(help="Model name.", show_default="the server's first")
    ] = None,
    num_prompts: Annotated[int, typer.Option(help="How many requests.")] = 100,
    request_rate: Annotated[
        str,
        typer.Option(
            metavar="R|inf", help="Mean arrivals per second (Poisson), whatever the answers do."
        ),
    ] = "inf",
    concurrency: Annotated[
        int | None, typer.Option(help="Most requests in flight.", show_default="no cap")
    ] = None,
    dataset: Annotated[
        str,
        typer.Option(
            help="random: random words. sharegpt: made-up conversation-like text. Or a file: "
            "ShareGPT JSON, or JSONL with prompt or messages."
        ),
    ] = "random",
    input_len: Annotated[
        str | None,
        typer.Option(
            metavar="N|LOW-HIGH",
            help="Prompt tokens of random prompts; the limit for sharegpt.",
            show_default="512 / 1024",
        ),
    ] = None,
    output_len: Annotated[
        int | None,
        typer.Option(help="Tokens to generate.", show_default="128, or as in the dataset"),
    ] = None,
    shared_prefix: Annotated[
        int, typer.Option(help="Tokens of text in front of every prompt, besides --input-len.")
    ] = 0,
    slo: Annotated[
        str | None,
        typer.Option(
            help="Limits for goodput, e.g. ttft=500ms,tpot=50ms,e2e=10s.", show_default="none"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of prompts and arrival times.")] = 0,
    endpoint: Annotated[
        str, typer.Option(help="chat, completions, or auto: completions for random.")
    ] = "auto",
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="Directory with a tokenizer.json, to cut and count tokens.",
            show_default="the server's /tokenize",
        ),
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="Bearer token to send.")] = None,
    ignore_eos: Annotated[bool, typer.Option(help="Generate the full output length.")] = True,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write everything measured here.")
    ] = None,
) -> None:
    """Load an OpenAI-compatible server and measure throughput, latencies and goodput."""
    import uvloop
    from rich.console import Console

    from inlay.serve.bench.load import LoadConfig
    from inlay.serve.bench.run import BenchConfig, run_bench
    from inlay.serve.bench.statistics import parse_slo
    from inlay.serve.bench.workload import WorkloadConfig, parse_lengths

    config = BenchConfig(
        url=url,
        model=model,
        endpoint=endpoint,
        api_key=api_key,
        tokenizer=tokenizer,
        ignore_eos=ignore_eos,
        workload=WorkloadConfig(
            dataset=dataset,
            num_prompts=num_prompts,
            input_len=parse_lengths(input_len) if input_len else None,
            output_len=output_len,
            shared_prefix=shared_prefix,
            seed=seed,
        ),
        load=LoadConfig(request_rate=_rate(request_rate), concurrency=concurrency, seed=seed),
        slo=parse_slo(slo) if slo else None,
        output=output,
    )
    summary = uvloop.run(run_bench(config, Console(), Console(stderr=True)))
    raise typer.Exit(1 if summary.failed else 0)


def _rate(text: str) -> float:
    """Arrivals per second."""
    from inlay.core.errors import ConfigError

    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--request-rate {text}: write a number above 0, or inf") from None
