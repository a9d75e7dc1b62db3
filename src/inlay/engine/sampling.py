"""Chooses the next tokens of a batch. Vectorised over rows; each row stands alone.

Legend: R rows of logits, N samples (a row may be sampled for several choices), V vocabulary.

Order for one sample: logit bias, penalties, banned tokens, grammar mask; then greedy, or
temperature, min-p, top-k, top-p and a draw. Log probabilities are of the raw distribution,
before any of these.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from inlay.core.messages import SamplingParams, TokenLogprob
from inlay.engine.draws import draw
from inlay.engine.filters import likely_tokens
from inlay.engine.penalties import Penalties
from inlay.engine.probabilities import (
    Float32,
    draw_place,
    draw_tokens,
    log_sum_exp,
    padded_width,
    top_ids,
    weights,
)

GREEDY_BELOW = 1e-5
# Beyond it all tokens are equally likely anyway, and one over it would be zero in float32, which
# times a forbidden token's minus infinity is no number.
_HOTTEST = 1e30


class TokenMask(Protocol):
    """Forbids tokens, by a grammar for example."""

    def apply(self, logits_V: Float32) -> None:
        """Set the logits of forbidden tokens to minus infinity, in place."""
        ...


class ChoiceSampler:
    """How one choice is sampled; holds its penalties and its place in the random sequence.

    Args:
        params: of the request.
        seed: of the request, chosen by the engine where it brings none.
        choice: 0..n-1.
        prompt_ids: for the repetition penalty.
        end_ids: tokens that may not come before `min_tokens`.
        mask: grammar of the choice.
    """

    __slots__ = (
        "_bias_ids",
        "_bias_values",
        "_end_ids",
        "adjusts",
        "choice",
        "filters",
        "greedy",
        "inverse_temperature",
        "mask",
        "params",
        "penalties",
        "position",
        "seed",
    )

    def __init__(
        self,
        params: SamplingParams,
        *,
        seed: int,
        choice: int,
        prompt_ids: list[int],
        end_ids: frozenset[int],
        mask: TokenMask | None = None,
    ) -> None:
        self.params = params
        self.seed = seed
        self.choice = choice
        self.position = 0
        self.mask = mask
        self.greedy = params.temperature < GREEDY_BELOW
        self.inverse_temperature = 1.0 if self.greedy else 1.0 / min(params.temperature, _HOTTEST)
        self.filters = params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0
        self.penalties = Penalties(params, prompt_ids) if Penalties.wanted(params) else None
        self._bias_ids = np.array(list(params.logit_bias), np.int64)
        self._bias_values = np.array(list(params.logit_bias.values()), np.float32)
        self._end_ids = np.array(sorted(end_ids), np.int64) if params.min_tokens else None
        self.adjusts = bool(
            params.logit_bias or self.penalties or mask or (params.min_tokens and end_ids)
        )

    def add(self, token_id: int) -> None:
        """A token was put out."""
        self.position += 1
        if self.penalties is not None:
            self.penalties.add(token_id)

    def adjust(self, logits_V: Float32) -> None:
        """Apply bias, penalties, bans and the grammar to one row, in place."""
        if len(self._bias_ids):
            logits_V[self._bias_ids] += self._bias_values
        if self.penalties is not None:
            self.penalties.apply(logits_V)
        if self._end_ids is not None and self.position < self.params.min_tokens:
            self._ban_ends(logits_V)
        if self.mask is not None:
            self.mask.apply(logits_V)

    def _ban_ends(self, logits_V: Float32) -> None:
        # A grammar that allows nothing but an end wins over min_tokens: its mask comes after,
        # and the caller ends a choice that has no token left.
        logits_V[self._end_ids] = -np.inf


@dataclass(frozen=True, slots=True)
class Samples:
    """Tokens chosen in one step.

    Attributes:
        token_ids: one per sample.
        possible: False where no token could be chosen (all forbidden, or logits not finite).
        logprobs: one per sample that asked for them.
    """

    token_ids: list[int]
    possible: list[bool]
    logprobs: list[TokenLogprob | None]


class Sampler:
    """Samples batches. Keeps scratch memory between steps, nothing else."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._memory_RW = np.empty((0, padded_width(vocab_size)), np.float32)

    def sample(self, logits_NV: Float32, samplers: Sequence[ChoiceSampler]) -> Samples:
        """Choose one token per row.

        Args:
            logits_NV: one row per sampler; contiguous, and changed by this call.
            samplers: as long as N; their state does not change.
        """
        logprob_rows = [n for n, s in enumerate(samplers) if s.params.logprobs is not None]
        raw_rows = logits_NV[logprob_rows] if logprob_rows else None
        for n, sampler in enumerate(samplers):
            if sampler.adjusts:
                sampler.adjust(logits_NV[n])
        tokens_N = logits_NV.argmax(axis=1)
        highest_N = logits_NV[np.arange(len(samplers)), tokens_N]
        possible_N = np.isfinite(highest_N)
        plain = []
        for n, sampler in enumerate(samplers):
            if sampler.greedy or not possible_N[n]:
                continue
            if sampler.filters:
                tokens_N[n] = self._draw_filtered(logits_NV[n], highest_N[n], sampler)
            else:
                plain.append(n)
        if plain:
            tokens_N[plain] = self._draw(logits_NV, highest_N, plain, samplers)
        logprobs: list[TokenLogprob | None] = [None] * len(samplers)
        if raw_rows is not None:
            found = token_logprobs(
                raw_rows,
                tokens_N[logprob_rows].tolist(),
                [samplers[n].params.logprobs or 0 for n in logprob_rows],
            )
            for n, logprob in zip(logprob_rows, found, strict=True):
                logprobs[n] = logprob
        return Samples(tokens_N.tolist(), possible_N.tolist(), logprobs)

    def _draw(
        self,
        logits_NV: Float32,
        highest_N: Float32,
        drawn: list[int],
        samplers: Sequence[ChoiceSampler],
    ) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        chosen = [samplers[n] for n in drawn]
        scale = np.array([s.inverse_temperature for s in chosen], np.float32)
        everyone = len(drawn) == len(samplers)
        weights_RW = weights(
            logits_NV if everyone else logits_NV[drawn],
            highest_N if everyone else highest_N[drawn],
            scale,
            self._scratch(len(drawn)),
        )
        uniform = np.array([draw(s.seed, s.choice, s.position) for s in chosen])
        return draw_tokens(weights_RW, uniform)

    def _draw_filtered(self, logits_V: Float32, highest: np.float32, sampler: ChoiceSampler) -> int:
        params = sampler.params
        ids, kept = likely_tokens(
            logits_V,
            highest,
            sampler.inverse_temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            scratch_1W=self._scratch(1),
        )
        uniform = draw(sampler.seed, sampler.choice, sampler.position)
        return int(ids[draw_place(kept, uniform)])

    def _scratch(self, rows: int) -> Float32:
        if len(self._memory_RW) < rows:
            self._memory_RW = np.empty((rows, padded_width(self._vocab_size)), np.float32)
        return self._memory_RW[:rows]


def token_logprobs(
    logits_RV: Float32, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprob]:
    """Log probability of one token per row, with the most likely alternatives.

    Args:
        logits_RV: raw logits.
        token_ids: R tokens.
        num_top: R numbers of alternatives, each at least 0.
    """
    totals = log_sum_exp(logits_RV)
    result = []
    for row, (token_id, count) in enumerate(zip(token_ids, num_top, strict=True)):
        values, total = logits_RV[row], totals[row]
        ids = top_ids(values, count) if count else np.empty(0, np.int64)
        top = zip(ids.tolist(), (values[ids] - total).tolist(), strict=True)
        result.append(TokenLogprob(token_id, float(values[token_id] - total), tuple(top)))
    return result
