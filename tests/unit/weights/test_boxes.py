"""Runs of elements as boxes, beside NumPy's own order of elements."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inlay.weights.boxes import Box, boxes_of_run

shapes = st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple)


@given(shapes, st.data())
def test_boxes_are_the_run_in_order(shape, data) -> None:
    size = int(np.prod(shape))
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    numbers = np.arange(size).reshape(shape)
    boxes = boxes_of_run(start, stop, shape)
    origin = (0,) * len(shape)
    found = [n for box in boxes for n in np.ravel(numbers[box.index(origin)])]
    assert found == list(range(start, stop))
    assert len(boxes) <= max(1, 2 * len(shape) - 1)


def test_what_boxes_have_in_common() -> None:
    assert Box((0, 0), (4, 4)).common(Box((2, 1), (4, 2))) == Box((2, 1), (2, 2))
    assert Box((0, 0), (2, 4)).common(Box((2, 0), (2, 4))) is None
    assert Box((1,), (2,)).moved((3,)) == Box((4,), (2,))
