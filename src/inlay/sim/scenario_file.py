"""Reads what is to be simulated from a file.

    model = "llama-3.1-70b"
    [instances.all]
    count = 4
    machine = "xeon-spr-2s+8xa800"
    tensor = 8

It is written as a deployment's file is (`cluster.deployment_file`), but for its instances: of them
it says on what hardware they would be, or how long steps take where somebody has measured.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from inlay.cluster.admission import AdmissionConfig
from inlay.cluster.deployment import missing_phase
from inlay.cluster.groups import Tenant
from inlay.cluster.policies import DEFAULT_POLICY, make_policy
from inlay.cluster.slo import SloClass
from inlay.core.errors import ConfigError, ResourceError
from inlay.core.hardware import Machine
from inlay.core.instance_messages import ROLES, Role
from inlay.core.model_shape import ModelShape
from inlay.core.tables import (
    Settings,
    build,
    check_keys,
    named_tables,
    read_table,
    read_toml,
    sub_table,
)
from inlay.sim import measured_time
from inlay.sim.capacity import tiers, token_bytes_of
from inlay.sim.change_file import losses_of, role_changes_of
from inlay.sim.design import Costs, InstanceDesign, Parallelism, file_formats
from inlay.sim.hardware import instance_of, price_usd
from inlay.sim.scenario import Kind, Scenario
from inlay.sim.tier_file import CacheTable, StoreTable
from inlay.sim.world import InstanceConfig

_MEASURED = ("calibration", "steps")


@dataclass(frozen=True, kw_only=True)
class SimulatedGroup:
    """Instances that are alike, of which none need exist.

    Where somebody has measured steps, the file has `calibration` or `steps`, and `tokens`;
    else `machine`, and how its GPUs share the model.

    Attributes:
        role: which phases they are for.
        count: how many there are.
        machine: of the catalogue, or a machine's file: what they stand on.
        tensor, data, pipeline, whole_experts, redundant_experts, imbalance: as in
            `design.Parallelism`.
        host_share, deferred_experts: as in `design.InstanceDesign`.
        chunk_tokens: of a prompt, in a step.
        max_running: requests at a time.
        decode_first: prompts wait until no output is under way, as in no engine of ours.
        costs: as in `design.Costs`.
        calibration: a file of `inlay calibrate`.
        steps: a table of measured steps (CSV).
        tokens: for how many there is room, where steps were measured.
        network_gbs: of what they send each other, one direction, where steps were measured.
        noise: relative standard deviation of a step's time; by default what was measured.
        price_usd: of each of them; by default from the catalogue.
        cache: what is behind its device, as in `tier_file.CacheTable`.
    """

    role: Role = "both"
    count: int = 1
    machine: str | None = None
    tensor: int = 1
    data: int = 1
    pipeline: int = 1
    whole_experts: bool = False
    redundant_experts: int = 0
    imbalance: float = 1.0
    host_share: float = 0.0
    deferred_experts: int = 0
    chunk_tokens: int = 8192
    max_running: int = 256
    decode_first: bool = False
    costs: Settings = field(default_factory=dict)
    calibration: Path | None = None
    steps: Path | None = None
    tokens: int | None = None
    network_gbs: float = 0.0
    noise: float | None = None
    price_usd: float | None = None
    cache: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ConfigError(f"role is {self.role!r}: it must be one of {', '.join(ROLES)}")
        if self.count < 1:
            raise ConfigError(f"count is {self.count}: it must be at least 1")
        sources = [name for name in ("machine", *_MEASURED) if getattr(self, name) is not None]
        if len(sources) != 1:
            raise ConfigError(
                "one of machine, calibration and steps says how long steps take, got "
                + (" and ".join(sources) or "none of them")
            )
        if self.machine is None and self.tokens is None:
            raise ConfigError(
                f"{sources[0]} knows no memory: write for how many tokens there is "
                "room, for example tokens = 200000"
            )
        if self.machine is not None and self.tokens is not None:
            raise ConfigError("tokens follow from machine: leave them out")


@dataclass(frozen=True, kw_only=True)
class _Dispatcher:
    policy: str = DEFAULT_POLICY
    options: Settings = field(default_factory=dict)
    roles: Literal["fixed", "auto"] = "fixed"

    def __post_init__(self) -> None:
        make_policy(self.policy, self.options)


@dataclass(frozen=True, kw_only=True)
class _Top:
    """Keys of the file that are no table, and names of those that are."""

    model: str | None = None
    kv: str = "bfloat16"
    page_tokens: int = 512
    copies: bool = True
    report_s: float = 0.1
    news_delay_s: float = 0.002
    link_latency_s: float = 0.0
    learn: bool = False
    seed: int = 0
    instances: Settings = field(default_factory=dict)
    dispatcher: Settings = field(default_factory=dict)
    admission: Settings = field(default_factory=dict)
    slo: Settings = field(default_factory=dict)
    tenants: Settings = field(default_factory=dict)
    store: Settings = field(default_factory=dict)
    losses: list[Settings] = field(default_factory=list)
    role_changes: list[Settings] = field(default_factory=list)


_TABLES = (
    "instances",
    "dispatcher",
    "admission",
    "slo",
    "tenants",
    "store",
    "losses",
    "role_changes",
)


def read_scenario(
    file: Path,
    find_shape: Callable[[str], ModelShape],
    find_machine: Callable[[str], Machine],
) -> Scenario:
    """Read a scenario's file.

    Args:
        find_shape: a model by its name.
        find_machine: a machine by its name, or the name of its file.

    Raises:
        ConfigError: it cannot be read, or does not fit together; names the key and the fix.
        ResourceError: a model does not fit on the machine that the file says.
        InlayError: as `find_shape` and `find_machine` do.
    """
    tables = read_toml(file)
    try:
        return _scenario(tables, file.parent, find_shape, find_machine)
    except (ConfigError, ResourceError) as error:
        raise type(error)(f"{file}: {error}") from error


def _scenario(
    tables: Settings,
    folder: Path,
    find_shape: Callable[[str], ModelShape],
    find_machine: Callable[[str], Machine],
) -> Scenario:
    check_keys("", tables, _Top, without={})
    top = build(_Top, {k: v for k, v in tables.items() if k not in _TABLES}, {})
    groups = named_tables(tables, "instances", SimulatedGroup, keep=("costs", "cache"))
    if not groups:
        raise ConfigError("there is no instance: add a group, for example [instances.all]")
    missing = missing_phase([group.role for group in groups.values()])
    if missing:
        raise ConfigError(
            f'no instance is for {missing}: add a group with role = "{missing}" or "both"'
        )
    dispatcher = read_table(
        "dispatcher", sub_table(tables, "dispatcher"), _Dispatcher, ("options",)
    )
    classes = named_tables(tables, "slo", SloClass, knows_name=True)
    tenants = named_tables(tables, "tenants", Tenant)
    asked = sub_table(tables, "admission") if "admission" in tables else {"mode": "off"}
    admission = read_table("admission", asked, AdmissionConfig)
    shape = None if top.model is None else find_shape(top.model)
    kinds = []
    for name, group in groups.items():
        try:
            if group.machine is None:
                kinds.append(_measured(name, group, top, folder, shape))
            else:
                kinds.append(_designed(name, group, top, shape, find_machine(group.machine)))
        except (ConfigError, ResourceError) as error:
            raise type(error)(f"[instances.{name}] {error}") from error
    store = None
    if "store" in tables:
        table = read_table("store", sub_table(tables, "store"), StoreTable)
        if shape is None:
            raise ConfigError("[store] what it holds depends on the model: name it at the top")
        store = table.tier(token_bytes_of(shape, file_formats(shape, top.kv)))
    return Scenario(
        kinds=tuple(kinds),
        policy=dispatcher.policy,
        policy_options=dispatcher.options,
        roles=dispatcher.roles,
        admission=admission,
        slo=classes.get("default", SloClass()),
        groups={name: slo for name, slo in classes.items() if name != "default"},
        weights={name: tenant.weight for name, tenant in tenants.items()},
        copies=top.copies,
        report_s=top.report_s,
        news_delay_s=top.news_delay_s,
        learn=top.learn,
        link_latency_s=top.link_latency_s,
        seed=top.seed,
        losses=losses_of(tables, kinds),
        role_changes=role_changes_of(tables, kinds),
        store=store,
    )


def _measured(
    name: str, group: SimulatedGroup, top: _Top, folder: Path, shape: ModelShape | None
) -> Kind:
    if group.calibration is not None:
        fit = measured_time.read_calibration(folder / group.calibration)
    else:
        assert group.steps is not None
        fit = measured_time.read_table(folder / group.steps)
    assert group.tokens is not None
    network = group.network_gbs * 1e9
    if (network or group.cache) and shape is None:
        what = "network_gbs: what is sent" if network else "cache: what a tier holds"
        raise ConfigError(f"{what} depends on the model: name it at the top")
    config = InstanceConfig(
        step_time=fit.step_time,
        num_pages=group.tokens // top.page_tokens,
        page_tokens=top.page_tokens,
        max_batch_tokens=group.chunk_tokens + group.max_running,
        max_running=group.max_running,
        prefill_chunk=group.chunk_tokens,
        decode_first=group.decode_first,
        noise=fit.relative_std if group.noise is None else group.noise,
        out_bytes_per_s=network,
        in_bytes_per_s=network,
    )
    if shape is not None:
        token_bytes = token_bytes_of(shape, file_formats(shape, top.kv))
        config = replace(
            config,
            token_bytes=token_bytes,
            layers=shape.layers,
            experts=shape.experts,
            experts_per_token=shape.experts_per_token,
            **_cache(group).tiers(token_bytes),
        )
    return Kind(
        instance=config,
        role=group.role,
        count=group.count,
        name=name,
        price_usd=group.price_usd,
    )


def _cache(group: SimulatedGroup) -> CacheTable:
    return read_table("cache", group.cache, CacheTable)


def _designed(
    name: str, group: SimulatedGroup, top: _Top, shape: ModelShape | None, machine: Machine
) -> Kind:
    if shape is None:
        raise ConfigError('machine: name a model at the top, for example model = "deepseek-v3"')
    shared = {one.name: getattr(group, one.name) for one in fields(Parallelism)}
    design = InstanceDesign(
        shape=shape,
        formats=file_formats(shape, top.kv),
        machine=machine,
        parallelism=Parallelism(**shared),
        chunk_tokens=group.chunk_tokens,
        host_share=group.host_share,
        deferred_experts=group.deferred_experts,
        costs=read_table("costs", group.costs, Costs),
    )
    config = instance_of(
        design,
        page_tokens=top.page_tokens,
        max_running=group.max_running,
        noise=group.noise or 0.0,
    )
    config = replace(
        config,
        decode_first=group.decode_first,
        **_cache(group).tiers(config.token_bytes, tiers(design)),
    )
    return Kind(
        instance=config,
        role=group.role,
        count=group.count,
        name=name,
        gpus=design.parallelism.gpus,
        assumed=design.is_assumed,
        price_usd=price_usd(design) if group.price_usd is None else group.price_usd,
    )
