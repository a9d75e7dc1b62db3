"""Engines that have nothing to do."""

import resource
import time

from inlay.transfer import TransferEngine
from tests.integration.transfer.conftest import Target

WATCHED_S = 5


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def test_connected_engines_need_no_processor(engine: TransferEngine, target: Target) -> None:
    peer = engine.connect(target.address)
    local = engine.allocate(1 << 20)
    engine.read(local, peer["source"][0 : 1 << 20])
    engine.write(local, peer["sink"][0 : 1 << 20])
    theirs = "int(1e6 * __import__('time').process_time())"
    before, its_before = cpu_s(), target.tell(theirs)
    time.sleep(WATCHED_S)
    # A hundredth of a core; the question itself costs the target some.
    assert cpu_s() - before < 0.01 * WATCHED_S
    assert (target.tell(theirs) - its_before) / 1e6 < 0.01 * WATCHED_S
