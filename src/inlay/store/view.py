"""Values in place."""

from types import TracebackType

from inlay.store import _backend


class ObjectView:
    """A value in memory that others share; `with view as memory` gives a read-only memoryview.

    The memory is pinned until the view is closed and whatever was made of its memory, arrays say,
    is gone.

    Attributes:
        generation: of the object.
        in_place: False: it was on another host, and this is a copy.
    """

    def __init__(self, native: _backend.View) -> None:
        self.generation = native.generation
        self.in_place = native.in_place
        self._memory: memoryview | None = memoryview(native)

    @property
    def memory(self) -> memoryview:
        """The bytes. Raises ValueError after `close`."""
        if self._memory is None:
            raise ValueError("the view is closed")
        return self._memory

    def close(self) -> None:
        """Let go of the memory, unless something that was made of it still holds it."""
        memory, self._memory = self._memory, None
        if memory is not None:
            try:
                memory.release()
            except BufferError:
                pass  # an array on it lives: the pin goes with it

    def __enter__(self) -> memoryview:
        return self.memory

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
