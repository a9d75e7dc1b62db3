import io
import json
import logging

import pytest

from inlay.core.errors import ConfigError
from inlay.core.log import LogConfig, configure_logging, parse_log_setting, record_fields


@pytest.fixture
def logger() -> logging.Logger:
    return logging.getLogger("inlay_test_log")


def written(logger: logging.Logger, config: LogConfig) -> io.StringIO:
    stream = io.StringIO()
    configure_logging(config, stream=stream, loggers=(logger.name,))
    return stream


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("info", LogConfig()),
        ("", LogConfig()),
        ("debug,json", LogConfig(level="debug", json_lines=True)),
        (" JSON ", LogConfig(json_lines=True)),
        ("warn", LogConfig(level="warning")),
    ],
)
def test_setting(text: str, config: LogConfig) -> None:
    assert parse_log_setting(text) == config


def test_unknown_level_has_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"^INLAY_LOG=debg: .*got 'debg'\. Did you mean debug\?"):
        parse_log_setting("debg")


def test_text_lines_carry_fields(logger: logging.Logger) -> None:
    stream = written(logger, LogConfig())
    logger.info("ready", extra={"load_s": 1.23456, "model": "a b"})
    logger.debug("not shown")
    line = stream.getvalue()
    assert line.endswith('INFO ready  load_s=1.235 model="a b"\n')
    assert line.count("\n") == 1


def test_json_lines_are_one_object_each(logger: logging.Logger) -> None:
    stream = written(logger, LogConfig(level="debug", json_lines=True))
    logger.debug("a %s", "b", extra={"pages": 3, "message_id": {"x"}})
    try:
        raise ValueError("oh\nno")
    except ValueError:
        logger.exception("failed")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["message"] == "a b" and first["pages"] == 3 and first["level"] == "debug"
    assert first["time"].endswith("+00:00")
    assert "ValueError: oh" in second["traceback"]


def test_configuring_again_replaces_the_handler(logger: logging.Logger) -> None:
    first = written(logger, LogConfig())
    second = written(logger, LogConfig())
    logger.warning("once")
    assert first.getvalue() == "" and second.getvalue().count("once") == 1


def test_what_libraries_add_to_records_is_no_field() -> None:
    record = logging.makeLogRecord({"msg": "ready", "_of_a_library": 1, "load_s": 1.2})
    assert record_fields(record) == {"load_s": 1.2}
