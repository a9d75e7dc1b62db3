"""What the ranks of a tensor parallel model say to each other while they compute: sums and logits.

Gloo moves the bytes between CPUs, NCCL between GPUs. A group belongs to who made it; PyTorch's own
group of all processes is not touched, so threads of one process can be ranks, too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch._C._distributed_c10d import Store, TCPStore

from inlay.core.errors import RankLostError, ResourceError
from inlay.core.tensor_parallel import Rank

_HOST = "127.0.0.1"
_MEET_S = 30.0
TIMEOUT_S = 120.0
"""For one sum: the slowest step of the host's experts has room in it."""


def listen() -> tuple[Store, int]:
    """Where ranks find each other, for the first of them, and the port to tell the others."""
    store = TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)
    return store, store.port


def meet(port: int) -> Store:
    """The same for another rank."""
    return TCPStore(_HOST, port, is_master=False, wait_for_workers=False)


class RankGroup:
    """The ranks of one model; all of them call the same operations in the same order.

    Args:
        rank: this one.
        store: where they find each other: of `listen` and `meet`, or a `HashStore` of threads.
        device: where the numbers are: `cpu`, or `cuda:<n>`.

    Attributes:
        rank: this one.
    """

    def __init__(self, rank: Rank, store: Store, device: str, timeout_s: float = TIMEOUT_S) -> None:
        """Meet the others.

        Raises:
            ResourceError: this PyTorch has no NCCL.
            RankLostError: they have not come in time.
        """
        self.rank = rank
        made = _nccl if device.startswith("cuda") else _gloo
        with _lost():
            self._group: Any = made(rank, store, timedelta(seconds=timeout_s))

    def sum(self, part: Tensor | NDArray[Any]) -> None:
        """Add what all ranks have, in place; every rank gets the same bits.

        Raises:
            RankLostError: as it says; on a GPU the next wait for it fails.
        """
        with _lost():
            self._group.allreduce([torch.as_tensor(part)]).wait()

    def gather(self, part_RV: Tensor | NDArray[Any], columns: int) -> Tensor:
        """The first rank gets the columns of all, the others none.

        Args:
            part_RV: this rank's, as `Rank.part` divides them.
            columns: of all ranks.

        Raises:
            RankLostError: as `sum`.
        """
        part_RV = torch.as_tensor(part_RV)
        degree = self.rank.degree
        widths = [len(Rank(number, degree).part(columns)) for number in range(degree)]
        sent = torch.nn.functional.pad(part_RV, (0, max(widths) - part_RV.shape[1])).contiguous()
        options = dist.GatherOptions()
        options.rootRank = 0
        if not self.rank.is_first:
            with _lost():
                self._group.gather([], [sent], options).wait()
            return part_RV[:, :0]
        parts = [torch.empty_like(sent) for _ in range(degree)]
        with _lost():
            self._group.gather([parts], [sent], options).wait()
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], 1)

    def abort(self) -> None:
        """End what waits for a rank that is gone."""
        self._group.abort()


@contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankLostError(f"another rank is gone, or late: {error}") from error


def _gloo(rank: Rank, store: Store, timeout: timedelta) -> Any:
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = min(timeout, timedelta(seconds=_MEET_S))
    # Ranks are on one machine. By itself Gloo asks for the host's name, which may not resolve.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=_HOST)]
    group = dist.ProcessGroupGloo(store, rank.number, rank.degree, options)
    group._set_default_timeout(timeout)
    return group


def _nccl(rank: Rank, store: Store, timeout: timedelta) -> Any:
    if not dist.is_nccl_available():
        raise ResourceError(
            "placement.tensor_parallel on GPUs needs NCCL, which this PyTorch lacks: install a "
            "CUDA build of PyTorch"
        )
    options: Any = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank.number, rank.degree, options)
