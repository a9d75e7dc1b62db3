"""The figures under an answer, from what the engine reported. Plain arithmetic and words."""

from dataclasses import dataclass

from inlay.serve.page.conversation import Answer


@dataclass(frozen=True, kw_only=True)
class Phases:
    """How long a request spent where, in seconds."""

    queued_s: float
    prefill_s: float
    decode_s: float

    @property
    def total_s(self) -> float:
        """From arrival to the last token."""
        return self.queued_s + self.prefill_s + self.decode_s


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured value: its label, its text, and what it means."""

    label: str
    value: str
    meaning: str


def phases(answer: Answer) -> Phases | None:
    """The parts of a request's life; None while it is not complete."""
    times = answer.times
    if times is None:
        return None
    return Phases(
        queued_s=max(0.0, times.scheduled_s - times.arrival_s),
        prefill_s=max(0.0, times.first_token_s - times.scheduled_s),
        decode_s=max(0.0, times.finished_s - times.first_token_s),
    )


def seconds(value: float) -> str:
    """A duration for people: `0.8 ms`, `41 ms`, `1.32 s`."""
    if value < 0.00995:
        return f"{value * 1e3:.1f} ms"
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.2f} s"


def rate(tokens: int, duration_s: float) -> str | None:
    """Tokens per second, or None when there is nothing to divide."""
    if tokens <= 0 or duration_s <= 0:
        return None
    per_second = tokens / duration_s
    return f"{per_second:,.0f} tok/s" if per_second >= 10 else f"{per_second:.1f} tok/s"


def compared(earlier: Answer, now: Answer) -> str | None:
    """What the cache saved the second question on a document; None if it shows no gain."""
    if earlier.times is None or now.times is None:
        return None
    before_s = earlier.times.first_token_s - earlier.times.arrival_s
    now_s = now.times.first_token_s - now.times.arrival_s
    if now.cached_tokens <= earlier.cached_tokens or now_s >= before_s:
        return None
    return (
        f"First token after {seconds(now_s)} instead of {seconds(before_s)}: "
        f"{now.cached_tokens:,} of {now.prompt_tokens:,} prompt tokens came from the cache."
    )


def figures(answer: Answer) -> list[Figure]:
    """What to show under an answer, complete or stopped; only what is known."""
    spans = phases(answer)
    if spans is not None:
        ttft_s, prefill_s, decode_s = (
            spans.queued_s + spans.prefill_s,
            spans.prefill_s,
            spans.decode_s,
        )
    elif answer.ttft_s is not None:
        ttft_s, prefill_s, decode_s = answer.ttft_s, answer.ttft_s, answer.writing_s
    else:
        return []
    read = answer.prompt_tokens - answer.cached_tokens
    after_first = answer.completion_tokens - 1
    found = [
        ("TTFT", seconds(ttft_s), "Time to first token: from arrival to the first token"),
        (
            "prefill",
            rate(read, prefill_s),
            f"{read:,} prompt tokens computed in {seconds(prefill_s)}",
        ),
        (
            "decode",
            rate(after_first, decode_s),
            f"{answer.completion_tokens:,} tokens; those after the first took {seconds(decode_s)}",
        ),
        (
            "cached",
            f"{answer.cached_tokens:,} of {answer.prompt_tokens:,} tokens",
            "Prompt tokens whose keys and values were already in the cache",
        ),
    ]
    return [
        Figure(label=label, value=value, meaning=meaning)
        for label, value, meaning in found
        if value is not None
    ]
