"""`inlay tune train` and `inlay tune export`."""

from typing import Annotated

import typer

from inlay.serve.commands.tune import Changes, ConfigFile, read_settings


def train(
    config: ConfigFile,
    changes: Changes = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check settings, data, model and memory; train nothing."),
    ] = False,
) -> None:
    """Train adapters on a model whose own weights stay as they are.

    Whatever ends it, the same command goes on from the newest good checkpoint,
    with the same losses; overwrite_output_dir=true begins anew. Ctrl-C ends it
    after the step that it is in, with a checkpoint.
    """
    from inlay.core.errors import TrainingError
    from inlay.serve.first_signal import first_signal
    from inlay.tune import prepare
    from inlay.tune import train as train_model
    from inlay.tune.progress import RunProgress

    settings = read_settings(config, changes).config
    if dry_run:
        prepared = prepare(settings)
        for note in prepared.notes:
            typer.echo(note, err=True)
        typer.echo(prepared.summary)
        typer.echo("max_samples=100 and an output_dir of its own try all of it on little data")
        return
    asked = "stopping after this step, with a checkpoint; once more ends it at once"
    with RunProgress() as progress, first_signal(progress.say, asked) as stop:
        try:
            result = train_model(settings, watchers=(progress,), say=progress.say, stop=stop)
        except TrainingError as error:
            if not stop():
                raise
            progress.say(str(error))
            raise KeyboardInterrupt from None
    losses = [entry["loss"] for entry in result.log if "loss" in entry]
    fell = f", loss {losses[0]:.4f} to {losses[-1]:.4f}" if losses else ""
    typer.echo(f"{settings.output_dir} has the adapter{fell}")


def export(config: ConfigFile, changes: Changes = None) -> None:
    """Merge adapter_name_or_path into the model, and write it to export_dir.

    Other programs read the result, and inlay serve. Tensors pass one by one;
    whatever ends it, the same command goes on where it was.
    """
    from functools import partial

    from inlay.serve.rate_line import RateLine
    from inlay.tune import export as export_model

    settings = read_settings(config, changes).config
    say = partial(typer.echo, err=True)
    folder = export_model(settings, progress=RateLine("merging", say), say=say)
    typer.echo(f"{folder} is ready")
