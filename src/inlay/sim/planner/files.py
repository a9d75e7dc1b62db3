"""A fleet as the files that `inlay simulate` and `inlay up` take."""

import json
import math
from collections.abc import Iterator
from dataclasses import Field, fields

from inlay.cluster.policies import DEFAULT_POLICY
from inlay.cluster.slo import SloClass
from inlay.core.errors import ConfigError
from inlay.sim.planner.candidates import Candidate
from inlay.sim.planner.fleet import LINK_LATENCY_S, Fleet
from inlay.sim.planner.memory import host_bytes, node_bytes
from inlay.sim.tier_file import CacheTable, StoreTable

_SHARING = ("tensor", "data", "pipeline")


def scenario_toml(fleet: Fleet, model: str, slo: SloClass, page_tokens: int) -> str:
    """What `inlay simulate` takes, and what the planner has simulated."""
    lines = [
        f"# {fleet.name}: {fleet.gpus} GPUs, {fleet.price_usd:,.0f} USD. Written by `inlay plan`.",
        f"model = {json.dumps(model)}",
        f"page_tokens = {page_tokens}",
        f'link_latency = "{LINK_LATENCY_S * 1e3:g}ms"',
    ]
    for group, (one, count) in fleet.groups.items():
        across = one.design.parallelism
        lines += ["", f"[instances.{group}]", f'role = "{one.role}"', f"count = {count}"]
        lines.append(f"machine = {json.dumps(one.machine)}")
        lines += [f"{name} = {getattr(across, name)}" for name in _SHARING]
        lines.append(f"whole_experts = {json.dumps(across.whole_experts)}")
        lines.append(f"chunk_tokens = {one.design.chunk_tokens}")
        lines.append(f"max_running = {one.instance.max_running}")
        lines += _table(f"instances.{group}.cache", fleet.mix.memory.cache(one))
    lines += [] if fleet.store is None else _table("store", fleet.store)
    return "\n".join([*lines, *_common(slo)]) + "\n"


def deployment_toml(fleet: Fleet, model: str, slo: SloClass) -> str:
    """What `inlay up` takes, with addresses of machines that its user replaces.

    A group is what stands on one machine; where all of a fleet is one instance, or one machine has
    it and each instance has a GPU, no address is needed. Where instances share memory, it is in
    nodes of a store: one on each of their machines, and those that are bought.

    Raises:
        ConfigError: an instance is what Inlay's own engine is not: experts that are whole, or GPUs
            of several machines.
    """
    for one in fleet.mix.groups:
        if one.design.machines > 1 or one.gpus != one.design.parallelism.tensor:
            raise ConfigError(
                f"--deployment: {one.name} is nothing that inlay up can start: its instances are "
                "GPUs of one machine that share each layer"
            )
    groups = list(_standing(fleet))
    memory = fleet.mix.memory
    one_gpu = fleet.mix.groups[0].gpus == 1
    alone = len(groups) == 1 and not memory.nodes and (fleet.counts == (1,) or one_gpu)
    lines = [
        f"# {fleet.name}: {fleet.gpus} GPUs, {fleet.price_usd:,.0f} USD. Written by `inlay plan`.",
    ]
    if not alone:
        lines.append("# Write the addresses that Ray has for your machines in the place of 10.0.*.")
    lines += ['name = "planned"', f"model = {json.dumps(model)}"]
    lines += [] if alone else ['launcher = "ray"']
    for number, (name, one, count) in enumerate(groups):
        lines += ["", f"[instances.{name}]", f'role = "{one.role}"', f"count = {count}"]
        devices = [f"cuda:{place * one.gpus}" for place in range(count)]
        lines.append(f"device = {json.dumps(devices)}")
        if not alone:
            lines.append(f'host = "{_address(number)}"')
        lines += [
            "",
            f"[instances.{name}.engine]",
            f"placement.tensor_parallel = {one.gpus}",
            f"scheduler.prefill_chunk = {one.design.chunk_tokens}",
            f"scheduler.max_batch_tokens = {one.instance.max_batch_tokens}",
            f"scheduler.max_running = {one.instance.max_running}",
        ]
        if (cache := memory.cache(one)).host is not None:
            lines.append(f'cache.host = "{host_bytes(one)}B"')
            if cache.disk is not None:
                lines.append(f'cache.disk = "/var/cache/inlay/{name}:{cache.disk}"')
    if fleet.store is not None:
        sizes = [count * host_bytes(one) for _, one, count in groups] + [
            node_bytes()
        ] * memory.nodes
        lines += [] if alone else ["", "[store]", f'host = "{_address(0)}"']
        for number, size in enumerate(sizes):
            lines += ["", f"[store.nodes.n{number}]", f'memory = "{size}B"']
            lines += [] if alone else [f'host = "{_address(number)}"']
    return "\n".join([*lines, *_common(slo)]) + "\n"


def _standing(fleet: Fleet) -> Iterator[tuple[str, Candidate, int]]:
    """What stands on each machine: a name, the kind of instance and how many."""
    for group, (one, count) in fleet.groups.items():
        each = len(one.design.machine.gpus) // one.gpus
        machines = -(-count // each)
        for number in range(machines):
            name = group if machines == 1 else f"{group}_{number}"
            yield name, one, min(each, count - number * each)


def _address(machine: int) -> str:
    """That a user replaces."""
    return f"10.0.{machine // 250}.{machine % 250 + 1}"


def _table(name: str, table: CacheTable | StoreTable) -> list[str]:
    """What a table says besides its defaults, if that is anything."""
    given = [(one.name, getattr(table, one.name)) for one in fields(table) if _is_given(table, one)]
    return ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in given)] * bool(
        given
    )


def _is_given(table: CacheTable | StoreTable, one: Field[object]) -> bool:
    return bool(getattr(table, one.name) != one.default)


def _common(slo: SloClass) -> list[str]:
    lines = ["", "[dispatcher]", f'policy = "{DEFAULT_POLICY}"', "", "[slo.default]"]
    times = {"ttft": slo.ttft_s, "tbt": slo.tbt_s, "itl": slo.itl_s}
    return lines + [f'{name} = "{s:g}s"' for name, s in times.items() if math.isfinite(s)]
