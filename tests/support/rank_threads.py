"""Ranks of a tensor parallel model as threads of one process."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch.distributed as dist

from inlay.core.tensor_parallel import Rank
from inlay.models.rank_group import RankGroup

Result = TypeVar("Result")


def in_ranks(
    degree: int, work: Callable[[RankGroup], Result], *, timeout_s: float = 20.0
) -> list[Result]:
    """What each rank's thread returns. All do the same work, in the same order."""
    store = dist.HashStore()

    def run(number: int) -> Result:
        return work(RankGroup(Rank(number, degree), store, "cpu", timeout_s))

    with ThreadPoolExecutor(degree) as threads:
        return list(threads.map(run, range(degree)))
