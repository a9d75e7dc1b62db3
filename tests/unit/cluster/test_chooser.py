"""What a dispatcher knows of instances that come and go."""

import numpy as np

from inlay.cluster.chooser import Chooser
from inlay.cluster.policies import make_policy
from inlay.core.instance_messages import KvSnapshot
from tests.unit.cluster.instance_stand_in import stand_in_info


def test_a_slot_that_is_taken_again_has_none_of_the_blocks_of_who_left() -> None:
    chooser = Chooser(make_policy("round_robin"))
    digests = np.random.default_rng(0).bytes(16 * 5)
    slot = chooser.join(stand_in_info("i0"), 0.0)
    chooser.learn(slot, KvSnapshot(run_id="r", sequence=1, digests=digests), 0.0)
    assert chooser.index.match(digests, 0.0)[slot] == 5
    chooser.leave(slot)
    assert not chooser.index.match(digests, 0.0).any()
    assert chooser.join(stand_in_info("i1"), 1.0) == slot
    assert chooser.index.match(digests, 1.0)[slot] == 0
