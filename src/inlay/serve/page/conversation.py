"""One visitor's conversation: what was asked and answered, and what is sent for the next answer.

Plain data; knows neither the browser nor the engine.
"""

from dataclasses import dataclass, field, replace
from typing import Self

from inlay.core.messages import RequestTimes, RequestTrace


@dataclass(kw_only=True)
class Sampling:
    """What the settings drawer holds.

    Attributes:
        max_tokens: None lets an answer run to the end of the context.
        seed: None draws afresh for every answer.
    """

    system: str = ""
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    seed: int | None = None


@dataclass(kw_only=True)
class Answer:
    """What came back for one question, as far as it has come.

    Attributes:
        model: who answers, where there are several.
        ttft_s, writing_s: to the first token, and from there on, as seen by the page; the
            engine's own times come with `times`.
        stopped: the visitor pressed stop.
        prompt_tokens, cached_tokens: known from the first token on.
        completion_tokens: so far.
        times, trace: known when it is complete.
    """

    text: str = ""
    reasoning: str = ""
    model: str = ""
    ttft_s: float | None = None
    writing_s: float = 0.0
    stopped: bool = False
    finish_reason: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    times: RequestTimes | None = None
    trace: RequestTrace | None = None


@dataclass(kw_only=True)
class Turn:
    """A question and its answer.

    Attributes:
        document: a text that goes in front of the question.
        fresh: earlier turns are not sent along.
    """

    question: str
    document: str | None = None
    fresh: bool = False
    answer: Answer = field(default_factory=Answer)

    @property
    def prompt(self) -> str:
        """What the model reads: the document stays in front, so that questions share it."""
        if self.document is None:
            return self.question
        return f"<document>\n{self.document}\n</document>\n\n{self.question}"


class Conversation:
    """The turns so far, with one of those who answer."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []

    def copy(self) -> Self:
        """The same turns, to go on with somebody else."""
        other = type(self)()
        other.turns = [replace(turn, answer=replace(turn.answer)) for turn in self.turns]
        return other

    def ask(self, question: str, *, document: str | None = None) -> Turn:
        """Begin a turn. A question about a document stands on its own: no earlier turns."""
        turn = Turn(question=question, document=document, fresh=document is not None)
        self.turns.append(turn)
        return turn

    def again(self) -> Turn:
        """Drop the last answer; its question is to be asked once more."""
        turn = self.turns[-1]
        turn.answer = Answer()
        return turn

    def messages(self, system: str) -> list[dict[str, str]]:
        """What to send for the last turn: from the last fresh one on, unanswered ones left out."""
        start = max((i for i, turn in enumerate(self.turns) if turn.fresh), default=0)
        messages = [{"role": "system", "content": system.strip()}] if system.strip() else []
        for turn in self.turns[start:-1]:
            if turn.answer.text:
                messages.append({"role": "user", "content": turn.prompt})
                messages.append({"role": "assistant", "content": turn.answer.text})
        messages.append({"role": "user", "content": self.turns[-1].prompt})
        return messages
