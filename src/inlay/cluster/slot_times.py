"""How long steps take at each slot, with what decodes there now. Pure: no clock, no I/O."""

import numpy as np

from inlay.cluster.slots import Floats, Slots, empty

WORK_MEMORY_S = 10.0
"""Over which `recent_work_s` is a decaying sum."""
_WORST_TENTH = 1.75  # the mean of the worst tenth, in standard deviations above the mean


class SlotTimes(Slots):
    """Times of steps, and what they depend on. All arrays are (S,).

    Attributes:
        base_s, token_s, half_pair_s: computing `n - r` tokens behind `r` known ones takes
            `base_s + (n - r) * (token_s + half_pair_s * (n + r))`, with what decodes there now.
        relative_std: of what a sum of steps takes.
        step_s, next_step_s: a decode step with what decodes there now, and with one more row.
        row_s, context_s: what one more row, and one more token of context, add to it.
        chunk_s: what a part of a prompt, as they are sent there, adds to it.
        rows, context_tokens: what decodes there.
        recent_work_s: predicted work sent there, as a sum that decays over `WORK_MEMORY_S`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.base_s, self.token_s, self.half_pair_s = empty(), empty(), empty()
        self.relative_std = empty()
        self.step_s, self.next_step_s = empty(), empty()
        self.row_s, self.context_s = empty(), empty()
        self.chunk_s = empty()
        self.rows, self.context_tokens = empty(), empty()
        self.recent_work_s = empty()

    def tbt_s(self, rows: Floats, context_tokens: Floats) -> Floats:
        """Mean of the worst tenth of gaps where so much decodes, the new request included.

        Where prompts are computed, too, the worst steps are those that have a part of one.
        """
        mixed = np.minimum(self.recent_work_s * (10.0 / WORK_MEMORY_S), 1.0)
        extra_rows, extra_tokens = rows - self.rows, context_tokens - self.context_tokens
        step_s: Floats = self.step_s + self.row_s * extra_rows + self.context_s * extra_tokens
        step_s += mixed * self.chunk_s
        step_s *= self.relative_std * _WORST_TENTH + 1.0
        return step_s

    def tbt_at_s(self, slot: int, rows: float, context_tokens: float) -> float:
        """`tbt_s` of one slot."""
        mixed = min(self.recent_work_s.item(slot) * (10.0 / WORK_MEMORY_S), 1.0)
        step_s = self.step_s.item(slot) + mixed * self.chunk_s.item(slot)
        step_s += self.row_s.item(slot) * (rows - self.rows.item(slot))
        step_s += self.context_s.item(slot) * (context_tokens - self.context_tokens.item(slot))
        return step_s * (1.0 + _WORST_TENTH * self.relative_std.item(slot))

    def longest_step_s(self, slot: int) -> float:
        """A step with a full chunk of a prompt."""
        return self.step_s.item(slot) + self.chunk_s.item(slot)

    def _refresh(self, slot: int) -> None:
        """Bring the times of steps up to what decodes there now."""
        one = self._slot(slot)
        c0, c1, c2, d0, d1, d2 = one.timing.coefficients.tolist()
        if one.seconds is not one.timing.coefficients:  # they changed, or this is the first time
            one.seconds = one.timing.coefficients
            self.half_pair_s[slot] = c2 / 2
            self.relative_std[slot] = one.timing.relative_std
            self.row_s[slot], self.context_s[slot] = d1, d2
        decoding_s = d1 * self.rows.item(slot) + d2 * self.context_tokens.item(slot)
        base_s = c0 + decoding_s
        self.base_s[slot] = base_s
        self.token_s[slot] = c1 + base_s / one.chunk
        self.step_s[slot] = d0 + decoding_s
        self.next_step_s[slot] = d0 + decoding_s + d1
        self.chunk_s[slot] = max(0.0, c0 - d0) + c1 * min(one.part, one.chunk)
