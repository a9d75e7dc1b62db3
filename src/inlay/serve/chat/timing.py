"""The figures under each answer: how long the prompt and the answer took, and at which rates."""

import time
from dataclasses import dataclass, field


@dataclass
class AnswerTiming:
    """Times of one answer, as the person waiting for it sees them.

    Prompt evaluation runs from sending to the first token; the tokens that were evaluated are
    those not found in the cache. Evaluation runs from the first token to the last; its rate leaves
    out the first token, which came with the prompt.
    """

    sent_s: float = field(default_factory=time.perf_counter)
    first_s: float | None = None
    last_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def saw_tokens(self, count: int) -> None:
        """Note that tokens arrived now."""
        now_s = time.perf_counter()
        if self.first_s is None:
            self.first_s = now_s
        self.last_s = now_s
        self.output_tokens += count

    @property
    def prompt_s(self) -> float:
        """Sending to first token."""
        return (self.first_s or self.sent_s) - self.sent_s

    @property
    def output_s(self) -> float:
        """First token to last token."""
        return (self.last_s or 0.0) - (self.first_s or 0.0)

    @property
    def evaluated_tokens(self) -> int:
        """Prompt tokens that had to be computed."""
        return self.prompt_tokens - self.cached_tokens

    def lines(self) -> list[str]:
        """The report, one figure per line."""
        cached = f" (and {self.cached_tokens} from the cache)" if self.cached_tokens else ""
        return [
            f"prompt eval count:    {self.evaluated_tokens} token(s){cached}",
            f"prompt eval duration: {format_seconds(self.prompt_s)}",
            f"prompt eval rate:     {_rate(self.evaluated_tokens, self.prompt_s)}",
            f"eval count:           {self.output_tokens} token(s)",
            f"eval duration:        {format_seconds(self.output_s)}",
            f"eval rate:            {_rate(self.output_tokens - 1, self.output_s)}",
        ]


def format_seconds(seconds: float) -> str:
    """`12.3 ms` below a second, `1.23 s` from there on."""
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.2f} tokens/s" if tokens > 0 and seconds > 0 else "-"
