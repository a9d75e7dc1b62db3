"""PyTorch's threads sleep between products: what they take is what the products take."""

import os
import subprocess
import sys
from pathlib import Path

from inlay.core.openmp import let_openmp_sleep

ROOT = Path(__file__).parents[3]
# One thread computes and the other has nothing to do, but for the moments in which both do: with
# threads that spin the other one takes as much as the first.
TAKEN = """
import time
if {sleep}:
    from inlay.core.openmp import let_openmp_sleep
    let_openmp_sleep()
import torch
torch.set_num_threads(2)
x = torch.zeros(1 << 16)
x.add_(1)
others = time.process_time() - time.thread_time()
for _ in range(100):
    x.add_(1)
    end = time.thread_time() + 0.002
    while time.thread_time() < end:
        pass
print(time.process_time() - time.thread_time() - others)
"""


def taken_by_others(*, sleep: bool) -> float:
    """Processor seconds of all threads but the first."""
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-c", TAKEN.format(sleep=sleep)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    return float(done.stdout)


def test_threads_sleep_between_products() -> None:
    assert taken_by_others(sleep=True) < 0.5 * taken_by_others(sleep=False)


def test_what_the_user_has_set_stays() -> None:
    for given in ({"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "5"}):
        environment = dict(given)
        let_openmp_sleep(environment)
        assert environment == given
    environment = {}
    let_openmp_sleep(environment)
    assert environment == {"OMP_WAIT_POLICY": "passive"}
