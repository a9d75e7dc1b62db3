"""Chat templates: Jinja from the model's directory, rendered as `transformers` renders them.

The filter `from_json`, which llama.cpp's templates use, is known besides.

Templates are untrusted text: they run in Jinja's immutable sandbox and see plain JSON values.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inlay.core.errors import ConfigError, ModelFileError, RequestError

# Under these names clients send a model's reasoning; templates read the first, gpt-oss the second.
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks text for training; here it is just text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """Jinja's `namespace` without names that begin with an underscore."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}")
        super().__setitem__(name, value)


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own filter, does not escape HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@lru_cache(maxsize=16)
def _compile(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.filters["from_json"] = json.loads
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["namespace"] = _Namespace
    return environment.from_string(source)


def check_template(source: str, where: str) -> None:
    """Raise ModelFileError if the template is not valid Jinja."""
    try:
        _compile(source)
    except jinja2.TemplateSyntaxError as error:
        raise ModelFileError(
            f"{where}: the chat template is not valid Jinja (line {error.lineno}: {error.message})"
        ) from error


def read_template_file(file: Path) -> str:
    """A chat template that the user names instead of the model's own.

    Raises:
        ConfigError: there is no such file, or it is no template.
    """
    try:
        source = file.read_text("utf-8")
        check_template(source, str(file))
    except OSError as error:
        raise ConfigError(
            f"the chat template {file} cannot be read ({error.strerror}): name a Jinja file, as "
            "models have them in chat_template.jinja"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the chat template {file} is not UTF-8 text ({error}): name a Jinja file"
        ) from error
    except ModelFileError as error:
        raise ConfigError(
            f"{error}: correct it, or leave out --chat-template to use the model's own"
        ) from error
    return source


def render(
    source: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None,
    add_generation_prompt: bool,
    variables: Mapping[str, Any],
) -> str:
    """Render a conversation.

    Args:
        source: the template.
        messages: in OpenAI form, plain JSON values.
        tools: function schemas.
        add_generation_prompt: end with the opening of the assistant's turn.
        variables: special tokens and what the request passes to the template.

    Raises:
        RequestError: the template refuses the conversation; carries the template's own message.
    """
    try:
        return _compile(source).render(
            messages=[_with_reasoning(message) for message in messages],
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **{key: value for key, value in variables.items() if key not in _FIXED},
        )
    except jinja2.TemplateError as error:
        raise RequestError(f"the model's chat template says: {error}", param="messages") from error
    except Exception as error:  # whatever the template's own expressions raise
        raise RequestError(
            f"the model's chat template cannot render these messages ({error}): check that each "
            "message has a role and text content",
            param="messages",
        ) from error


_FIXED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


def _with_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give reasoning the names that templates read, whichever name the client used."""
    given = (message[key] for key in _REASONING_KEYS if message.get(key) is not None)
    reasoning = next(given, None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}
