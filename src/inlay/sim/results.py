"""What came of a simulation: arrays over the requests of its trace, or of a part of it.

Shapes: `R` requests, `S` slots, `T` tiers.
"""

import pickle
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inlay.cluster.slo import SloClass
from inlay.sim.tier import TIERS

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Results:
    """Times and places of each request; not a number, and -1, where it was refused.

    Where a trace was replayed in parts, there is one for each of them.

    Attributes:
        arrival_s, first_s, end_s: (R,), seconds of the trace.
        tbt_s, longest_gap_s: (R,), mean of the worst tenth of a request's gaps, and the longest.
        cached_tokens: (R,), of the prompt, that were not computed.
        host_tokens, disk_tokens, store_tokens: (R,), of them, those that were loaded from there;
            the rest was on the device.
        preemptions: (R,), at an instance, and by admission for others.
        prefill, decode: (R,), slots.
        expected_ttft_s: (R,), as the first decision had it; not a number where there was none.
        refusals: by request, why it was refused.
        input_tokens, output_tokens: (R,), of the trace.
        group: (R,), index into `groups`, of the trace.
        busy_s, steps, sent_bytes: (S,), what instances did; of a part, since the results of the
            part before were complete.
        copied_blocks: that instances gave each other because a decision asked for it; so, too.
        tier_bytes: (S, T, 2), by tier of `TIERS`: what instances read from it, and what they wrote
            to it; so, too.
        lost_blocks: that were to be copied to tiers and had to go before; so, too.
        gap_counts: of gaps between tokens of requests that finished, by the bins of `gaps`; so,
            too.
        role_changes: of instances, by `RolePlanner`; so, too.
    """

    arrival_s: Floats
    first_s: Floats
    end_s: Floats
    tbt_s: Floats
    longest_gap_s: Floats
    cached_tokens: NDArray[np.int64]
    host_tokens: NDArray[np.int64]
    disk_tokens: NDArray[np.int64]
    store_tokens: NDArray[np.int64]
    preemptions: NDArray[np.int64]
    prefill: NDArray[np.int64]
    decode: NDArray[np.int64]
    expected_ttft_s: Floats
    refusals: dict[int, str]
    input_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    group: NDArray[np.uint8]
    groups: tuple[str, ...]
    busy_s: Floats
    steps: NDArray[np.int64]
    sent_bytes: Floats
    copied_blocks: int
    tier_bytes: Floats
    lost_blocks: int
    gap_counts: NDArray[np.int64]
    role_changes: int

    @classmethod
    def joined(cls, parts: Sequence["Results"]) -> "Results":
        """Of consecutive parts, at least one, the whole."""
        if len(parts) == 1:
            return parts[0]
        columns: dict[str, Any] = {
            field.name: np.concatenate([getattr(part, field.name) for part in parts])
            for field in fields(cls)
            if field.name not in _TOTALS and field.name not in ("refusals", "groups")
        }
        totals = {name: sum(getattr(part, name) for part in parts) for name in _TOTALS}
        firsts = np.cumsum([0, *(len(part.arrival_s) for part in parts)]).tolist()
        refusals = {
            first + request: reason
            for first, part in zip(firsts, parts, strict=False)
            for request, reason in part.refusals.items()
        }
        return cls(**columns, **totals, refusals=refusals, groups=parts[-1].groups)

    def parts(self) -> Iterable["Results"]:
        """Itself: what `ResultsFile` has of each part."""
        return (self,)

    @property
    def finished(self) -> NDArray[np.bool_]:
        """Requests that were not refused, (R,)."""
        return self.prefill >= 0

    @property
    def ttft_s(self) -> Floats:
        """From arrival to first token, (R,)."""
        return self.first_s - self.arrival_s

    @property
    def hit_ratio(self) -> float:
        """Share of the prompt tokens of finished requests that were not computed."""
        tokens = int(self.input_tokens[self.finished].sum())
        return float(self.cached_tokens[self.finished].sum()) / tokens if tokens else 0.0

    @property
    def hit_tokens(self) -> dict[str, int]:
        """Prompt tokens of finished requests that were not computed, by the tier that had them."""
        done_R = self.finished
        loaded: dict[str, int] = {
            tier: int(getattr(self, f"{tier}_tokens")[done_R].sum()) for tier in TIERS
        }
        return {"device": int(self.cached_tokens[done_R].sum()) - sum(loaded.values()), **loaded}

    def meets(self, slo: SloClass) -> NDArray[np.bool_]:
        """Requests that finished and kept all of these objectives, (R,)."""
        kept: NDArray[np.bool_] = (
            self.finished
            & (self.ttft_s <= slo.ttft_s)
            & (self.tbt_s <= slo.tbt_s)
            & (self.longest_gap_s <= slo.itl_s)
        )
        return kept

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last end."""
        done = self.finished
        if not done.any():
            return 0.0
        return float(self.end_s[done].max() - self.arrival_s.min())


_TOTALS = (
    "busy_s",
    "steps",
    "sent_bytes",
    "copied_blocks",
    "tier_bytes",
    "lost_blocks",
    "gap_counts",
    "role_changes",
)
"""What is summed over parts."""


class ResultsFile:
    """Results of consecutive parts of a trace, which may be more than memory holds.

    They lie in a file without a name in the directory for temporary files, about 100 bytes for each
    request, until this object is gone; figures go through it several times. Values are kept as they
    are and not summed up by a sketch: so figures do not depend on the parts, and most traces' files
    are larger than this one.

    Args:
        parts: taken one by one, each written before the next one is asked for.

    Raises:
        OSError: there is no room.
    """

    def __init__(self, parts: Iterable[Results]) -> None:
        self._file = tempfile.TemporaryFile(prefix="inlay-results-")
        for part in parts:
            pickle.dump(part, self._file, protocol=pickle.HIGHEST_PROTOCOL)
        self._end = self._file.tell()
        weakref.finalize(self, self._file.close)

    def parts(self) -> Iterator[Results]:
        """Each part, in order."""
        at = 0
        while at < self._end:
            self._file.seek(at)
            part: Results = pickle.load(self._file)
            at = self._file.tell()
            yield part
