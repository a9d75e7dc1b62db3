"""The calls that all sides of the store's benchmarks make, on a store of this process."""

import pytest

from benchmarks.store.calls import NEAR_OBJECTS, Objects
from benchmarks.store.ours import StoreClient
from inlay.store import Store

pytest.importorskip("inlay._native")
VALUE_BYTES = 4096


@pytest.mark.parametrize("what", ["get", "get_into", "put", "exists", "view"])
def test_objects_are_held_once_and_what_is_put_goes(what: str) -> None:
    batch = 1 if what == "view" else 4
    with Store.embedded(memory="64MiB") as store:
        client = StoreClient(store)
        objects = Objects(client, client.view)
        for _ in range(2):
            total_s, p50_s = objects.ask(what, VALUE_BYTES, batch, 8)
            assert 0 < p50_s <= total_s
        # 32 hexadecimal digits each, of which the first are 0.
        assert store.remove_prefix("0000") == (0 if what == "put" else NEAR_OBJECTS)


def test_sides_that_do_not_say_the_truth_are_noticed() -> None:
    with Store.embedded(memory="64MiB") as store:
        client = StoreClient(store)
        objects = Objects(client, client.view)
        objects.ask("get", VALUE_BYTES, 1, 1)
        store.remove_prefix("0000")
        with pytest.raises(AssertionError):
            objects.ask("exists", VALUE_BYTES, 1, 1)


def test_batches_are_whole_after_a_walk_in_other_steps() -> None:
    with Store.embedded(memory="64MiB") as store:
        client = StoreClient(store)
        objects = Objects(client, client.view)
        objects.ask("get_into", VALUE_BYTES, 1, NEAR_OBJECTS - 2 - 3)  # and two to warm up
        objects.ask("get_into", VALUE_BYTES, 32, 4)
