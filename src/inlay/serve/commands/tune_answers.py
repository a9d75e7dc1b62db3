"""`inlay tune predict`."""

import typer

from inlay.serve.commands.tune import Changes, ConfigFile, read_settings


def predict(config: ConfigFile, changes: Changes = None) -> None:
    """Answer evaluation data with adapter_name_or_path, and score the answers.

    Answers go to generated_predictions.jsonl in output_dir, scores to
    predict_results.json and all_results.json.
    """
    from functools import partial

    from inlay.tune import predict as predict_answers

    settings = read_settings(config, changes).config
    found = predict_answers(settings, say=partial(typer.echo, err=True))
    show_scores(found.results)
    typer.echo(f"{settings.output_dir} has {len(found.answers)} answers")


def show_scores(results: "dict[str, float | str]") -> None:
    """What was measured, a line each."""
    for name, value in results.items():
        typer.echo(f"{name.removeprefix('predict_')}: {value}")
