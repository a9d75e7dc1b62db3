"""What kernels take as arrays."""

from typing import Any, Protocol


class Array(Protocol):
    """A NumPy array or a torch CPU tensor."""

    @property
    def shape(self) -> Any:
        """Sizes of the dimensions."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """The array as a DLPack capsule."""
