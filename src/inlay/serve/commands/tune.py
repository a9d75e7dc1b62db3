"""`inlay tune`: the commands of fine-tuning, and what they share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from inlay.models.text import Text
    from inlay.tune.config_file import ReadConfig
    from inlay.tune.data.example import Dataset, Example

ConfigFile = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG.YAML",
        help="Settings of the run, by LLaMA-Factory's keys (inlay tune keys lists them).",
        show_default=False,
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings that go before the file's.",
        show_default=False,
    ),
]


def tune_commands() -> typer.Typer:
    """The group, each command under its name."""
    from inlay.serve.commands.tune_answers import chat, predict
    from inlay.serve.commands.tune_plan import plan
    from inlay.serve.commands.tune_train import export, train

    app = typer.Typer(no_args_is_help=True, help="Fine-tune a model.")
    app.callback()(lambda: None)
    app.command("train")(train)
    app.command("chat")(chat)
    app.command("predict")(predict)
    app.command("plan")(plan)
    app.command("export")(export)
    app.command("preview")(preview)
    app.command("keys")(keys)
    return app


def read_settings(file: Path, changes: list[str] | None) -> "ReadConfig":
    """The settings of a run; what has no effect is said on stderr, a line each."""
    from inlay.tune.config_file import read_config

    found = read_config(file, changes or ())
    if found.idle:
        typer.echo("without effect:", err=True)
    for name, why in found.idle.items():
        typer.echo(f"  {name}: {why}", err=True)
    for note in found.notes:
        typer.echo(note, err=True)
    return found


def preview(
    config: ConfigFile,
    changes: Changes = None,
    sample: Annotated[
        int, typer.Option("--row", min=0, help="Which row to show, in the order of the files.")
    ] = 0,
) -> None:
    """Show a row as the model is trained on it, its loss mask in colour.

    Checks all data, and loads no weights.
    """
    from inlay.core.errors import ConfigError
    from inlay.models.source import resolve_model
    from inlay.models.text import Text
    from inlay.tune.data.load import load_data

    settings = read_settings(config, changes).config
    directory = resolve_model(
        settings.model_name_or_path, weight_format=None, cache_dir=settings.cache_path
    ).directory
    text = Text.load(directory)
    data = load_data(settings, text)
    for note in data.notes:
        typer.echo(note, err=True)
    if sample >= len(data.train):
        raise ConfigError(f"--row {sample}: there are {len(data.train)}, from 0")
    _show_row(data.train[sample], text)
    for name, rows in (("training", data.train), ("evaluation", data.evaluation)):
        if rows is not None:
            typer.echo(_counts(name, rows))


def _show_row(row: "Example", text: "Text") -> None:
    """Its text: green where there is a loss, grey where there is none."""
    from rich.console import Console
    from rich.text import Text as Shown

    from inlay.tune.data.preview import spans_of

    console = Console(soft_wrap=True, highlight=False)
    shown = Shown()
    for span in spans_of(row, text):
        if span.begins_segment and shown:
            shown.append("\n" + "-" * 8 + " next sample\n", style="dim cyan")
        # Without colours, brackets stand around what has a loss.
        plain = console.color_system is None and span.has_loss
        shown.append(
            f"[[{span.text}]]" if plain else span.text,
            style="bold green" if span.has_loss else "bright_black",
        )
    console.print(shown)


def _counts(name: str, rows: "Dataset") -> str:
    share = rows.num_loss_tokens / max(1, rows.num_tokens)
    packed = f" in {len(rows)} rows" if len(rows) != rows.num_segments else ""
    return (
        f"{name}: {rows.num_segments} samples{packed}, {rows.num_tokens} tokens, "
        f"{rows.num_loss_tokens} with a loss ({share:.0%}), the longest row "
        f"{rows.row_lengths_R.max()}"
    )


def keys() -> None:
    """List all keys of a run's settings: what each does, or why it does nothing."""
    from dataclasses import MISSING

    from rich import box
    from rich.console import Console
    from rich.table import Table

    from inlay.tune.config import TUNE_KEYS
    from inlay.tune.other_keys import ALIASES, IDLE_KEYS, REFUSED_KEYS

    console = Console()
    kinds = (
        ("Settings", TUNE_KEYS),
        ("Other names of settings", {name: alias.key for name, alias in ALIASES.items()}),
        ("Read, without effect", IDLE_KEYS),
        ("Refused, unless their value asks for nothing", REFUSED_KEYS),
    )
    for title, table in kinds:
        shown = Table(
            "key", "type", "default", "", title=title, box=box.SIMPLE, title_justify="left"
        )
        for name, key in table.items():
            default = "required" if key.default is MISSING else _plain(key.default)
            limits = f" ({key.range})" if key.range else ""
            shown.add_row(name, key.type_name, default, key.does + limits)
        console.print(shown)


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value) or "none"
    return (
        "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
