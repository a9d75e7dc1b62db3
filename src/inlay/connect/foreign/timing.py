"""How long an engine's steps take, as far as its answers tell.

Engines do not say what a step computed. Where one prompt alone was to be computed, its steps took
from asking to the first token; where none was, a token follows the one before after one step.
Events of several steps may be read at once, so the mean of some steps is one sample. Times between
are not used. They have the way to the engine and back in them, as clients do.
"""

from collections import deque
from dataclasses import dataclass

from inlay.core.instance_messages import StepSample
from inlay.core.instance_news import MAX_SAMPLES

_RUN_TOKENS = 5  # of steps that are one sample; calibration asks for three times as many


class Choice:
    """One choice that an engine computes.

    Attributes:
        asked_s: when.
        start, stop: its tokens that are to be computed first, from the one to the other.
        context: tokens that it has.
        alone: no other prompt was to be computed meanwhile.
        begun_s, last_s: when its first and last tokens came; None: there was none.
        prompts: that had been asked for when its last token came; None: one was being computed.
    """

    __slots__ = ("alone", "asked_s", "begun_s", "context", "last_s", "prompts", "start", "stop")

    def __init__(self, start: int, stop: int, now_s: float) -> None:
        self.asked_s = now_s
        self.start, self.stop, self.context = start, stop, stop
        self.begun_s: float | None = None
        self.last_s = now_s
        self.alone = True
        self.prompts: int | None = None

    @property
    def todo(self) -> int:
        """Prompt tokens that are still to be computed."""
        return self.stop - self.start if self.begun_s is None else 0


@dataclass(slots=True)
class _Run:
    """Steps one after the other that compute a token of the same choices each, and no prompt.

    Attributes:
        decoding: these choices.
        contexts: tokens that they had before, in all.
        since_s: when the token before the first one came.
        tokens: of the oldest choice, which stands for all: they are in the same steps.
    """

    decoding: list[Choice]
    contexts: int
    since_s: float
    tokens: int = 0


class StepTimes:
    """Steps of one engine. Pure: no clock.

    Args:
        prefill_chunk: most prompt tokens of a step.

    Attributes:
        choices: that are open, in the order of asking.
    """

    def __init__(self, prefill_chunk: int) -> None:
        self.choices: dict[Choice, None] = {}
        self._chunk = prefill_chunk
        self._prompts = 0  # begun so far
        self._run: _Run | None = None
        self._samples: deque[StepSample] = deque(maxlen=MAX_SAMPLES)

    def asked(self, start: int, stop: int, now_s: float) -> Choice:
        """A choice is asked for, whose first `start` tokens the engine should have."""
        choice = Choice(start, stop, now_s)
        for other in self.choices:
            if other.begun_s is None:
                other.alone = choice.alone = False
        self._prompts += 1
        self.choices[choice] = None
        return choice

    def came(self, choice: Choice, tokens: int, now_s: float) -> None:
        """Tokens of a choice came."""
        decoding = [one for one in self.choices if one.begun_s is not None]
        contexts = sum(one.context for one in decoding)
        if choice.begun_s is None:
            choice.begun_s = now_s
            if choice.alone:
                self._add_prompt(choice, len(decoding), contexts, now_s)
        elif decoding[0] is choice:
            self._decoded(choice, tokens, decoding, contexts, now_s)
        choice.context += tokens
        choice.last_s = now_s
        choice.prompts = None if self._prefilling else self._prompts

    def ended(self, choice: Choice) -> None:
        """Nothing more of a choice will come."""
        self.choices.pop(choice, None)

    def take(self) -> tuple[StepSample, ...]:
        """Steps since the last call, the latest `MAX_SAMPLES` at most."""
        samples = tuple(self._samples)
        self._samples.clear()
        return samples

    @property
    def _prefilling(self) -> bool:
        return any(one.begun_s is None for one in self.choices)

    def _decoded(
        self, oldest: Choice, tokens: int, decoding: list[Choice], contexts: int, now_s: float
    ) -> None:
        """Tokens of the oldest choice came that has some already."""
        run = self._run
        if oldest.prompts != self._prompts or self._prefilling:
            self._run = None
            return
        if run is None or run.decoding != decoding:
            run = self._run = _Run(decoding, contexts, oldest.last_s)
        run.tokens += tokens
        if run.tokens >= _RUN_TOKENS:
            mean_contexts = (run.contexts + contexts) // 2
            self._add(0, 0, len(decoding), mean_contexts, (now_s - run.since_s) / run.tokens)
            self._run = None

    def _add_prompt(self, choice: Choice, decodes: int, contexts: int, now_s: float) -> None:
        """The mean of the steps that computed a prompt."""
        tokens = choice.stop - choice.start
        steps = -(-tokens // self._chunk)
        pairs = tokens * (choice.start + choice.stop + 1) // 2
        seconds = (now_s - choice.asked_s) / steps
        self._add(tokens // steps, pairs // steps, decodes, contexts, seconds)

    def _add(self, tokens: int, pairs: int, decodes: int, contexts: int, seconds: float) -> None:
        if seconds > 0:
            self._samples.append(StepSample(tokens, pairs, decodes, contexts, seconds))
