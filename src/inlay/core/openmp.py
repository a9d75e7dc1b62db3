"""How the threads wait with which PyTorch computes on CPUs: those of OpenMP."""

import os
from collections.abc import MutableMapping


def let_openmp_sleep(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let PyTorch's threads sleep between products, in this process and those that it starts.

    They would spin for milliseconds each time, on cores that others need: beside other work,
    training a tiny model takes 4 to 7 times the processor time and as much longer. The runtime
    reads this once, so it has no effect after torch is imported. What the user has set stays.

    Args:
        environment: of the process.
    """
    if "GOMP_SPINCOUNT" not in environment:
        environment.setdefault("OMP_WAIT_POLICY", "passive")
