"""Which weights compute new requests while instances have different ones."""

import msgspec

from inlay.cluster.weight_groups import WeightGroups
from inlay.core.instance_messages import InstanceInfo
from inlay.core.messages import ServedWeights
from tests.unit.cluster.instance_stand_in import ENGINE, NAMESPACE


def info(version: str = "", asked_s: float = 0.0) -> InstanceInfo:
    return InstanceInfo(
        name="a",
        run_id="1",
        role="both",
        version="0",
        engine=ENGINE,
        namespace=msgspec.structs.replace(NAMESPACE, fingerprint=version or "first"),
        key_check=b"",
        max_running=1,
        max_waiting=1,
        max_batch_tokens=1,
        prefill_chunk=1,
        weights=ServedWeights(version, "", asked_s),
    )


def groups_of(*versions: tuple[str, float]) -> WeightGroups:
    groups = WeightGroups()
    for slot, (version, asked_s) in enumerate(versions):
        groups.put(slot, info(version, asked_s))
    return groups


def test_new_requests_change_over_when_half_have_the_new_ones() -> None:
    groups = groups_of(("", 0), ("", 0), ("", 0))
    first = groups.current
    groups.put(0, info("v2", 5))
    assert groups.current == first and groups.others(first) == [0]
    groups.put(1, info("v2", 5))
    assert groups.version == "v2" and groups.others(groups.current) == [2]
    assert groups.hold(first)
    groups.put(2, info("v2", 5))
    assert not groups.hold(first) and groups.others(groups.current) == []


def test_one_that_comes_back_with_old_ones_changes_nothing() -> None:
    groups = groups_of(("v2", 5), ("v2", 5))
    groups.remove(1)
    groups.put(1, info())
    groups.put(2, info())
    groups.put(3, info())
    assert groups.version == "v2" and groups.newest.version == "v2"
    groups.remove(0)
    assert groups.version == "", "nobody else is there"
    for slot in (1, 2, 3):
        groups.remove(slot)
    assert groups.current == ""


def test_going_back_to_an_old_version_is_an_update() -> None:
    groups = groups_of(("v2", 5), ("v2", 5))
    groups.put(0, info("v1", 9))
    assert groups.version == "v1"
    # The same weights that were asked for again, at another instance.
    groups.put(1, info("v1", 11))
    assert groups.others(groups.current) == [] and groups.newest.asked_s == 11


def test_weights_that_were_loaded_first_are_the_oldest() -> None:
    assert WeightGroups().newest == ServedWeights()
    assert groups_of(("", 0), ("v2", 5)).newest.version == "v2"
