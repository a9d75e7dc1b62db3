"""Clients that ask a deployment the same questions over and over, and compare the answers."""

import json
import random
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

ANSWER_S = 30.0
_REFUSED_S = 0.02
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """One question's way. Times are monotonic seconds.

    Attributes:
        error: why there is no whole answer; None where it is there and right.
    """

    began_s: float
    ended_s: float
    error: str | None


def questions(seed: int, count: int = 24) -> list[Body]:
    """Prompts, every other behind the same stem; a third is sampled, with seeds."""
    draw = random.Random(seed)
    stem = draw.choices(range(300, 4000), k=96)
    return [
        {
            "prompt": [
                *(stem if number % 2 else ()),
                *draw.choices(range(300, 4000), k=draw.randint(2, 160)),
            ],
            "max_tokens": draw.randint(8, 48),
            "ignore_eos": True,
            "stream": True,
            **({"temperature": 0} if number % 3 else {"temperature": 0.9, "seed": number}),
        }
        for number in range(count)
    ]


def answer(url: str, body: Body) -> str:
    """The text of a streamed completion.

    Raises:
        httpx.HTTPError, RuntimeError: it is not whole.
    """
    text, ended = "", False
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=ANSWER_S) as reply:
        if reply.status_code != 200:
            raise RuntimeError(f"HTTP {reply.status_code}: {reply.read().decode()[:300]}")
        for line in reply.iter_lines():
            if line == "data: [DONE]":
                ended = True
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(f"error in the stream: {event['error']}")
                text += "".join(choice["text"] for choice in event["choices"])
    if not ended:
        raise RuntimeError(f"the stream ended early, after {text!r}")
    return text


class Askers:
    """Threads that ask until they are stopped.

    Attributes:
        wrong: answers that differ from what was expected, in words.
    """

    def __init__(self, url: str, bodies: Sequence[Body], expected: Sequence[str], count: int = 4):
        self._url = url
        self._pairs = list(zip(bodies, expected, strict=True))
        self._lock = threading.Lock()
        self._asked: list[Asked] = []
        self._open: dict[int, float] = {}
        self._stopping = threading.Event()
        self.wrong: list[str] = []
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def since(self, time_s: float) -> list[Asked]:
        """What ended since then."""
        with self._lock:
            return [asked for asked in self._asked if asked.ended_s >= time_s]

    def in_flight(self) -> int:
        """Questions without an answer now."""
        with self._lock:
            return len(self._open)

    def stop(self) -> None:
        """Wait for the answers that are under way."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(2 * ANSWER_S)

    def _run(self, number: int) -> None:
        draw = random.Random(number)
        while not self._stopping.is_set():
            body, expected = draw.choice(self._pairs)
            began_s = time.monotonic()
            with self._lock:
                self._open[number] = began_s
            error: str | None = None
            try:
                if (text := self._ask(body, began_s)) != expected:
                    error = f"{text!r} instead of {expected!r}, {body}"
                    self.wrong.append(error)
            except (httpx.HTTPError, RuntimeError) as problem:
                error = repr(problem)
            with self._lock:
                del self._open[number]
                self._asked.append(Asked(began_s, time.monotonic(), error))

    def _ask(self, body: Body, began_s: float) -> str:
        """Ask again where nobody takes connections: nothing was in flight."""
        while time.monotonic() < began_s + ANSWER_S:
            with suppress(httpx.ConnectError):
                return answer(self._url, body)
            time.sleep(_REFUSED_S)
        raise RuntimeError(f"nobody took a connection in {ANSWER_S:g} s")
