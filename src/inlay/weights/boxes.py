"""Runs of a tensor's elements as boxes, and what two boxes have in common. Pure."""

from dataclasses import dataclass

from inlay.weights.manifest import count

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """Some of a tensor.

    Attributes:
        corner: where it begins, along each axis.
        shape: how far it reaches.
    """

    corner: Shape
    shape: Shape

    def moved(self, by: Shape) -> "Box":
        """The same box where the tensor begins elsewhere."""
        return Box(tuple(a + b for a, b in zip(self.corner, by, strict=True)), self.shape)

    def common(self, other: "Box") -> "Box | None":
        """What is in both; None: nothing."""
        corner = tuple(map(max, self.corner, other.corner))
        shape = tuple(
            min(a + n, b + m) - at
            for at, a, n, b, m in zip(
                corner, self.corner, self.shape, other.corner, other.shape, strict=True
            )
        )
        return Box(corner, shape) if min((1, *shape)) > 0 else None

    def index(self, origin: Shape) -> tuple[slice, ...]:
        """Of an array that begins at `origin`."""
        return tuple(
            slice(at - start, at - start + size)
            for at, start, size in zip(self.corner, origin, self.shape, strict=True)
        )


def boxes_of_run(start: int, stop: int, shape: Shape) -> list[Box]:
    """Elements `start` to `stop`, as they lie in memory, as boxes in the same order.

    Cost: at most two boxes for each axis but the last, and one more.
    """
    if start >= stop:
        return []
    if not shape:
        return [Box((), ())]
    inner = count(shape[1:])
    rest = (0,) * (len(shape) - 1)
    (row, first), (last_row, last) = divmod(start, inner), divmod(stop, inner)
    if row == last_row:
        return _in_row(row, first, last, shape)
    boxes = []
    if first:
        boxes += _in_row(row, first, inner, shape)
        row += 1
    if last_row > row:
        boxes.append(Box((row, *rest), (last_row - row, *shape[1:])))
    return boxes + _in_row(last_row, 0, last, shape)


def _in_row(row: int, start: int, stop: int, shape: Shape) -> list[Box]:
    return [
        Box((row, *box.corner), (1, *box.shape)) for box in boxes_of_run(start, stop, shape[1:])
    ]
