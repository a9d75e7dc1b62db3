"""Where kernels are launched."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

import torch
from torch import Tensor

P = ParamSpec("P")


def on_its_gpu(
    launches: Callable[Concatenate[Tensor, P], None],
) -> Callable[Concatenate[Tensor, P], None]:
    """Have a function launch on the GPU of its first argument: Triton takes the thread's current
    one, which is another one when a model's layers lie on several.
    """

    @wraps(launches)
    def launch_there(data: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> None:
        with torch.cuda.device_of(data):
            launches(data, *args, **kwargs)

    return launch_there
