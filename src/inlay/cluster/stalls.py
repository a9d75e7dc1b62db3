"""Instances that stand still, though their sockets answer.

An instance reports its load after each step, and each second when there is nothing to do. One that
has reported nothing for longer than any step may take is as good as lost: its requests go
elsewhere, and whoever started it is told to start it again. One whose machine cannot be reached may
be well: others may reach it.
"""

import asyncio
from collections.abc import Callable

from inlay.cluster.chooser import Chooser
from inlay.cluster.instance import Instance
from inlay.cluster.instances import Instances

_CHECK_S = 1.0
_STEPS = 20


class StallWatch:
    """Looks after the instances of one dispatcher.

    Silence is counted in checks, so that a dispatcher that stood still itself blames nobody.

    Args:
        chooser: knows how long steps take.
        stall_s: the shortest silence that counts; it is longer where 20 of the longest steps are.
        tell: is given the instance, and how long it was silent.
    """

    def __init__(
        self,
        instances: Instances,
        chooser: Chooser,
        *,
        stall_s: float,
        tell: Callable[[Instance, float], None],
    ) -> None:
        self._instances = instances
        self._chooser = chooser
        self._stall_s = stall_s
        self._tell = tell

    async def run(self) -> None:
        """Check every second; never ends."""
        while True:
            await asyncio.sleep(_CHECK_S)
            self.check(_CHECK_S)

    def check(self, passed_s: float) -> None:
        """So much time has passed since the last check."""
        for instance in self._instances:
            if instance.silent_s is None or not instance.reached:
                continue
            instance.silent_s += passed_s
            if instance.silent_s >= self._limit_s(instance):
                self._tell(instance, instance.silent_s)
                instance.give_up(f"it has reported nothing for {instance.silent_s:g} s")

    def _limit_s(self, instance: Instance) -> float:
        if instance.slot is None:
            return self._stall_s
        return max(self._stall_s, _STEPS * self._chooser.state.longest_step_s(instance.slot))
