"""Runs a deployment until it is told to stop."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from inlay.cluster.control import Status
from inlay.cluster.control_server import ControlServer
from inlay.cluster.deployment import Deployment
from inlay.cluster.deployment_directory import DeploymentDirectory, Supervised
from inlay.cluster.launch.launcher import Launcher
from inlay.cluster.launch.local import LocalLauncher
from inlay.cluster.supervisor import Supervisor
from inlay.models.source import ModelSource, resolve_model
from inlay.serve.cluster.port import reserve_port
from inlay.serve.cluster.specs import DeploymentSpecs, check_settings
from inlay.serve.http_server import StopSignals, shown_host
from inlay.serve.rate_line import RateLine


def run_deployment(
    deployment: Deployment,
    file: Path,
    directory: DeploymentDirectory,
    *,
    say: Callable[[str], None],
    show: Callable[[Status], None],
) -> None:
    """Start a deployment, and keep it running until a stop signal or `inlay down`.

    Args:
        file: that it was read from, for messages.
        say: is given a line for people at each change.
        show: is given how all is, once it is ready.

    Raises:
        ConfigError: settings of engines or servers do not fit.
        DeploymentError: it is running already.
        AddressInUseError: another process listens on the dispatchers' port.
        InlayError: a process cannot start; all others are stopped.
    """
    check_settings(deployment, file)
    found = deployment.dispatcher
    with (
        directory.claim(file) as supervised,
        reserve_port(found.host, found.port, key="[dispatcher] port") as held,
    ):
        deployment = replace(deployment, secret=deployment.secret or directory.secret())
        source = _resolve(deployment, say)
        host, port = held.getsockname()[:2]
        specs = DeploymentSpecs(
            deployment,
            model=_model_of(deployment, source),
            model_name=source.name,
            port=port,
            control=supervised.control,
            state=directory.path,
        )
        url = f"http://{shown_host(found.host, host)}:{port}"
        launcher = _make_launcher(deployment, directory.logs, specs)
        asyncio.run(_supervise(deployment, specs, launcher, supervised, url, say, show))
    say("stopped")


async def _supervise(
    deployment: Deployment,
    specs: DeploymentSpecs,
    launcher: Launcher,
    supervised: Supervised,
    url: str,
    say: Callable[[str], None],
    show: Callable[[Status], None],
) -> None:
    signals = StopSignals()
    over = asyncio.Event()
    supervisor = Supervisor(deployment, specs, launcher, url=url, say=say)

    async def stop(at_once: bool) -> None:
        say(f"stopping {deployment.name}")
        await supervisor.stop(at_once=at_once)
        over.set()

    control = ControlServer(supervisor, Path(supervised.sockets), stop)
    kinds = Counter(spec.kind for spec in specs.all())
    say(f"starting {deployment.name}: " + ", ".join(_counted(k, n) for k, n in kinds.items()))
    starting = asyncio.ensure_future(supervisor.start())
    ending = [asyncio.ensure_future(event.wait()) for event in (signals.asked, over)]
    try:
        with signals.installed():
            await asyncio.wait((starting, *ending), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await starting
                show(supervisor.status())
                await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
            if not over.is_set():
                await _stop(supervisor, signals, stop(False))
    finally:
        starting.cancel()
        for one in ending:
            one.cancel()
        if not over.is_set():  # one could not start, or two signals came
            await supervisor.stop(at_once=True)
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await starting
        await control.aclose()


async def _stop(
    supervisor: Supervisor, signals: StopSignals, stop: Coroutine[Any, Any, None]
) -> None:
    """Stop all; a second signal kills what is left."""
    stopping = asyncio.ensure_future(stop)
    insisted = asyncio.ensure_future(signals.insisted.wait())
    await asyncio.wait((stopping, insisted), return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        await supervisor.stop(at_once=True)
    insisted.cancel()
    await stopping


def _resolve(deployment: Deployment, say: Callable[[str], None]) -> ModelSource:
    engine = deployment.engine
    return resolve_model(
        deployment.model,
        # Engines of other systems have their weights; tokenizer and sizes are enough here.
        weight_format=None if deployment.foreign else str(engine.get("weight_format", "auto")),
        offline=bool(engine.get("offline", False)),
        progress=RateLine(f"fetching {deployment.model}", say),
    )


def _model_of(deployment: Deployment, source: ModelSource) -> str | None:
    """What processes load: on other machines the files may be elsewhere."""
    if deployment.launcher == "local":
        return str(source.directory)
    if source.is_demo:
        return None
    return str(Path(source.name).absolute()) if Path(source.name).exists() else source.name


def _make_launcher(deployment: Deployment, logs: Path, specs: DeploymentSpecs) -> Launcher:
    if deployment.launcher == "local":
        return LocalLauncher(logs)
    from inlay.cluster.launch.ray import RayLauncher

    return RayLauncher(logs, specs.all())


def _counted(kind: str, count: int) -> str:
    return f"{count} {kind}" + ("s" if count > 1 else "")
