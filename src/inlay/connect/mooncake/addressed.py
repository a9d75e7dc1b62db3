"""Transfers between addresses: of ranges that are named as Mooncake's callers name them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from inlay.connect.mooncake.host_memory import Places
from inlay.connect.mooncake.peers import Peers
from inlay.core.errors import ArgumentError
from inlay.transfer import Op, Ranges, Transfer

_NOT_HERE = "a range here is in no registered memory: register_memory() it"


def transfer_of_one(
    local: Places, peers: Peers, target: str, op: Op, here: int, there: int, length: int
) -> Transfer:
    """One range, without arrays, which take ten times as long.

    Args:
        local: what is registered here; values are (number, segment).
        peers: among whom the target is.
        target: as callers name it.
        op: seen from here.
        here, there: addresses.
        length: in bytes.

    Raises:
        ArgumentError: it is empty, or in no registered memory, here or there.
        TransferError: the peer does not answer.
    """
    if length <= 0:
        raise ArgumentError(f"lengths must be above 0, got {length}")
    mine = local.find_one(here, length)
    if mine is None:
        raise ArgumentError(_NOT_HERE)
    known, remote, theirs = peers.find(target, lambda places: places.find_one(there, length))
    first, its_first = here - local.starts[mine], there - remote.starts[theirs]
    return Transfer(
        op,
        local.values[mine][1][first : first + length],
        known.segment(remote.values[theirs])[its_first : its_first + length],
    )


def transfers_of_many(
    local: Places,
    peers: Peers,
    target: str,
    op: Op,
    buffers: Sequence[int],
    peer_addresses: Sequence[int],
    lengths: Sequence[int],
) -> list[Ranges]:
    """As `transfer_of_one`, for lists that are equally long."""
    here_N = np.asarray(buffers, np.int64)
    there_N = np.asarray(peer_addresses, np.int64)
    length_N = np.asarray(lengths, np.int64)
    if bool((length_N <= 0).any()):
        raise ArgumentError(f"lengths must be above 0, got {int(length_N.min())}")
    local_N = local.find(here_N, length_N)
    if local_N is None:
        raise ArgumentError(_NOT_HERE)
    known, remote, remote_N = peers.find(target, lambda places: places.find(there_N, length_N))
    return [
        Ranges(
            op,
            local.values[mine][1],
            known.segment(remote.values[theirs]),
            here_N[of_pair] - local.starts[mine],
            there_N[of_pair] - remote.starts[theirs],
            length_N[of_pair],
        )
        for mine, theirs, of_pair in _pairs(local_N, remote_N)
    ]


def _pairs(
    local_N: npt.NDArray[np.int64], remote_N: npt.NDArray[np.int64]
) -> Iterator[tuple[int, int, Any]]:
    """Each pair of buffers that ranges lie in, and which ranges those are; nearly always one."""
    both_2N = np.stack([local_N, remote_N])
    if bool((both_2N == both_2N[:, :1]).all()):
        yield int(local_N[0]), int(remote_N[0]), slice(None)
        return
    pairs_2K, which_N = np.unique(both_2N, axis=1, return_inverse=True)
    for number, (mine, theirs) in enumerate(pairs_2K.T):
        yield int(mine), int(theirs), which_N.reshape(-1) == number
