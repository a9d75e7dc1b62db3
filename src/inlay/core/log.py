"""Structured logs: one line per event, for people or (`INLAY_LOG=info,json`) for machines.

Code logs with the standard library: `log = logging.getLogger(__name__)` and
`log.info("engine ready", extra={"load_s": 1.2})`; every `extra` becomes a field of the line. This
module only decides what a line looks like and where it goes. It touches the loggers named in
`configure_logging` and leaves the root logger, and so the host process, alone.
"""

import datetime
import difflib
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from inlay.core.errors import ConfigError

_LEVELS = ("debug", "info", "warning", "error")
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """How much is logged, and in which form."""

    level: str = "info"
    json_lines: bool = False

    def __post_init__(self) -> None:
        if self.level not in _LEVELS:
            close = difflib.get_close_matches(self.level, _LEVELS, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise ConfigError(
                f"log level must be one of {', '.join(_LEVELS)}, got {self.level!r}.{hint}"
            )

    @property
    def debug(self) -> bool:
        """Whether tracebacks are wanted."""
        return self.level == "debug"


def parse_log_setting(text: str) -> LogConfig:
    """Read the value of `INLAY_LOG`: a level, `json`, or both with a comma between them.

    Raises:
        ConfigError: an unknown level or form.
    """
    level, json_lines = "info", False
    for part in filter(None, (part.strip().lower() for part in text.split(","))):
        if part == "json":
            json_lines = True
        else:
            level = "warning" if part == "warn" else part
    try:
        return LogConfig(level=level, json_lines=json_lines)
    except ConfigError as error:
        raise ConfigError(f"INLAY_LOG={text}: {error}") from None


def configure_logging(
    config: LogConfig,
    *,
    stream: TextIO | None = None,
    loggers: Sequence[str] = ("inlay",),
) -> None:
    """Send the named loggers' events to `stream` (default: stderr), replacing earlier handlers."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if config.json_lines else TextFormatter())
    for name in loggers:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(config.level.upper())
        logger.propagate = False


def record_fields(record: logging.LogRecord) -> dict[str, object]:
    """The fields given through `extra`.

    Libraries may add attributes of their own to each record (Ray does); these begin with `_`.
    """
    return {
        key: value
        for key, value in record.__dict__.items()
        if key not in _STANDARD and not key.startswith("_")
    }


class TextFormatter(logging.Formatter):
    """`12:30:01.250 INFO engine ready  load_s=1.2`: short, for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; a traceback follows on lines of its own."""
        at = datetime.datetime.fromtimestamp(record.created)
        level = record.levelname
        source = "" if record.levelno == logging.INFO else f" {record.name}:"
        line = f"{at:%H:%M:%S}.{at.microsecond // 1000:03d} {level}{source} {record.getMessage()}"
        fields = " ".join(f"{key}={_short(value)}" for key, value in record_fields(record).items())
        line += f"  {fields}" if fields else ""
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: `time`, `level`, `logger`, `message`, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, always; a traceback is the field `traceback`."""
        at = datetime.datetime.fromtimestamp(record.created, tz=datetime.UTC)
        event: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        event |= {key: value for key, value in record_fields(record).items() if key not in event}
        if record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str, ensure_ascii=False)


def _short(value: object) -> str:
    """A field's value; quoted when it holds spaces, floats with four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if " " in text or not text else text
