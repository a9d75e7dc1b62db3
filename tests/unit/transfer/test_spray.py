"""The choice of paths: the compiled form and its reference decide alike on any history."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.transfer.reference.spray import Choice, PathEstimate, PathView, Ticket, choose

native = pytest.importorskip("inlay._native").transfer_policy

SPANS = st.one_of(st.integers(0, 50_000), st.integers(0, 5_000_000), st.integers(0, 30_000_000_000))
SIZES = st.one_of(st.integers(1, 5000), st.integers(1, 1 << 20), st.integers(1, 1 << 30))
LINKS = st.tuples(
    st.floats(1e6, 1e11), st.floats(0.0, 0.05), st.sampled_from([1.0, 1.5, 3.0]), st.booleans()
)
# (what, time since the last, backwards, size, which of the posted slices)
STEPS = st.tuples(
    st.sampled_from(["choose", "choose", "complete", "complete", "drop", "restart", "shut"]),
    SPANS, st.integers(0, 20_000), SIZES, st.integers(0, 1 << 16),
)  # fmt: skip


@dataclass
class Path:
    reference: PathEstimate
    compiled: Any
    penalty: float
    open: bool

    def assert_alike(self, now: int) -> None:
        mine, theirs = self.reference, self.compiled
        for name in ("slice_bytes", "inflight_bytes", "attempts", "beta0_s", "beta1", "error_s"):
            assert getattr(mine, name) == getattr(theirs, name), name
        assert mine.window_bytes(now) == theirs.window_bytes(now)
        assert mine.predicted_s(4096, 1.5) == theirs.predicted_s(4096, 1.5)
        assert mine.has_room(1 << 20, now) == theirs.has_room(1 << 20, now)
        assert mine.is_old(now) == theirs.is_old(now)


@dataclass
class Posted:
    path: Path
    size_bytes: int
    reference: Ticket
    compiled: Any


def choose_both(paths: list[Path], remaining_bytes: int, now: int) -> Choice:
    mine = choose(
        [PathView(path.reference, path.penalty, path.open) for path in paths], remaining_bytes, now
    )
    theirs = native.choose(
        [path.compiled for path in paths],
        [path.penalty for path in paths],
        [path.open for path in paths],
        remaining_bytes,
        now,
    )
    assert mine == theirs
    return mine


@given(links=st.lists(LINKS, min_size=1, max_size=5), steps=st.lists(STEPS, max_size=200))
def test_both_forms_decide_alike(
    links: list[tuple[float, float, float, bool]], steps: list[tuple[str, int, int, int, int]]
) -> None:
    paths = [
        Path(PathEstimate(rate, base_s, 0), native.PathEstimate(rate, base_s, 0), penalty, is_open)
        for rate, base_s, penalty, is_open in links
    ]
    posted: list[Posted] = []
    clock = 0
    for what, span, back, size, which in steps:
        clock += span
        now = max(clock - back, 0)
        path = paths[which % len(paths)]
        if what == "choose":
            for _ in range(1 + which % 8):
                choice = choose_both(paths, size, now)
                if choice.path < 0:
                    break
                path = paths[choice.path]
                mine = path.reference.posted(choice.size_bytes, now)
                theirs = path.compiled.posted(choice.size_bytes, now)
                assert mine == (theirs.sent, theirs.service_s, theirs.predicted_s, theirs.alone)
                posted.append(Posted(path, choice.size_bytes, mine, theirs))
        elif what == "restart":
            path.reference.restart(now)
            path.compiled.restart(now)
        elif what == "shut":
            path.open = not path.open
        elif posted:
            one = posted.pop(which % len(posted))
            path = one.path
            late = path.reference.is_outlier(one.reference, now)
            assert late == path.compiled.is_outlier(one.compiled, now)
            if what == "complete":
                path.reference.completed(one.size_bytes, one.reference, now)
                path.compiled.completed(one.size_bytes, one.compiled, now)
            else:
                path.reference.dropped(one.size_bytes)
                path.compiled.dropped(one.size_bytes)
        path.assert_alike(now)


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, float("nan"), float("inf")])
def test_a_link_without_a_speed_is_refused(bandwidth: float) -> None:
    with pytest.raises(ValueError, match="bandwidth"):
        native.PathEstimate(bandwidth, 1e-5, 0)
