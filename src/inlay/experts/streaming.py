"""Whether the host computes its experts for a step with a prompt, or the device gets them for it.

    choice = StreamChoice("auto")
    if choice.streams(tokens): ...
    choice.observe(tokens, streamed=True, seconds=0.4)

Pure: it goes by what steps of about as many tokens took. A number of tokens that is new is the
host's first; the other way is tried when bringing alone would take less than that did.
"""

from typing import Literal

from inlay.core.errors import ArgumentError

_KEPT = 0.7
"""Share that what is known of a way keeps when it is measured again."""


class StreamChoice:
    """The quicker of two ways, by powers of two of tokens.

    Args:
        from_tokens: prompt tokens of a step from which experts are brought; `auto` by times, 0
            never.

    Attributes:
        bring_s: what bringing all experts of a step takes; None: nobody knows.
    """

    def __init__(self, from_tokens: Literal["auto"] | int) -> None:
        if from_tokens != "auto" and from_tokens < 0:
            raise ArgumentError(f"from_tokens must be auto or at least 0, got {from_tokens}")
        self.bring_s: float | None = None
        self._from_tokens = from_tokens
        self._seconds: dict[tuple[int, bool], float] = {}

    @property
    def possible(self) -> bool:
        """Whether it may ever be so."""
        return self._from_tokens != 0

    def streams(self, tokens: int) -> bool:
        """Whether the device gets the experts for a step with so many tokens of prompts."""
        if self._from_tokens != "auto":
            return 0 < self._from_tokens <= tokens
        host_s = self._seconds.get((tokens.bit_length(), False))
        if host_s is None or self.bring_s is None:
            return False
        return self._seconds.get((tokens.bit_length(), True), self.bring_s) < host_s

    def observe(self, tokens: int, *, streamed: bool, seconds: float) -> None:
        """A step with so many tokens of prompts, and no others, took so long."""
        at = tokens.bit_length(), streamed
        before = self._seconds.get(at, seconds)
        self._seconds[at] = _KEPT * before + (1 - _KEPT) * seconds
