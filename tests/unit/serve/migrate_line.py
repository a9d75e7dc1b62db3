"""What `inlay serve` itself makes of a translated line."""

import shlex

import typer

from inlay.serve.cli import build_app
from inlay.serve.commands.serve import make_config
from inlay.serve.config import ServeConfig
from inlay.serve.migrate.translate import Migration


def assert_accepted(migration: Migration) -> ServeConfig:
    """The line through the real parser and the real configuration, as a shell would split it."""
    words = shlex.split(migration.line.text(width=80).replace("\\\n", " "))
    arguments = words[words.index("inlay") + 1 :]
    assert tuple(arguments) == migration.line.arguments
    group = typer.main.get_command(build_app())
    name, *rest = arguments
    context = group.commands[name].make_context(name, rest)  # type: ignore[attr-defined]
    return make_config(**context.params)
