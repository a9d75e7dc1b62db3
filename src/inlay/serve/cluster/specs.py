"""The processes of a deployment, from what its file says."""

import json
import math
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec

from inlay.cluster.deployment import Deployment, instance_name
from inlay.cluster.launch.launcher import ProcessSpec
from inlay.cluster.setup import DISPATCHER
from inlay.connect.foreign.setup import MODULE as PROXY
from inlay.core.errors import ConfigError
from inlay.core.instance_messages import Role
from inlay.core.instance_setup import MODULE
from inlay.core.overrides import apply_overrides, check_paths
from inlay.core.tables import Settings
from inlay.engine.config import EngineConfig
from inlay.serve.cluster.cpus import divide_cpus
from inlay.serve.cluster.port import free_port
from inlay.serve.config import ServeConfig
from inlay.store.address import join_address

_OWN = ("host", "port", "api_key", "engine")  # of ServeConfig, what a file says in another place
_CLOSE_S = 4.0  # for what a dispatcher does when its requests have ended


class DeploymentSpecs:
    """What is started for a deployment; `inlay.cluster.supervisor.Specs`.

    Args:
        deployment: with its secret.
        model: directory or name that processes load; None: the demo model.
        model_name: that clients use, unless the file has one.
        port: of the dispatchers, free for them.
        control: address of the supervisor's socket, in a private directory.
        state: directory for what a store's master keeps.

    Raises:
        ConfigError: engine or server settings that there are not, or out of range.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        model: str | None,
        model_name: str,
        port: int,
        control: str,
        state: Path,
    ) -> None:
        self._deployment = deployment
        self._model = model
        self._port = port
        self._control = control
        self._state = state
        serve = _serve_settings(deployment)
        self._serve = {"served_model_name": model_name, **serve}
        self._drain_s: float = serve.get("drain_s", ServeConfig.drain_s)
        self._masters = _master_addresses(deployment)
        total = sum(group.count for group in deployment.instances.values())
        divided = deployment.cpus == "divided" and deployment.launcher == "local"
        self._cpus = divide_cpus(total) if divided else [()]
        self._all = (
            *self._store(),
            *self._instances(),
            *self._proxies(),
            *self._dispatchers(),
        )

    def all(self) -> Sequence[ProcessSpec]:
        """Those that the file asks for."""
        return self._all

    def instance(self, group: str, index: int, role: Role | None = None) -> ProcessSpec:
        """One instance of a group."""
        found = self._deployment.instances[group]
        role, name = role or found.role, instance_name(group, index)
        engine = self._engine(group, index)
        return ProcessSpec(
            name=name,
            kind="instance",
            module=MODULE,
            group=group,
            role=role,
            host=found.host,
            device=engine.device,
            cpus=self._cpus[self._place(group, index) % len(self._cpus)],
            num_cpus=engine.threads or 1,
            num_gpus=engine.placement.tensor_parallel if engine.device.startswith("cuda") else 0,
            setup={
                "config": msgspec.to_builtins(engine),
                "instance": {"name": name, "role": role, "listen": self._listen(found.host)},
            },
        )

    def _listen(self, host: str) -> str:
        """Where instances listen: on one machine beside the supervisor, where no other user can."""
        if self._deployment.launcher == "local":
            return self._control.rpartition("/")[0]
        return _any_port(host)

    def _instances(self) -> Iterator[ProcessSpec]:
        for name, group in self._deployment.instances.items():
            for index in range(group.count):
                yield self.instance(name, index)

    def _proxies(self) -> Iterator[ProcessSpec]:
        for name, engine in self._deployment.foreign.items():
            yield ProcessSpec(
                name=name,
                kind="instance",
                module=PROXY,
                group=name,
                role="both",
                setup={
                    "instance": {"name": name, "listen": self._listen("")},
                    "engine": asdict(engine),
                    "model": self._model,
                    "secret": self._deployment.secret,
                    "page_tokens": self._page_tokens,
                },
            )

    @property
    def _page_tokens(self) -> int | None:
        """That the file sets for all."""
        cache = self._deployment.engine.get("cache")
        return None if cache is None else int(cache["page_tokens"])

    def _dispatchers(self) -> Iterator[ProcessSpec]:
        deployment, found = self._deployment, self._deployment.dispatcher
        for index in range(found.count):
            name = f"dispatcher-{index}"
            yield ProcessSpec(
                name=name,
                kind="dispatcher",
                module=DISPATCHER,
                stop_signal=signal.SIGTERM,  # it lets running requests end
                grace_s=self._drain_s + _CLOSE_S,
                setup={
                    "name": name,
                    "control": self._control,
                    "model": self._model,
                    "host": found.host,
                    "port": self._port,
                    "serve": self._serve,
                    "secret": deployment.secret,
                    "policy": found.policy,
                    "policy_options": found.options,
                    "store": self._master if deployment.store else "",
                    "roles": found.roles if index == 0 else "fixed",
                    "admission": deployment.admission,
                    "slo": {name: _finite(asdict(slo)) for name, slo in deployment.slo.items()},
                    "tenants": {name: asdict(one) for name, one in deployment.tenants.items()},
                    "instance_wait_s": found.instance_wait_s,
                    "stall_s": found.stall_s,
                },
            )

    def _store(self) -> Iterator[ProcessSpec]:
        store = self._deployment.store
        if store is None:
            return
        module = "inlay.serve.store.process"
        for index, address in enumerate(self._masters):
            yield ProcessSpec(
                name=f"master-{index}",
                kind="master",
                module=module,
                setup={
                    "master": {
                        "listen": address,
                        "etcd": store.etcd,
                        "state": str(self._state / "master.json"),
                    }
                },
            )
        for name, node in store.nodes.items():
            yield ProcessSpec(
                name=f"node-{name}",
                kind="node",
                module=module,
                host=node.host,
                setup={
                    "node": {
                        "master": self._master,
                        "name": f"{self._deployment.name}.{name}",
                        "memory": node.memory,
                        "disk": node.disk,
                        "listen": _any_port(node.host),
                    }
                },
            )

    @property
    def _master(self) -> str:
        """Where the store is, for its clients."""
        store = self._deployment.store
        assert store is not None
        return store.etcd or self._masters[0]

    def _engine(self, group: str, index: int) -> EngineConfig:
        deployment = self._deployment
        engine = _engine(deployment, group, index)
        if deployment.launcher == "ray" and engine.device.startswith("cuda"):
            engine = replace(engine, device="cuda")  # those that Ray gives it, and no others
        store = self._master if deployment.store else None
        cache = replace(engine.cache, secret=deployment.secret, store=store)
        exchange = engine.exchange
        if exchange is None:
            exchange = _any_port(deployment.instances[group].host)
        return replace(engine, model=self._model, cache=cache, exchange=exchange)

    def _place(self, group: str, index: int) -> int:
        """Number of an instance among all, for its CPUs."""
        before = 0
        for name, found in self._deployment.instances.items():
            if name == group:
                break
            before += found.count
        return before + index


def check_settings(deployment: Deployment, file: Path) -> None:
    """Check the settings of engines and servers, before anything slow is done.

    Args:
        file: that has them, for messages.

    Raises:
        ConfigError: there are none of this name, or the value is out of range; names the file, the
            table and the key.
    """
    try:
        _check_names("[engine]", deployment.engine)
        for name, group in deployment.instances.items():
            _check_names(f"[instances.{name}.engine]", group.engine)
            _engine(deployment, name, 0)
        _serve_settings(deployment)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def _check_names(table: str, settings: Settings) -> None:
    """That an engine has the settings of a table; their values may need those of another table."""
    paths = (assignment.partition("=")[0] for assignment in _assignments(settings))
    check_paths(EngineConfig, paths, option=table)


def _engine(deployment: Deployment, group: str, index: int) -> EngineConfig:
    """Engine settings of an instance, as far as the file says them."""
    assignments = list(_assignments(deployment.engine_of(group, index)))
    return apply_overrides(EngineConfig(), assignments, option=f"[instances.{group}] engine:")


def _serve_settings(deployment: Deployment) -> dict[str, Any]:
    """Fields of ServeConfig that the file sets, checked."""
    found = deployment.dispatcher
    for key in _OWN:
        if key in found.serve:
            where = "[engine]" if key == "engine" else f"[dispatcher] {key}"
            raise ConfigError(f"[dispatcher.serve] {key}: write it in {where}")
    settings = ServeConfig(host=found.host, port=found.port, api_key=found.api_key)
    checked = apply_overrides(
        settings, list(_assignments(found.serve)), option="[dispatcher.serve]"
    )
    set_ = {key: getattr(checked, key) for key in found.serve}
    return {**set_, "api_key": found.api_key} if found.api_key else set_


def _master_addresses(deployment: Deployment) -> tuple[str, ...]:
    """Where the store's masters listen; free ports are chosen once, since nodes come back there."""
    store = deployment.store
    if store is None:
        return ()
    ports = [
        store.port + index if store.port else free_port(store.host)
        for index in range(store.masters)
    ]
    return tuple(join_address(store.host, port) for port in ports)


def _any_port(host: str) -> str:
    return join_address(host or "127.0.0.1", 0)


def _assignments(settings: Settings, prefix: str = "") -> Iterator[str]:
    """Nested settings as `path.to.field=value`."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _assignments(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            yield f"{prefix}{key}={text}"


def _finite(fields: dict[str, Any]) -> dict[str, Any]:
    """Without infinite values, which JSON cannot say and which are defaults."""
    return {key: value for key, value in fields.items() if value != math.inf}
