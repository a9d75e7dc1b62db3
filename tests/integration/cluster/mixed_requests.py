"""Requests of all kinds that clients send, and what of an answer is the same whoever gives it."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

ANSWER_S = 120.0
Fields = dict[str, Any]

_WORDS = (
    "lantern harbour winter amber quiet river stone garden letter window morning thread copper "
    "island paper candle bridge orchard signal mirror valley engine ribbon anchor meadow"
).split()
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "lit": {"type": "boolean"},
        "number": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "lit", "number"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Question:
    """A request's path and body."""

    path: str
    body: Fields


@dataclass
class Choice:
    """One choice of an answer, of a stream or not.

    Attributes:
        logprobs: of each token: its text, its logprob, and those of others.
    """

    text: str = ""
    reason: str | None = None
    logprobs: list[Any] = field(default_factory=list)


def mixed_questions(seed: int, count: int) -> list[Question]:
    """Completions and chats of 1 to about 900 tokens; half of them share beginnings.

    A third is drawn, with seeds; as many are streamed; some have several choices, logprobs, stop
    strings, penalties, or follow a schema, an expression or a list of choices.
    """
    draw = random.Random(seed)
    stem_ids = draw.choices(range(300, 4000), k=300)
    stem = _sentences(draw, 120)
    return [_question(draw, number, stem_ids, stem) for number in range(count)]


def _question(draw: random.Random, number: int, stem_ids: list[int], stem: str) -> Question:
    body: Fields = {"max_tokens": draw.choice((1, 5, 24, 48))}
    body |= {"temperature": 0.8, "seed": number} if number % 3 == 1 else {"temperature": 0}
    if number % 3 == 2:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    if number % 7 == 3:
        body["n"] = 2 + number % 2
    body |= draw.choice(_KINDS)(draw)
    shared = draw.random() < 0.5
    if number % 2:
        own = _sentences(draw, draw.choice((1, 8, 40, 160)))
        if draw.random() < 0.2:
            body |= {"logprobs": True, "top_logprobs": 2}
        return Question(
            "/v1/chat/completions", body | {"messages": _turns(draw, stem, own, shared)}
        )
    if draw.random() < 0.2:
        body["logprobs"] = 2
    if draw.random() < 0.3:
        own = _sentences(draw, draw.choice((1, 20, 200)))
        return Question("/v1/completions", body | {"prompt": (stem if shared else "") + own})
    ids = draw.choices(range(300, 4000), k=draw.choice((1, 15, 16, 17, 120, 300, 500)))
    return Question("/v1/completions", body | {"prompt": (stem_ids if shared else []) + ids})


def _turns(draw: random.Random, stem: str, own: str, shared: bool) -> list[Fields]:
    turns = [{"role": "system", "content": stem}] if shared else []
    if draw.random() < 0.3:
        turns.append({"role": "user", "content": _sentences(draw, 10)})
        turns.append({"role": "assistant", "content": _sentences(draw, 20)})
    return [*turns, {"role": "user", "content": own}]


def _sentences(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(_WORDS, k=words)).capitalize() + ". "


def _schema(_: random.Random) -> Fields:
    described = {"name": "lamp", "schema": _SCHEMA}
    return {
        "response_format": {"type": "json_schema", "json_schema": described},
        "max_tokens": 64,
    }


def _stops(draw: random.Random) -> Fields:
    return {"stop": draw.sample(("e", " a", "th", ".", "\n"), 2), "max_tokens": 48}


_KINDS: tuple[Callable[[random.Random], Fields], ...] = (
    *[lambda _: {}] * 3,
    lambda _: {"ignore_eos": True, "max_tokens": 64},
    _stops,
    lambda _: {"frequency_penalty": 0.7, "presence_penalty": 0.3},
    lambda draw: {"logit_bias": {str(draw.randrange(300, 4000)): 4.0}},
    _schema,
    lambda _: {"guided_regex": r"[0-9]{3}-[a-f]{2,6}", "max_tokens": 32},
    lambda draw: {"guided_choice": draw.sample(_WORDS, 4), "max_tokens": 16},
)


def answer(url: str, question: Question) -> dict[str, Any]:
    """What a server says, in the same form whether it streams or not.

    Raises:
        httpx.HTTPError, RuntimeError: it is not whole.
    """
    choices: dict[int, Choice] = {}
    usage: dict[str, Any] | None = None
    for part in _parts(url, question):
        for one in part["choices"]:
            _add(choices.setdefault(one["index"], Choice()), one)
        usage = part.get("usage") or usage
    if usage is None or any(one.reason is None for one in choices.values()):
        raise RuntimeError(f"the answer is not whole: {choices}")
    return {
        "choices": [choices[index] for index in sorted(choices)],
        "tokens": (usage["prompt_tokens"], usage["completion_tokens"]),
    }


def _parts(url: str, question: Question) -> Iterator[dict[str, Any]]:
    with httpx.stream("POST", url + question.path, json=question.body, timeout=ANSWER_S) as reply:
        if reply.status_code != 200:
            raise RuntimeError(f"HTTP {reply.status_code}: {reply.read().decode()[:300]}")
        if not question.body.get("stream"):
            yield json.loads(reply.read())
            return
        for line in reply.iter_lines():
            if line == "data: [DONE]":
                return
            if line.startswith("data: "):
                part = json.loads(line[6:])
                if "error" in part:
                    raise RuntimeError(f"error in the stream: {part['error']}")
                yield part
    raise RuntimeError("the stream ended early")


def _add(choice: Choice, part: dict[str, Any]) -> None:
    said = part.get("delta") or part.get("message") or {}
    choice.text += part.get("text") or said.get("content") or ""
    choice.reason = part.get("finish_reason") or choice.reason
    found = part.get("logprobs") or {}
    if "content" in found:
        choice.logprobs += [
            (
                one["token"],
                one["logprob"],
                [(o["token"], o["logprob"]) for o in one["top_logprobs"]],
            )
            for one in found["content"] or ()
        ]
    elif found:
        choice.logprobs += zip(
            found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True
        )
