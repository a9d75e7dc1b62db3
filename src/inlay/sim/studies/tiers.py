"""What tiers behind the GPUs add: 8 + 8 machines whose GPUs keep what they have room for.

`device`: nothing else. `host`: with what each machine's memory has free. `disk`: with a disk behind
that. `store`: half of all memory is a store that all share, and half each machine's own, with its
disk.

The catalogue's machine has no disk; here it has four of 3.84 TB that read 6.5 GB/s and write 3.5
each, an assumption. No paper has these figures.
"""

from dataclasses import replace

from inlay.sim.capacity import tiers
from inlay.sim.scenario import Scenario
from inlay.sim.simulation import Simulation
from inlay.sim.studies.found import Found
from inlay.sim.studies.mooncake import cluster, design
from inlay.sim.studies.mooncake_run import mean_ttft_s
from inlay.sim.tier import Tier
from inlay.sim.tier_file import STORE_LATENCY_S
from inlay.sim.trace import Trace

PREFILL, DECODE = 8, 8
DISKS, DISK_GB, DISK_READ_GBS, DISK_WRITE_GBS = 4, 3_840.0, 6.5, 3.5
STORE_SHARE = 0.5
OWN = "host", "disk"


def measure(name: str, trace: Trace, *, last: str, policy: str) -> list[Found]:
    """`hit_ratio`, `loaded_ratio`, those of them that were loaded from tiers, and `mean_ttft_s`.

    Args:
        name: of the trace; no figure was published.
        last: of the tiers that there are: `device`, `host`, `disk` or `store`.
    """
    scenario = scenario_with(last, policy)
    results = Simulation(scenario).run(trace)
    hits = results.hit_tokens
    tokens = int(results.input_tokens[results.finished].sum())
    return [
        Found(name="hit_ratio", value=results.hit_ratio),
        Found(name="loaded_ratio", value=(sum(hits.values()) - hits["device"]) / tokens),
        Found(name="mean_ttft_s", value=mean_ttft_s(results)),
    ]


def scenario_with(last: str, policy: str) -> Scenario:
    """The cluster with all tiers up to the last one."""
    shared = STORE_SHARE if last == "store" else 0.0
    behind = [] if last == "device" else _behind(1.0 - shared, disk=last != "host")
    store = None
    if shared:
        (memory, *_) = _behind(shared, disk=False)
        store = Tier(
            name="store", tokens=(PREFILL + DECODE) * memory.tokens, latency_s=STORE_LATENCY_S
        )
    host, disk = (next((one for one in behind if one.name == name), None) for name in OWN)
    kinds = tuple(
        replace(kind, instance=replace(kind.instance, host=host, disk=disk))
        for kind in cluster(PREFILL, DECODE, cache_tokens=None)
    )
    return Scenario(kinds=kinds, policy=policy, store=store)


def _behind(share: float, *, disk: bool) -> list[Tier]:
    """A machine's host, of which it has this share, and perhaps its disks."""
    made = design()
    machine = replace(made.machine, disk_gb=DISKS * DISK_GB, disk_gbs=DISKS * DISK_READ_GBS)
    stored = replace(made, machine=machine)
    host, _ = tiers(stored, share)
    _, disks = tiers(stored)
    return [host, replace(disks, write_bytes_per_s=DISKS * DISK_WRITE_GBS * 1e9)][: 1 + disk]
