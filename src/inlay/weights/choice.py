"""Which pieces to ask a holder for next: the rarest first, and of a publisher what nobody asks for.

Pure: arrays in, numbers out. Legend: P pieces.

Source: rarest first and strict priority as in BitTorrent (Cohen, 2003); there are no strangers
here, so nobody is choked.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NOTHING, ASKED, HERE = 0, 1, 2
"""What a holder says of a piece: it has nothing of it, has asked somebody for it, has it."""


@dataclass(frozen=True)
class Known:
    """What a peer knows of all others when it chooses.

    Attributes:
        wanted_P: pieces that this peer needs and has not asked for.
        copies_P: how many peers have each, publishers not counted.
        asked_P: how many other peers have asked for each.
        order_P: this peer's own order among equally rare ones, each number once.
    """

    wanted_P: npt.NDArray[np.bool_]
    copies_P: npt.NDArray[np.int32]
    asked_P: npt.NDArray[np.int32]
    order_P: npt.NDArray[np.int64]


def choose(
    known: Known, has_P: npt.NDArray[np.bool_], *, publisher: bool, idle: bool, limit: int
) -> npt.NDArray[np.int64]:
    """At most `limit` pieces to ask one holder for.

    Args:
        has_P: pieces that it has.
        publisher: it is a publisher. All need its link, so it is asked only for what no peer has
            and no other one has asked for;
        idle: unless this peer has nothing under way, and no peer has what it needs.

    Cost: O(P).
    """
    able_P = known.wanted_P & has_P
    if publisher:
        fresh_P = able_P & (known.copies_P == 0) & (known.asked_P == 0)
        if fresh_P.any() or not idle:
            able_P = fresh_P
    able = np.flatnonzero(able_P)
    if not len(able):
        return able
    rarity = known.copies_P[able] + known.asked_P[able]
    key = rarity * np.int64(len(known.order_P)) + known.order_P[able]
    if len(able) > limit:
        able = able[np.argpartition(key, limit - 1)[:limit]]
    return np.sort(able)
