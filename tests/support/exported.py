"""Arrays that other libraries hand over."""

from typing import Any

import numpy as np


class Exported:
    """An array to be had by DLPack alone, as a torch tensor."""

    def __init__(self, array: "np.ndarray[Any, Any]") -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()
