"""`inlay tune plan`: what a run takes, before it starts."""

from typing import TYPE_CHECKING, Annotated

import typer

from inlay.serve.commands.tune import Changes, ConfigFile, read_settings

if TYPE_CHECKING:
    from rich.console import Console

    from inlay.tune.config import TuneConfig
    from inlay.tune.memory import MemoryUse
    from inlay.tune.plan import RowCounts, RunPlan


def plan(
    config: ConfigFile,
    changes: Changes = None,
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME",
            help="A file of `inlay doctor --save`, or a machine of the catalogue such as "
            "xeon-spr-2s+h800.",
            show_default="this one",
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Rows of the data, each of cutoff_len tokens, where dataset cannot be read.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with stable field names.")
    ] = False,
) -> None:
    """Say what memory a run takes, how fast it goes and how long, before it starts.

    Works from the model's config.json alone, of a known model, a directory or a
    hub; where its tokenizer and the datasets are there, with their rows. The exit
    code is 1 if the run does not fit.
    """
    import json

    from rich.console import Console

    from inlay.core.settings import read_settings as read_environment
    from inlay.serve.plan.machine import find_machine
    from inlay.serve.plan.model import find_model
    from inlay.tune.batch_time import TYPICAL
    from inlay.tune.memory import process_bytes
    from inlay.tune.placement_rules import follow_rules
    from inlay.tune.plan import plan_run
    from inlay.tune.trial import measure_pace

    settings = read_settings(config, changes).config
    model = find_model(settings.model_name_or_path)
    hardware, origin = find_machine(machine, read_environment())
    ruled = follow_rules(settings, model.shape, 0 if settings.use_cpu else len(hardware.gpus))
    settings = ruled.config
    for note in ruled.notes:
        typer.echo(note, err=True)
    counts = _counts(settings, rows)
    process = process_bytes()
    pace = TYPICAL if machine else measure_pace(settings, model.shape, hardware, counts)
    planned = plan_run(settings, model.shape, hardware, counts, process=process, pace=pace)
    if as_json:
        typer.echo(json.dumps(_as_dict(planned, machine is not None), indent=2))
    else:
        _print(Console(), planned, f"{model.name} ({model.shape.architecture}, {model.origin})",
               origin)  # fmt: skip
    planned.check()


def _counts(config: "TuneConfig", rows: int | None) -> "RowCounts":
    """Of the data where they can be read, else rows as long as they may be."""
    from pathlib import Path

    from inlay.models.vocabularies import FORMS
    from inlay.tune.plan import RowCounts

    folder = Path(config.model_name_or_path).expanduser()
    if rows is not None or not config.dataset:
        return RowCounts.longest(config, rows)
    if not any((folder / name).is_file() for name in FORMS):
        from inlay.tune.data.load import load_conversations

        return RowCounts.longest(config, len(load_conversations(config).train))
    from inlay.models.text import Text
    from inlay.tune.data.load import load_data

    return RowCounts.of(config, load_data(config, Text.load(folder)).train)


def _print(console: "Console", planned: "RunPlan", model: str, origin: str) -> None:
    from inlay.serve.titled_rows import print_titled_rows

    config, counts = planned.config, planned.counts
    known = f"{counts.rows} rows" if counts.rows is not None else "rows"
    print_titled_rows(
        console,
        "Run",
        [
            ("model", f"{model}: {planned.shape.parameters / 1e9:.1f} billion parameters"),
            ("formats", f"routed experts {planned.expert_format}, the rest {planned.products}"),
            ("adapters", f"rank {config.lora_rank}, {planned.trainable / 1e6:.1f} million weights"),
            (
                "data",
                f"{known} of {counts.mean_tokens:.0f} tokens; a step takes "
                f"{config.gradient_accumulation_steps} x {config.per_device_train_batch_size}",
            ),
            ("machine", origin),
        ],
    )
    rows = [
        (name, f"{_sizes(use)} of {room / 1e9:.1f} GB")
        for name, (use, room) in planned.uses.items()
    ]
    print_titled_rows(console, "Memory", rows)
    slowest = sorted(planned.seconds.items(), key=lambda item: -item[1])[:3]
    shares = ", ".join(f"{name} {taken / planned.step_s:.0%}" for name, taken in slowest)
    print_titled_rows(
        console,
        "Expected speed",
        [
            ("step", f"{planned.step_s:.2f} s for {planned.step_tokens:.0f} tokens: {shares}"),
            ("tokens/s", f"{planned.tokens_per_s:.1f}"),
            ("run", _length(planned)),
            ("measured", planned.pace.source),
        ],
    )


def _sizes(use: "MemoryUse") -> str:
    return (
        f"{use.total / 1e9:.2f} GB: weights {use.weights / 1e9:.2f}, adapters and their states "
        f"{use.lora / 1e9:.2f}, activations {use.activations / 1e9:.2f}, process "
        f"{use.process / 1e9:.2f};"
    )


def _length(planned: "RunPlan") -> str:
    if planned.hours is None:
        return "set --rows, max_steps or dataset to know"
    return f"{planned.steps} steps, {planned.hours:.2f} hours"


def _as_dict(planned: "RunPlan", simulated: bool) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "simulated": simulated,
        "expert_format": planned.expert_format,
        "trainable": planned.trainable,
        "memory": {
            name: {**asdict(use), "total": use.total, "room": room}
            for name, (use, room) in planned.uses.items()
        },
        "step_tokens": planned.step_tokens,
        "step_seconds": dict(planned.seconds),
        "pace": asdict(planned.pace),
        "tokens_per_s": planned.tokens_per_s,
        "steps": planned.steps,
        "hours": planned.hours,
    }
