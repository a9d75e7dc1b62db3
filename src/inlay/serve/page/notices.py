"""Errors in words a visitor can act on."""

from dataclasses import dataclass

from inlay.core.errors import (
    ContextLengthError,
    EngineDiedError,
    EngineError,
    InlayError,
    OverloadedError,
    RequestError,
)
from inlay.serve.openai.errors import ServerStoppingError


@dataclass(frozen=True, kw_only=True)
class Notice:
    """What went wrong.

    Attributes:
        hint: what to do about it.
        new_chat, retry: which buttons help.
    """

    title: str
    text: str
    hint: str = ""
    new_chat: bool = False
    retry: bool = False


def notice(error: Exception) -> Notice:
    """Name an error. Errors that are bugs of ours do not show their inside."""
    text = str(error)
    match error:
        case ContextLengthError():
            return Notice(
                title="Too long for this model",
                text=text,
                hint="Start a new chat, shorten the question, or lower max tokens.",
                new_chat=True,
            )
        case OverloadedError():
            return Notice(
                title="The server is busy",
                text=text,
                hint=f"There may be room in {max(1, round(error.retry_after_s))} s.",
                retry=True,
            )
        case EngineDiedError():
            return Notice(
                title="The engine is gone",
                text=text,
                hint="Its process ended. Restart `inlay serve`, then reload this page.",
            )
        case ServerStoppingError():
            return Notice(
                title="The server is stopping",
                text=text,
                hint="Start `inlay serve` again, then reload this page.",
            )
        case RequestError():
            return Notice(title="This cannot be answered", text=text, hint="Check the settings.")
        case EngineError():
            return Notice(title="The engine failed", text=text, retry=True)
        case InlayError():
            return Notice(title="Something went wrong", text=text, retry=True)
        case _:
            return Notice(
                title="Something went wrong",
                text="The page met an error that it did not expect.",
                hint="The server's log has the details.",
                retry=True,
            )
