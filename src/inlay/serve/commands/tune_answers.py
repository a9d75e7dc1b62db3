"""`inlay tune predict` and `inlay tune chat`."""

from typing import Annotated

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
    for name, value in found.results.items():
        typer.echo(f"{name.removeprefix('predict_')}: {value}")
    typer.echo(f"{settings.output_dir} has {len(found.answers)} answers")


def chat(
    config: ConfigFile,
    changes: Changes = None,
    both: Annotated[
        bool, typer.Option("--both", help="The model answers without the adapter, and with it.")
    ] = False,
) -> None:
    """Chat with the model and adapter_name_or_path in the terminal, as in inlay chat.

    Answers are written by the model's own chat template, whatever template says.
    """
    from inlay.core.errors import ConfigError
    from inlay.serve.chat.conversation import ChatOptions, Conversation
    from inlay.serve.commands.chat import hold_chat, start_backends
    from inlay.tune.tuned_engine import ADAPTER, tuned_engine

    settings = read_settings(config, changes).config
    if both and not settings.adapter_name_or_path:
        raise ConfigError("--both needs an adapter: set adapter_name_or_path")
    after = ADAPTER if settings.adapter_name_or_path else None
    options = ChatOptions(
        temperature=settings.temperature if settings.samples else 0.0,
        top_p=settings.top_p,
        top_k=settings.top_k,
        repetition_penalty=settings.repetition_penalty,
        max_tokens=settings.max_new_tokens,
    )
    hold_chat(
        start_backends(
            tuned_engine(settings), {"before": None, "after": after} if both else {"": after}
        ),
        Conversation(system=settings.default_system, options=options),
    )
