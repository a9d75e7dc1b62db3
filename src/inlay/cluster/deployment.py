"""What a deployment is: which instances serve a model together, and behind what.

Engine settings are plain data here; whoever makes processes of them checks them. What does not fit
together is refused, in the words of the deployment's file.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from inlay.cluster.groups import DispatcherGroup, InstanceGroup, StoreGroup, Tenant
from inlay.cluster.slo import SloClass
from inlay.core.errors import ConfigError
from inlay.core.foreign import ForeignEngine
from inlay.core.instance_messages import Role
from inlay.core.tables import Settings

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
_LOCAL = ("", "localhost", "127.0.0.1", "::1")
# Of the engine, what all instances have in common: where they differ, a dispatcher refuses them.
_SHARED = (
    "weight_format",
    "adapters",
    "max_context_tokens",
    "cache.page_tokens",
    "cache.dtype",
    "cache.prefix",
)
# Names of other processes, whose numbers would be those of a group's instances.
_TAKEN = ("master", "dispatcher")
# What a file says in another place.
_ELSEWHERE = {
    "model": 'write model = "..." at the top of the file',
    "cache.secret": 'write secret = "..." at the top of the file, or leave it out',
    "cache.store": 'add [store] and a node, for example [store.nodes.n0] with memory = "4GiB"',
}


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What a deployment file says.

    Attributes:
        name: unique among the deployments of a user on a machine.
        model: a directory, a hub name, or None for the demo model.
        launcher: `local` starts child processes, `ray` actors.
        secret: of its blocks' names and of its connections; empty draws one that is kept.
        cpus: `shared` leaves all CPUs to all instances; `divided` gives each of them its own.
        drain_s: how long requests may run on an instance that is to be stopped.
        start_timeout_s: how long a process may take until it is ready.
        engine: settings of all instances.
        foreign: engines of other systems, by name; in place of `instances`.
        slo: classes of objectives, by name.
        admission: settings of what refuses requests early.
    """

    name: str = "inlay"
    model: str | None = None
    launcher: Literal["local", "ray"] = "local"
    secret: str = ""
    cpus: Literal["shared", "divided"] = "shared"
    drain_s: float = 60.0
    start_timeout_s: float = 1800.0
    engine: Settings = field(default_factory=dict)
    instances: Mapping[str, InstanceGroup] = field(default_factory=dict)
    foreign: Mapping[str, ForeignEngine] = field(default_factory=dict)
    dispatcher: DispatcherGroup = field(default_factory=DispatcherGroup)
    store: StoreGroup | None = None
    slo: Mapping[str, SloClass] = field(default_factory=dict)
    admission: Settings = field(default_factory=dict)
    tenants: Mapping[str, Tenant] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_name("name", self.name)
        if not self.drain_s >= 0:
            raise ConfigError(f"drain is {self.drain_s:g} s: it must be at least 0")
        if not self.start_timeout_s >= 1:
            raise ConfigError(f"start_timeout is {self.start_timeout_s:g} s: it must be at least 1")
        for group in self.instances:
            _check_name("[instances]", group)
            if group in _TAKEN:
                raise ConfigError(
                    f"[instances.{group}] has the name of other processes, {group}-0 and so on: "
                    "give the group another one"
                )
        if self.foreign:
            self._check_foreign()
            return
        self._check_roles()
        self._check_engines()
        self._check_hosts()
        self._check_devices()
        self._check_store()

    def engine_of(self, group: str, index: int) -> dict[str, Any]:
        """Engine settings of one instance, as nested plain data."""
        found = self.instances[group]
        own: dict[str, Any] = {"device": found.device_of(index)}
        if found.threads is not None:
            own["threads"] = found.threads
        return _merged(_merged(self.engine, own), found.engine)

    def _check_foreign(self) -> None:
        for name in self.foreign:
            _check_name("[foreign]", name)
            if name in _TAKEN:
                raise ConfigError(
                    f"[foreign.{name}] has the name of other processes: choose another"
                )
        if self.model is None:
            raise ConfigError(
                "[foreign] engines serve a model, whose tokenizer is needed here: write model = "
                '"..." at the top of the file'
            )
        for table, there in (("[instances]", self.instances), ("[store]", self.store)):
            if there:
                raise ConfigError(
                    f"{table} stands beside [foreign]: engines of other systems cannot read KV of "
                    "Inlay's instances, so they are deployments of their own"
                )
        if self.launcher != "local":
            raise ConfigError(
                f'launcher is "{self.launcher}", and [foreign] engines are started by somebody '
                "else: leave it out; their url says where they are"
            )
        only = {"cache": {"page_tokens"}}
        for key, value in self.engine.items():
            if key not in only or not isinstance(value, Mapping) or value.keys() - only[key]:
                raise ConfigError(
                    f"[engine] {key}: [foreign] engines have settings of their own; of these here, "
                    "cache.page_tokens alone has a meaning"
                )

    def _check_roles(self) -> None:
        if not any(group.count for group in self.instances.values()):
            raise ConfigError(
                "there is no instance: add a group, for example [instances.all] with count = 2"
            )
        missing = missing_phase([g.role for g in self.instances.values() if g.count])
        if missing:
            raise ConfigError(
                f'no instance is for {missing}: add a group with role = "{missing}" or "both"'
            )

    def _check_engines(self) -> None:
        tables = {"[engine]": self.engine}
        tables |= {f"[instances.{n}.engine]": g.engine for n, g in self.instances.items()}
        for table, settings in tables.items():
            for path, remedy in _ELSEWHERE.items():
                if _at(settings, path) is not None:
                    raise ConfigError(
                        f"{table} {path}: it is no setting of an engine here: {remedy}"
                    )
        first, *others = self.instances
        for path in _SHARED:
            values = {name: _at(self.engine_of(name, 0), path) for name in (first, *others)}
            for name in others:
                if values[name] != values[first]:
                    raise ConfigError(
                        f"[instances.{name}] has {path} {_shown(values[name])} and "
                        f"[instances.{first}] {_shown(values[first])}: one could not go on with "
                        f"the other's requests; set it once, in [engine]"
                    )

    def _check_hosts(self) -> None:
        hosts = {f"[instances.{name}]": group.host for name, group in self.instances.items()}
        if self.store is not None:
            hosts |= {f"[store.nodes.{name}]": node.host for name, node in self.store.nodes.items()}
        far = next((table for table, host in hosts.items() if host not in _LOCAL), None)
        if far is not None and self.store is not None:
            hosts["[store]"] = self.store.host
        for table, host in hosts.items():
            if self.launcher == "ray" and far is not None and host in _LOCAL:
                raise ConfigError(
                    f"{table} host is {host!r}, where {far} on {hosts[far]} cannot reach it: "
                    "write the address of this machine"
                )
            if self.launcher == "local" and host not in _LOCAL:
                raise ConfigError(
                    f'{table} host is {host!r}, and launcher = "local" starts processes of this '
                    'machine: leave it out, or write launcher = "ray"'
                )

    def _check_devices(self) -> None:
        """That no GPU has two instances which both take what is free of it."""
        taken: dict[tuple[str, str], str] = {}
        for name, group in self.instances.items():
            for index in range(group.count):
                engine = self.engine_of(name, index)
                device, instance = engine["device"], instance_name(name, index)
                if not str(device).startswith("cuda"):
                    continue
                if any(_at(engine, f"cache.{size}") is not None for size in ("memory", "pages")):
                    continue
                other = taken.setdefault((group.host, device), instance)
                if other != instance:
                    raise ConfigError(
                        f"[instances.{name}] device: {instance} is on {device}, as {other} is, and "
                        'each would take all of its memory: write device = ["cuda:0", "cuda:1"], '
                        "or set cache.memory in its engine"
                    )

    def _check_store(self) -> None:
        if self.store is None:
            return
        for name in self.store.nodes:
            _check_name("[store.nodes]", name)
        groups = self.instances
        if not self.store.nodes and all(
            _at(self.engine_of(name, 0), "cache.host") is None for name in groups
        ):
            raise ConfigError(
                "[store] has no memory: add a node, for example [store.nodes.n0] with "
                'memory = "4GiB", or cache.host to [engine]'
            )


def instance_name(group: str, index: int) -> str:
    """Name of an instance. Names of groups have no dash, so that none is there twice."""
    return f"{group}-{index}"


def missing_phase(roles: Sequence[Role]) -> Role | None:
    """The phase that no instance is for, or None."""
    phases: tuple[Role, ...] = ("prefill", "decode")
    return next((p for p in phases if p not in roles and "both" not in roles), None)


def _check_name(where: str, name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{where} is {name!r}: a name has 1 to 32 letters, digits or underscores, and begins "
            "with a letter"
        )


def _at(settings: Settings, path: str) -> Any:
    """What is set at a path, or None."""
    found: Any = settings
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _merged(below: Settings, above: Settings) -> dict[str, Any]:
    """Nested settings, those of `above` first."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        both = isinstance(under, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(under, value) if both else value  # type: ignore[arg-type]
    return merged


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)
