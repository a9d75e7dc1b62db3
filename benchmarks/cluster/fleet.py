"""Clusters for measuring: instances that stay, and dispatchers that come and go before them.

Runs that are compared take turns on the same instances, each behind a dispatcher of its own that
begins with the same knowledge: none but what was measured before all runs.
"""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.cluster.load import answered, play
from benchmarks.cluster.workloads import Arrival, random_prompt
from inlay.cluster.control import Member
from inlay.core.instance_messages import Role
from tests.support.cluster import RunningDispatcher, RunningInstance, ended

READY_S = 60.0
_WARM_TOKENS = (40, 700, 200, 500, 90, 400)


@dataclass(frozen=True)
class Fleet:
    """Running instances of one model.

    Attributes:
        folder: for logs.
    """

    model: Path
    members: tuple[Member, ...]
    folder: Path

    @contextmanager
    def dispatcher(self, policy: str, *, warm: bool = True, **setup: Any) -> Iterator[str]:
        """A dispatcher that serves, before empty prefix caches; its URL.

        Args:
            warm: it has seen how long some prompts take.
            setup: other fields of `DispatcherSetup`.
        """
        process = RunningDispatcher(
            self.members, self.folder, model=str(self.model), policy=policy, seed=0, **setup
        )
        with ended(process), _noted(process.log):
            if not process.url:
                raise RuntimeError(f"the dispatcher does not start: {process.first_line}")
            wait_until_ready(process.url, len(self.members))
            if warm:
                play(process.url, _warming(len(self.members)))
            httpx.post(f"{process.url}/reset_prefix_cache", timeout=READY_S).raise_for_status()
            yield process.url


@contextmanager
def running(model: Path, folder: Path, roles: Sequence[Role], **config: Any) -> Iterator[Fleet]:
    """Instances with one thread each, warm, until the block ends.

    Args:
        config: of their engines.
    """
    with ExitStack() as stack:
        instances = []
        for number, role in enumerate(roles):
            instance = RunningInstance(
                f"{role}{number}", folder, role=role, model=str(model), **config
            )
            stack.enter_context(ended(instance))
            instances.append(instance)
        members = tuple(instance.wait_ready().member for instance in instances)
        fleet = Fleet(model, members, folder)
        with fleet.dispatcher("round_robin", warm=False) as url:
            answered(play(url, _warming(len(members))))
        yield fleet


@contextmanager
def _noted(log: Path) -> Iterator[None]:
    """Errors have the end of a log with them, which is gone with its folder."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"{log.name}: {log.read_text()[-2000:]}")
        raise


def _warming(num_instances: int) -> list[Arrival]:
    """Prompts of several lengths for each instance."""
    draw = random.Random(0)
    return [
        Arrival(0.0, random_prompt(draw, tokens), 4)
        for tokens in _WARM_TOKENS
        for _ in range(num_instances)
    ]


def wait_until_ready(url: str, num_instances: int) -> None:
    """Return when a dispatcher has heard of all instances.

    Raises:
        RuntimeError: not in time.
    """
    deadline_s = time.monotonic() + READY_S
    with httpx.Client() as client:
        while time.monotonic() < deadline_s:
            reply = client.get(f"{url}/health")
            if reply.status_code == 200:
                states = [one["state"] for one in reply.json()["instances"]]
                if states.count("ready") == num_instances:
                    return
            time.sleep(0.02)
    raise RuntimeError(f"{url}/health says {reply.text} after {READY_S:g} s")
