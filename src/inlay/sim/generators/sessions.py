"""Sessions whose prompts grow: the one model that all drawn traces are made of.

A session begins with shared texts and an opening of its own. Each turn's prompt is that of the turn
before, its answer, and something new: a user's words, or what a tool said.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inlay.core.errors import ConfigError
from inlay.sim.generators.distributions import LogNormal, draw_geometric, draw_zipf
from inlay.sim.generators.text_tree import EMPTY, TextTree
from inlay.sim.trace import BLOCK_TOKENS, Trace
from inlay.sim.transform import by_arrival, head, join, merge_parts

Seed = int | np.random.SeedSequence

_PART_REQUESTS = 1024
"""Of a part that is drawn, at least about so many."""
_MAX_NAMES = 2**62
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


class _DrawnTexts:
    """Shared texts, each drawn once, and names of their blocks.

    Which texts lie before a block gives its name: none is remembered, however many ways there are
    to choose.

    Attributes:
        names: how many there are, from 0 on.
    """

    def __init__(
        self, shared: Sequence[SharedTexts], random: np.random.Generator, block_tokens: int
    ) -> None:
        # Of each that is chosen: out of which, their tokens, its first name, and most of a text.
        self._levels: list[tuple[SharedTexts, NDArray[np.int64], int, int]] = []
        self.names, ways = 0, 1
        for texts in shared:
            tokens = texts.tokens.draw_tokens(random, texts.count)
            most = int(tokens.max()) // block_tokens + 2
            for _ in range(texts.chosen):
                ways *= texts.count
                self._levels.append((texts, tokens, self.names, most))
                self.names += ways * most
        if self.names >= _MAX_NAMES:
            raise ConfigError(
                f"shared texts can be chosen in {ways:.1e} ways, whose blocks have more names than "
                f"there are: choose fewer of them one behind the other"
            )

    def add(self, random: np.random.Generator, tree: TextTree, many: int) -> NDArray[np.int64]:
        """So many choices, as texts of a tree."""
        text, way = np.full(many, EMPTY), np.zeros(many, np.int64)
        for texts, tokens, first, most in self._levels:
            pick = draw_zipf(random, texts.count, texts.exponent, many)
            way = way * texts.count + pick
            ways, one, member = np.unique(way, return_index=True, return_inverse=True)
            text = tree.add(text[one], tokens[pick[one]], first + ways * most)[member]
        return text


@dataclass(frozen=True, kw_only=True)
class Sessions:
    """Draws traces. Sessions begin as a Poisson process; some have begun before a trace does.

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
        return _first(self.parts(seed, block_tokens=block_tokens), requests)

    def parts(self, seed: Seed, *, block_tokens: int = BLOCK_TOKENS) -> Iterator[Trace]:
        """A trace without an end, in parts of some thousand requests; `draw` has its beginning.

        Memory holds the requests of sessions that have begun.
        """
        random = np.random.default_rng(seed)
        shared = _DrawnTexts(self.shared, random, block_tokens)
        length_s = self.turns * (self.pause_s.mean + self.token_s * self.output.mean)
        warm_up_s = _WARM_UP * length_s
        # As many as are under way at least: these are sorted once more with each part.
        many = math.ceil(max(_PART_REQUESTS, self.rate * length_s) / self.turns)
        now_s, session, names = 0.0, 0, shared.names
        waiting: list[Trace] = []
        while True:
            tree = TextTree(block_tokens, names)
            begin_s = now_s + np.cumsum(random.exponential(self.turns / self.rate, many))
            now_s = float(begin_s[-1])
            text = shared.add(random, tree, many)
            asked = by_arrival([*waiting, self._asked(random, tree, text, begin_s, session)])
            names, session = tree.names, session + many
            past, due = np.searchsorted(asked.arrival_s, (warm_up_s, now_s))
            waiting = [asked.select(np.arange(due, len(asked)))]
            if past < due:
                part = asked.select(np.arange(past, due))
                yield part.at_times(part.arrival_s - warm_up_s)

    def _asked(
        self,
        random: np.random.Generator,
        tree: TextTree,
        text: NDArray[np.int64],
        begin_s: NDArray[np.float64],
        first: int,
    ) -> Trace:
        """All that some sessions ask; they have a number each from `first` on."""
        turns = draw_geometric(random, self.turns, len(text))
        text = tree.add(text, self.opening.draw_tokens(random, len(text)))
        if tree.tokens(text).min() > self.max_tokens:
            raise ConfigError(
                f"{self.name}: no first prompt is within max_tokens ({self.max_tokens})"
            )
        session, time_s = np.arange(len(text)), begin_s
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
        order = np.argsort(time_s, kind="stable")
        return tree.trace(
            text[order],
            arrival_s=time_s[order],
            output_tokens=output[order],
            session=first + session[order],
            groups=(self.name,),
        )


@dataclass(frozen=True)
class Mixture:
    """Several kinds of sessions at the same time, each with its rate and a group of its name."""

    kinds: tuple[Sessions, ...]

    def __post_init__(self) -> None:
        if not self.kinds:
            raise ConfigError("a mixture must have at least one kind of sessions")

    def draw(self, seed: Seed, requests: int, *, block_tokens: int = BLOCK_TOKENS) -> Trace:
        """As of `Sessions`."""
        return _first(self.parts(seed, block_tokens=block_tokens), requests)

    def parts(self, seed: Seed, *, block_tokens: int = BLOCK_TOKENS) -> Iterator[Trace]:
        """As of `Sessions`."""
        own = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        seeds = own.spawn(len(self.kinds))
        return merge_parts(
            [
                part.parts(one, block_tokens=block_tokens)
                for part, one in zip(self.kinds, seeds, strict=True)
            ]
        )


def _first(parts: Iterator[Trace], requests: int) -> Trace:
    """So many requests from the beginning of an endless trace."""
    if requests < 1:
        raise ConfigError(f"requests must be at least 1, got {requests}")
    return join(list(head(parts, requests)))
