"""What Ray is asked for: a bundle of resources for each process, each on a machine that is named.

Pure: plain data in, plain data out.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from inlay.cluster.launch.launcher import ProcessSpec
from inlay.core.errors import DeploymentError
from inlay.core.instance_setup import is_loopback

Bundle = dict[str, float]
Machines = Mapping[str, Mapping[str, float]]
"""By address: all resources that Ray has there."""

_ON_MACHINE = 0.001  # of `node:ADDRESS`, of which each machine has 1


def machine_of(spec: ProcessSpec, here: str) -> str:
    """Address of the machine that a process is to run on; `here` is the supervisor's."""
    return here if not spec.host or is_loopback(spec.host) else spec.host


def make_bundles(specs: Sequence[ProcessSpec], machines: Machines, here: str) -> list[Bundle]:
    """A bundle for each process.

    Raises:
        DeploymentError: Ray has no such machine, or it is too small for what is to run there.
    """
    sums: dict[str, Bundle] = defaultdict(lambda: defaultdict(float))
    bundles = []
    for spec in specs:
        machine = machine_of(spec, here)
        if machine not in machines:
            raise DeploymentError(
                f"{spec.name} is to run on {machine}, and Ray has no such machine: run ray start "
                f"there, or write one of {', '.join(sorted(machines))} as host"
            )
        asked = {"CPU": float(spec.num_cpus), "GPU": float(spec.num_gpus)}
        bundles.append({f"node:{machine}": _ON_MACHINE, **{k: v for k, v in asked.items() if v}})
        for resource, amount in asked.items():
            sums[machine][resource] += amount
    for machine, resource, amount, there in _too_small(sums, machines):
        raise DeploymentError(
            f"what is to run on {machine} needs {amount:g} {resource}s, and Ray has {there:g} "
            f"there: use fewer instances or threads, or give Ray more with ray start "
            f"--num-{resource.lower()}s"
        )
    return bundles


def _too_small(
    sums: Mapping[str, Bundle], machines: Machines
) -> Iterator[tuple[str, str, float, float]]:
    for machine, resources in sums.items():
        for resource, amount in resources.items():
            there = machines[machine].get(resource, 0.0)
            if amount > there:
                yield machine, resource, amount, there
