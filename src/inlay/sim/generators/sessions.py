"""Sessions whose prompts grow: the one model that all drawn traces are made of.

A session begins with shared texts and an opening of its own. Each turn's prompt is that of the turn
before, its answer, and something new: a user's words, or what a tool said.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inlay.core.errors import ConfigError
from inlay.sim.generators.distributions import LogNormal, draw_geometric, draw_zipf
from inlay.sim.generators.text_tree import EMPTY, TextTree
from inlay.sim.trace import BLOCK_TOKENS, Trace
from inlay.sim.transform import merge

Seed = int | np.random.SeedSequence

_WARM_UP = 5
"""Mean lengths of a session that pass before the trace begins: one in e^5 lasts longer."""


@dataclass(frozen=True, kw_only=True)
class SharedTexts:
    """Texts that sessions begin with: system prompts, tools, documents.

    Attributes:
        count: how many there are.
        tokens: their lengths, each drawn once.
        exponent: how much some are preferred, by Zipf's law; 0: not at all.
        chosen: so many lie one behind the other, each chosen by itself.
    """

    count: int = 1
    tokens: LogNormal
    exponent: float = 1.0
    chosen: int = 1

    def __post_init__(self) -> None:
        if self.count < 1 or self.chosen < 1:
            raise ConfigError(
                f"count and chosen must be at least 1, got {self.count}, {self.chosen}"
            )
        if not 0 <= self.exponent < np.inf:
            raise ConfigError(f"exponent must be 0 or more and finite, got {self.exponent}")

    def draw(
        self, random: np.random.Generator, tree: TextTree, before: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """For each of the texts `before`, that which goes on with chosen ones of these."""
        tokens = self.tokens.draw_tokens(random, self.count)
        for _ in range(self.chosen):
            pick = draw_zipf(random, self.count, self.exponent, len(before))
            pairs, member = np.unique((before + 1) * self.count + pick, return_inverse=True)
            parents, picks = np.divmod(pairs, self.count)
            before = tree.add(parents - 1, tokens[picks])[member]
        return before


@dataclass(frozen=True, kw_only=True)
class Sessions:
    """Draws a trace. Sessions begin as a Poisson process; the trace is cut out of its middle.

    Attributes:
        name: what the trace calls the group of its requests.
        rate: requests per second on average.
        shared: what sessions begin with, one behind the other.
        opening: tokens of a session's own behind that, in its first prompt.
        turns: mean number of turns, geometric from 1 on.
        added: new tokens of each later turn, behind the answer before.
        output: tokens of an answer.
        pause_s: from the end of an answer to the next turn.
        token_s: what a token of an answer takes, as the times of next turns have it.
        max_tokens: a session ends before a prompt that is longer.
    """

    name: str
    rate: float
    shared: tuple[SharedTexts, ...] = ()
    opening: LogNormal
    turns: float = 1.0
    added: LogNormal = LogNormal(1)
    output: LogNormal
    pause_s: LogNormal = LogNormal(0)
    token_s: float = 0.03
    max_tokens: int = 131_072

    def __post_init__(self) -> None:
        if not 0 < self.rate < np.inf:
            raise ConfigError(f"rate must be above 0 requests per second, got {self.rate}")
        if not 1 <= self.turns < np.inf:
            raise ConfigError(f"turns must be 1 or more and finite, got {self.turns}")
        if not 0 <= self.token_s < np.inf:
            raise ConfigError(f"token_s must be 0 seconds or more, got {self.token_s}")
        if not 1 <= self.max_tokens < 2**31:
            raise ConfigError(f"max_tokens must be 1 to 2^31 - 1, got {self.max_tokens}")

    def draw(self, seed: Seed, requests: int, *, block_tokens: int = BLOCK_TOKENS) -> Trace:
        """So many requests in a row; for the same arguments the same ones.

        Cost: about 10 us per request.
        """
        if requests < 1:
            raise ConfigError(f"requests must be at least 1, got {requests}")
        length_s = self.turns * (self.pause_s.mean + self.token_s * self.output.mean)
        warm_up_s = _WARM_UP * length_s
        count = 16 + round((warm_up_s * self.rate + 1.2 * requests) / self.turns)
        trace = self._drawn(seed, count, warm_up_s, block_tokens)
        while len(trace) < requests:
            count *= 2
            trace = self._drawn(seed, count, warm_up_s, block_tokens)
        return trace.select(np.arange(requests))

    def _drawn(self, seed: Seed, sessions: int, warm_up_s: float, block_tokens: int) -> Trace:
        """What so many sessions ask from `warm_up_s` on, until the last one of them begins."""
        random = np.random.default_rng(seed)
        begin_s = np.cumsum(random.exponential(self.turns / self.rate, sessions))
        turns = draw_geometric(random, self.turns, sessions)
        tree = TextTree()
        text = np.full(sessions, EMPTY)
        for shared in self.shared:
            text = shared.draw(random, tree, text)
        text = tree.add(text, self.opening.draw_tokens(random, sessions))
        if tree.tokens(text).min() > self.max_tokens:
            raise ConfigError(
                f"{self.name}: no first prompt is within max_tokens ({self.max_tokens})"
            )
        session, time_s = np.arange(sessions), begin_s
        rows: list[tuple[NDArray[Any], ...]] = []
        for turn in range(1, int(turns.max()) + 1):
            kept = (turns[session] >= turn) & (tree.tokens(text) <= self.max_tokens)
            session, time_s, text = session[kept], time_s[kept], text[kept]
            output = self.output.draw_tokens(random, len(session))
            rows.append((session, time_s, text, output))
            time_s = time_s + output * self.token_s + self.pause_s.draw(random, len(session))
            text = tree.add(text, output + self.added.draw_tokens(random, len(session)))
        session, time_s, text, output = (
            np.concatenate(column) for column in zip(*rows, strict=True)
        )
        chosen = np.flatnonzero((time_s >= warm_up_s) & (time_s <= begin_s[-1]))
        chosen = chosen[np.argsort(time_s[chosen], kind="stable")]
        return tree.trace(
            text[chosen],
            arrival_s=time_s[chosen] - warm_up_s,
            output_tokens=output[chosen],
            session=session[chosen],
            block_tokens=block_tokens,
            groups=(self.name,),
        )


@dataclass(frozen=True)
class Mixture:
    """Several kinds of sessions at the same time, each with its rate and a group of its name."""

    parts: tuple[Sessions, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ConfigError("a mixture must have at least one part")

    def draw(self, seed: Seed, requests: int, *, block_tokens: int = BLOCK_TOKENS) -> Trace:
        """As of `Sessions`."""
        if requests < 1:
            raise ConfigError(f"requests must be at least 1, got {requests}")
        own = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        seeds = own.spawn(len(self.parts))
        span_s = requests / sum(part.rate for part in self.parts)
        while True:
            span_s *= 1.1
            traces = [
                part.draw(one, 1 + round(part.rate * span_s), block_tokens=block_tokens)
                for part, one in zip(self.parts, seeds, strict=True)
            ]
            merged = merge(traces)
            # Behind the end of the first part that ends, its requests would be missing.
            if np.searchsorted(merged.arrival_s, min(t.duration_s for t in traces)) >= requests:
                return merged.select(np.arange(requests))
