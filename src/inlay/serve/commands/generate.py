"""`inlay generate`: prompts of a file through a model, results as JSONL."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from inlay.core.errors import ConfigError
from inlay.serve.commands.options import (
    Context,
    Device,
    KvMemory,
    Model,
    Set,
    Threads,
    WeightFormat,
)

if TYPE_CHECKING:
    from inlay.engine.config import EngineConfig
    from inlay.serve.generate.runner import Totals


def generate(
    model: Model = None,
    prompts: Annotated[
        str,
        typer.Option(
            metavar="FILE|-",
            help='Lines of text, or JSONL with {"prompt": ...} or {"messages": ...} and sampling '
            "fields of the OpenAI API; - is standard input.",
        ),
    ] = "-",
    output: Annotated[
        str, typer.Option(metavar="FILE|-", help="JSONL, in the order of the prompts.")
    ] = "-",
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Limit per prompt that sets none.", show_default="the context"),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, help="For prompts that set none.", show_default="the model's own"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="For prompts that set none.", show_default="random")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Complete lines of text without the chat template.")
    ] = False,
    device: Device = "auto",
    weight_format: WeightFormat = "auto",
    context: Context = None,
    kv_memory: KvMemory = None,
    threads: Threads = None,
    assignments: Set = None,
) -> None:
    """Answer every prompt of a file.

    A line that fails is recorded as an error in its place; the exit code is then
    1.
    """
    import uvloop

    from inlay.serve.commands.local import local_engine_config

    config = local_engine_config(
        model=model,
        device=device,
        weight_format=weight_format,
        context=context,
        kv_memory=kv_memory,
        threads=threads,
        assignments=assignments,
    )
    fields = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    defaults = {name: value for name, value in fields.items() if value is not None}
    _check_output(output)
    with _open_lines(prompts) as (lines, count):
        totals = uvloop.run(_generate(config, lines, count, output, defaults, raw))
    if totals.failed:
        typer.echo(f"inlay: {totals.failed} of {totals.failed + totals.done} failed", err=True)
        raise typer.Exit(1)


async def _generate(
    config: "EngineConfig",
    lines: Iterable[str],
    count: int | None,
    output: str,
    defaults: dict[str, Any],
    raw: bool,
) -> "Totals":
    """Start the engine, run all lines, end it."""
    from inlay.serve.generate.prompts import read_jobs
    from inlay.serve.generate.runner import Runner
    from inlay.serve.local_engine import start_local_engine

    engine = await start_local_engine(config, lambda text: typer.echo(text, err=True))
    try:
        typer.echo(engine.title, err=True)
        has_template = engine.service.text.chat_template is not None
        jobs = read_jobs(lines, defaults, raw=raw, has_template=has_template)
        # Twice what runs at once keeps the engine full while results are written.
        in_flight = min(2 * config.scheduler.max_running, config.scheduler.max_waiting)
        with _open_output(output) as out, _progress(count) as on_done:
            runner = Runner(engine.service, out, in_flight=in_flight, on_done=on_done)
            try:
                return await runner.run(jobs)
            except BaseExceptionGroup as errors:
                # One failing engine fails every task in the same way: the first tells all.
                raise _first(errors) from None
    finally:
        await engine.close()


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group that is no group itself."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def _open_lines(name: str) -> Iterator[tuple[Iterable[str], int | None]]:
    """The lines, and how many there are where that is known beforehand."""
    if name == "-":
        if sys.stdin.isatty():
            typer.echo("reading prompts from the terminal; Ctrl-D ends", err=True)
        yield sys.stdin, None
        return
    try:
        with Path(name).open(encoding="utf-8") as file:
            count = sum(1 for line in file if line.strip())
            file.seek(0)
            yield file, count
    except OSError as error:
        raise ConfigError(f"--prompts {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"--prompts {name}: not UTF-8 text: {error}") from None


def _check_output(name: str) -> None:
    """Refuse a file that cannot be written before the model is loaded, without touching it."""
    file = Path(name).absolute()
    if name != "-" and (file.is_dir() or not file.parent.is_dir()):
        raise ConfigError(f"--output {name}: no file can be written there")


@contextmanager
def _open_output(name: str) -> Iterator[TextIO]:
    """The output; an earlier file of this name is kept until the engine is ready."""
    if name == "-":
        yield sys.stdout
        return
    try:
        file = Path(name).open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output {name}: {error.strerror}") from None
    with file:
        yield file


@contextmanager
def _progress(count: int | None) -> "Iterator[Callable[[Totals], None]]":
    """A bar on stderr with the rate so far; a final line where stderr is no terminal."""
    import time

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    start_s = time.perf_counter()
    last = ""
    bar = Progress(
        TextColumn("prompts"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )

    def on_done(totals: "Totals") -> None:
        nonlocal last
        seconds = time.perf_counter() - start_s
        finished = totals.done + totals.failed
        rate = f"{totals.output_tokens / seconds:.0f} output tokens/s"
        last = (
            f"{totals.done} prompts, {totals.prompt_tokens} prompt tokens "
            f"({totals.cached_tokens} from the cache), {totals.output_tokens} output tokens in "
            f"{seconds:.1f} s: {rate}"
        )
        bar.update(task, completed=finished, description=rate)

    with bar:
        task = bar.add_task("", total=count)
        yield on_done
    if last:
        typer.echo(last, err=True)
