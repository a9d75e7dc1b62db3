"""Logs of an OpenAI server: a JSON object per line, with a request, its time and its usage.

`{"time": t, "request": {"messages": [...]}, "response": {"usage": {...}}}`. The time is in seconds
(of any epoch) or ISO 8601; where there is none, `created` of the response is taken. Instead of
`messages` a request may have a `prompt`, a text or token ids, and what it has may also lie in the
line itself, as may `usage`. `session_id` in a request says whose turn it is.

**Names of blocks.** A log has texts and how many tokens they were, and no tokenizer. So a block is
a run of bytes: as many as `block_tokens` tokens have on average in the log (in its first part, if
it is read in parts). Its name is BLAKE2b of these bytes and the name before, so prompts share the
blocks of the bytes that they have in common from the first on. The text of a prompt is the JSON of
its `tools` and of each message, with sorted keys. What lies behind the last whole run, or would if
the text were as long as its tokens say, goes into the names of the remaining blocks, which only the
same prompt has, too. A shared prefix is therefore as wrong in tokens as its bytes per token differ
from the log's; prompts of token ids are exact.

**Sessions.** A request that repeats all messages of an earlier one and goes on with an answer is of
its session.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np

from inlay.core.errors import TraceError
from inlay.sim.formats.base import TraceFormat, parse_all
from inlay.sim.trace import Trace, blocks_of, starts_of

_TOKEN_BYTES = 4
"""Of a token id."""

_NAME_BYTES = 8

_MAX_REMEMBERED = 1_000_000
"""Conversations whose next turn is recognised, the latest ones."""

_TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class _Usage(msgspec.Struct):
    prompt_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    completion_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _Response(msgspec.Struct):
    usage: _Usage | None = None
    created: float | None = None


class _Request(msgspec.Struct):
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[_TokenId] | None = None
    tools: list[Any] | None = None
    session_id: str | None = None


class _Line(_Request):
    time: float | str | None = None
    usage: _Usage | None = None
    created: float | None = None
    request: _Request | None = None
    response: _Response | None = None


class _Entry(msgspec.Struct):
    """What counts of a line."""

    time_s: float
    usage: _Usage
    request: _Request
    pieces: list[bytes]
    """Of its text: tools and each message, or the prompt."""

    @property
    def has_ids(self) -> bool:
        return isinstance(self.request.prompt, list)


class OpenAiLogFormat(TraceFormat):
    """Reads them. Lines need not be sorted: a log has requests in the order of their ends.

    Read in parts, the later half of what has been read waits for the lines behind it: a line may
    come too late by half a part. An answer without tokens counts as one of one token: its prompt
    was computed.
    """

    name: ClassVar[str] = "openai"

    def __init__(self, block_tokens: int) -> None:
        super().__init__(block_tokens)
        self._decoder = msgspec.json.Decoder(_Line)
        self._sessions = _Sessions()
        self._run_bytes = 0
        self._start_s = self._ahead_s = -np.inf
        self._waiting: list[_Entry] = []

    @staticmethod
    def recognises(line: bytes) -> bool:
        """A JSON object with messages or a prompt."""
        return line.lstrip().startswith(b"{") and (b'"messages"' in line or b'"prompt"' in line)

    def parse(self, lines: Sequence[bytes], *, more: bool) -> Trace:
        """See `TraceFormat`."""
        given = parse_all(lines, self._entry)
        for place, entry in enumerate(given):
            if entry.time_s < self._ahead_s:
                raise TraceError(
                    f"is {self._ahead_s - entry.time_s} s earlier than a request that has been "
                    "passed on: read larger parts, or sort the lines by time",
                    place,
                )
        entries = sorted(self._waiting + given, key=lambda entry: entry.time_s)
        if not self._run_bytes:
            self._run_bytes = self._mean_run_bytes(entries)
            self._start_s = entries[0].time_s
        passed = -(-len(entries) // 2) if more else len(entries)
        entries, self._waiting = entries[:passed], entries[passed:]
        self._ahead_s = entries[-1].time_s
        inputs = np.array([entry.usage.prompt_tokens for entry in entries])
        names = b"".join(name for entry in entries for name in self._chain(entry))
        return Trace(
            arrival_s=np.array([entry.time_s for entry in entries]) - self._start_s,
            input_tokens=inputs,
            output_tokens=np.array([max(1, entry.usage.completion_tokens) for entry in entries]),
            block_starts=starts_of(blocks_of(inputs, self.block_tokens)),
            blocks=np.frombuffer(names, "<u8"),
            block_tokens=self.block_tokens,
            session=np.array([self._sessions.of(entry) for entry in entries]),
        )

    def _entry(self, line: bytes) -> _Entry:
        row = self._decoder.decode(line)
        request = row.request or row
        response = row.response or _Response()
        times = [time for time in (row.time, response.created, row.created) if time is not None]
        if not times:
            raise TraceError("has no time: neither `time` nor `created` of the response")
        usage = response.usage or row.usage
        if isinstance(request.prompt, list) and usage:
            if not request.prompt:
                raise TraceError("its prompt must be at least 1 token id, got none")
            usage.prompt_tokens = len(request.prompt)
        if not usage:
            raise TraceError("has no `usage`, which says how many tokens there were")
        return _Entry(_seconds(times[0]), usage, request, _pieces(request))

    def _mean_run_bytes(self, entries: Sequence[_Entry]) -> int:
        """Bytes of a text that are `block_tokens` tokens on average."""
        texts = [entry for entry in entries if not entry.has_ids]
        tokens = sum(entry.usage.prompt_tokens for entry in texts)
        size = sum(len(piece) for entry in texts for piece in entry.pieces)
        return max(1, round(self.block_tokens * size / tokens)) if texts else 1

    def _chain(self, entry: _Entry) -> Iterator[bytes]:
        """Names of a prompt's blocks: see above."""
        text = b"".join(entry.pieces)
        tokens = entry.usage.prompt_tokens
        step = self.block_tokens * _TOKEN_BYTES if entry.has_ids else self._run_bytes
        whole = min(tokens // self.block_tokens, len(text) // step)
        name = bytes(_NAME_BYTES)
        for start in range(0, whole * step, step):
            name = _digest(name, text[start : start + step], b"whole")
            yield name
        rest = text[whole * step :] + tokens.to_bytes(8, "little")
        for _ in range(whole, -(-tokens // self.block_tokens)):
            name = _digest(name, rest, b"rest")
            yield name


class _Sessions:
    """Numbers of sessions: by the name that requests give, or by the messages they begin with."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        self._count = 0

    def of(self, entry: _Entry) -> int:
        """That of the next request; -1 if it has neither a name nor messages."""
        messages = entry.request.messages
        if entry.request.session_id is not None:
            own = _digest(b"", entry.request.session_id.encode(), b"session")
            number = self._known.get(own)
        elif messages:
            own, *earlier = _conversations(entry.pieces, messages)
            number = next((self._known[one] for one in earlier if one in self._known), None)
        else:
            return -1
        if number is None:
            number, self._count = self._count, self._count + 1
        self._known[own] = number
        if len(self._known) > _MAX_REMEMBERED:
            del self._known[next(iter(self._known))]
        return number


def _conversations(pieces: list[bytes], messages: list[dict[str, Any]]) -> Iterator[bytes]:
    """What names all messages, and all before each answer among them, the latest one first."""
    keys = [bytes(_NAME_BYTES)]
    for piece in pieces:
        keys.append(_digest(keys[-1], piece, b"message"))
    yield keys[-1]
    for place in reversed(range(len(messages))):
        if messages[place].get("role") == "assistant":
            yield keys[place + 1]  # the first piece is the tools


def _seconds(time: float | str) -> float:
    if not isinstance(time, str):
        return time
    moment = datetime.fromisoformat(time)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _pieces(request: _Request) -> list[bytes]:
    if (request.messages is None) == (request.prompt is None):
        raise TraceError("must have either `messages` or a `prompt`")
    if isinstance(request.prompt, list):
        return [np.array(request.prompt, "<u4").tobytes()]
    if request.prompt is not None:
        return [request.prompt.encode()]
    parts = [request.tools or [], *(request.messages or [])]
    return [msgspec.json.encode(part, order="sorted") + b"\n" for part in parts]


def _digest(before: bytes, data: bytes, kind: bytes) -> bytes:
    return blake2b(before + data, digest_size=_NAME_BYTES, person=kind).digest()
