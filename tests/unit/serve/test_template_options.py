"""`--chat-template` and `--tool-parser`."""

from pathlib import Path

import pytest
import typer

from inlay.core.errors import ConfigError
from inlay.engine.config import EngineConfig
from inlay.models.text import Text
from inlay.serve.cli import build_app
from inlay.serve.commands.serve import make_config
from inlay.serve.config import ServeConfig
from inlay.serve.migrate.translate import translate
from inlay.serve.parsers import NOTATIONS
from inlay.serve.server import run_server
from tests.unit.serve.migrate_line import assert_accepted


def config_of(*arguments: str) -> ServeConfig:
    """What `inlay serve` makes of its arguments."""
    group = typer.main.get_command(build_app())
    context = group.commands["serve"].make_context("serve", list(arguments))  # type: ignore[attr-defined]
    return make_config(**context.params)


def test_the_options_reach_the_configuration() -> None:
    config = config_of("--chat-template", "a.jinja", "--tool-parser", "glm")
    assert (config.chat_template, config.tool_parser) == ("a.jinja", "glm")
    assert (config_of().chat_template, config_of().tool_parser) == (None, None)
    assert config_of("--set", "tool_parser=kimi").tool_parser == "kimi"
    with pytest.raises(ConfigError) as refused:
        config_of("--tool-parser", "nothing")
    assert "'nothing'" in str(refused.value)
    assert all(name in str(refused.value) for name in NOTATIONS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"none\.jinja cannot be read \(No such file.*name a Jinja file"),
        (b"\xff\xfe", r"none\.jinja is not UTF-8 text .*name a Jinja file"),
        (b"{% if %}", r"none\.jinja: .* not valid Jinja \(line 1.*leave out --chat-template"),
    ],
)
def test_a_bad_file_is_refused_before_the_model_is_looked_for(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "none.jinja"
    if content is not None:
        file.write_bytes(content)
    engine = EngineConfig(model=str(tmp_path / "no model"))
    with pytest.raises(ConfigError, match=message):
        run_server(ServeConfig(port=0, chat_template=str(file), engine=engine))


def test_the_template_replaces_all_of_the_model(tokenizer_directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("mine: {{ messages[0].content }}{{ tools }}")
    template = ServeConfig(chat_template=str(file)).read_chat_template()
    for name in tokenizer_directory.iterdir():
        (tmp_path / name.name).write_bytes(name.read_bytes())
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("another")
    text = Text.load(tmp_path, chat_template=template)
    assert text.chat_template == template
    user = [{"role": "user", "content": "x"}]
    assert text.render_chat(user, tools=[{"a": 1}]) == "mine: x[{'a': 1}]"
    assert ServeConfig().read_chat_template() is None


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve /m --chat-template 't/a b.jinja'",
        "python -m sglang.launch_server --model /m --chat-template 't/a b.jinja'",
        "llama-server -m /m/a.gguf --jinja --chat-template-file 't/a b.jinja'",
    ],
)
def test_lines_of_other_programs_keep_their_template(line: str) -> None:
    assert assert_accepted(translate([line])).chat_template == "t/a b.jinja"
