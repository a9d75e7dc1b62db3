"""Ranges of a segment: any history of calls, compared with a model that keeps every grain."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from inlay.core.errors import ArgumentError

store = pytest.importorskip("inlay._native").store

GRAIN = 64
GRAINS = 1024
TRIES = 32  # ranges of the size's own class that are looked at


def grains_of(size_bytes: int) -> int:
    return -(-size_bytes // GRAIN)


def class_floor(grains: int) -> int:
    """The smallest size of its class: classes are 1/32 wide."""
    shift = max(0, grains.bit_length() - 6)
    return grains >> shift << shift


class Histories(RuleBasedStateMachine):
    """The allocator and a list of grains, each with the id of its range or None."""

    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.allocator = store.RangeAllocator(GRAINS * GRAIN)
        self.owner: list[int | None] = [None] * GRAINS

    def free_runs(self) -> list[tuple[int, int]]:
        """(start, grains) of what is free."""
        runs: list[tuple[int, int]] = []
        for at, owner in enumerate(self.owner):
            if owner is not None:
                continue
            if runs and sum(runs[-1]) == at:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((at, 1))
        return runs

    def own(self, made: tuple[int, int, int, int, int]) -> int:
        """Marks what was allocated. Its id is new, its grains and their free neighbours true."""
        number, offset, size, before, behind = made
        assert number not in self.owner
        assert offset % GRAIN == 0 and size % GRAIN == 0
        first, end = offset // GRAIN, (offset + size) // GRAIN
        assert (first - before // GRAIN, (before + size + behind) // GRAIN) in self.free_runs()
        self.owner[first:end] = [number] * (end - first)
        return number

    @rule(
        target=ids,
        size_bytes=st.integers(1, GRAINS * GRAIN + 1),
        divisor=st.sampled_from([1, 8, 64, 512]),
        alignment=st.sampled_from([64, 4096]),
    )
    def allocate(self, size_bytes: int, divisor: int, alignment: int) -> int | None:
        size_bytes = -(-size_bytes // divisor)
        runs = self.free_runs()
        made = self.allocator.allocate(size_bytes, alignment)
        wanted = grains_of(size_bytes)
        step = alignment // GRAIN
        fitting = [run for run in runs if -(-run[0] // step) * step + wanted <= sum(run)]
        if made is None:
            # A larger class would have been found at once.
            close = [grains for _, grains in runs if class_floor(grains) <= wanted + step - 1]
            assert not fitting or len(close) > TRIES
            return None
        assert made[1] % alignment == 0
        assert made[2] == wanted * GRAIN
        return self.own(made)

    @rule(target=ids, start=st.integers(0, GRAINS - 1), grains=st.integers(1, 40))
    def take(self, start: int, grains: int) -> int | None:
        grains = min(grains, GRAINS - start)
        is_free = all(owner is None for owner in self.owner[start : start + grains])
        made = self.allocator.take(start * GRAIN, grains * GRAIN)
        assert (made is not None) == is_free
        if made is None:
            return None
        assert made[1:3] == (start * GRAIN, grains * GRAIN)
        return self.own(made)

    @rule(target=ids, number=ids, share=st.floats(0, 1))
    def split(self, number: int | None, share: float) -> int | None:
        if number is None or number not in self.owner:
            return None
        start, grains = self.owner.index(number), self.owner.count(number)
        if grains == 1:
            with pytest.raises(ArgumentError):
                self.allocator.split(number, GRAIN)
            return None
        first = 1 + round(share * (grains - 2))
        rest: int = self.allocator.split(number, first * GRAIN)
        assert rest not in self.owner
        self.owner[start + first : start + grains] = [rest] * (grains - first)
        return rest

    @rule(number=consumes(ids))
    def free(self, number: int | None) -> None:
        if number is None:
            return
        if number not in self.owner:  # its id was split from or freed by another name
            with pytest.raises(ArgumentError):
                self.allocator.free(number)
            return
        self.allocator.free(number)
        self.owner = [None if owner == number else owner for owner in self.owner]

    @invariant()
    def ranges_agree(self) -> None:
        found = [None] * GRAINS
        end = 0
        was_free = False
        for offset, size, is_free in self.allocator.ranges():
            assert offset == end and not (was_free and is_free)
            end, was_free = offset + size, is_free
            owners = set(self.owner[offset // GRAIN : end // GRAIN])
            assert len(owners) == 1
            assert (owners == {None}) == is_free
        assert end == len(found) * GRAIN

    @invariant()
    def figures_agree(self) -> None:
        lengths = [grains * GRAIN for _, grains in self.free_runs()]
        free = sum(lengths)
        assert self.allocator.free_bytes == free
        assert self.allocator.used_bytes == GRAINS * GRAIN - free
        assert self.allocator.largest_free_bytes() == max(lengths, default=0)
        assert self.allocator.fragmentation() == (1 - max(lengths) / free if free else 0)
        for size in (1, 100, 1000, 20_000):
            lost = sum(length for length in lengths if length < size)
            assert self.allocator.unusable(size) == pytest.approx(lost / free if free else 0)


TestHistories = Histories.TestCase
TestHistories.settings = settings(stateful_step_count=60)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: store.RangeAllocator(100), "got 100 bytes"),
        (lambda: store.RangeAllocator(0), "got 0 bytes"),
        (lambda: store.RangeAllocator(GRAIN * 2**32 + GRAIN), "2\\^32 grains"),
        (lambda: store.RangeAllocator(4096).allocate(0), "got 0"),
        (lambda: store.RangeAllocator(4096).allocate(64, 100), "got 100"),
        (lambda: store.RangeAllocator(4096).take(1, 64), "got offset 1"),
        (lambda: store.RangeAllocator(4096).free(7), "range 7"),
        (lambda: store.RangeAllocator(4096).at(0), "range 0"),
    ],
)
def test_bad_arguments_name_the_value(call, what) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ArgumentError, match=what):
        call()
