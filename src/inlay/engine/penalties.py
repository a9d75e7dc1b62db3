"""Changes to one row of logits: logit bias, penalties, banned tokens."""

import numpy as np

from inlay.core.messages import SamplingParams
from inlay.engine.probabilities import Float32


class TokenCounts:
    """How often each token occurred, kept sparse: O(1) per token, O(distinct) memory."""

    __slots__ = ("_counts", "_ids", "_places", "_size")

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._ids = np.empty(64, np.int64)
        self._counts = np.empty(64, np.float32)
        self._size = 0

    def add(self, token_id: int) -> None:
        """Count one more occurrence."""
        place = self._places.get(token_id)
        if place is not None:
            self._counts[place] += 1
            return
        if self._size == len(self._ids):
            self._ids = np.concatenate((self._ids, np.empty_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.empty_like(self._counts)))
        self._places[token_id] = self._size
        self._ids[self._size] = token_id
        self._counts[self._size] = 1
        self._size += 1

    @property
    def ids(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Distinct tokens, in order of first occurrence."""
        return self._ids[: self._size]

    @property
    def counts(self) -> Float32:
        """Occurrences of `ids`."""
        return self._counts[: self._size]


class Penalties:
    """Presence, frequency and repetition penalties of one choice.

    Presence and frequency look at the output, repetition at prompt and output.
    """

    __slots__ = ("_frequency", "_output", "_presence", "_repetition", "_seen")

    def __init__(self, params: SamplingParams, prompt_ids: list[int]) -> None:
        self._presence = np.float32(params.presence_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self._repetition = np.float32(params.repetition_penalty)
        self._output = TokenCounts() if self._presence or self._frequency else None
        self._seen: TokenCounts | None = None
        if self._repetition != 1.0:
            self._seen = TokenCounts()
            for token_id in prompt_ids:
                self._seen.add(token_id)

    @staticmethod
    def wanted(params: SamplingParams) -> bool:
        """Whether the parameters ask for any penalty."""
        return bool(
            params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0
        )

    def add(self, token_id: int) -> None:
        """A token was put out."""
        if self._output is not None:
            self._output.add(token_id)
        if self._seen is not None:
            self._seen.add(token_id)

    def apply(self, logits_V: Float32) -> None:
        """Change one row of logits in place. Cost: O(distinct tokens)."""
        if self._seen is not None:
            ids = self._seen.ids
            values = logits_V[ids]
            logits_V[ids] = np.where(
                values > 0, values / self._repetition, values * self._repetition
            )
        if self._output is not None:
            counts = self._output.counts
            logits_V[self._output.ids] -= self._frequency * counts + self._presence
