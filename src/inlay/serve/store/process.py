"""A store's master or node in a deployment: `python -m inlay.serve.store.process`.

It keeps the contract of `inlay.cluster.launch.launcher`: a line of JSON on standard input, lines of
JSON on standard output, and its end is the end of standard input.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from inlay.core.errors import ConfigError, InlayError
from inlay.core.log import configure_logging, parse_log_setting
from inlay.core.parent_watch import ParentWatch
from inlay.core.settings import read_settings
from inlay.core.units import parse_bytes
from inlay.serve.store.config import MasterConfig
from inlay.store import Disk
from inlay.store.address import parse_cluster, parse_masters
from inlay.store.tenants import DEFAULT_TENANT, Tenant, read_token

START_FAILED = 3
_JOIN_S = 30.0


class MasterSetup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a master is.

    Attributes:
        listen: "host:port", the same at each start.
        etcd: where masters are elected, or None.
        state: the file of the epoch of a master that stands alone.
    """

    listen: str
    etcd: str | None = None
    state: str


class NodeSetup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a node contributes.

    Attributes:
        master: where the store is, as `inlay.store.address.parse_masters` takes it.
        memory: a size.
        disk: a directory and a size, "PATH:SIZE", or None.
        listen: "host:port" of its transfer engine.
    """

    master: str
    name: str
    memory: str
    disk: str | None = None
    listen: str


class StoreSetup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the process is: one of the two."""

    parent_pid: int
    master: MasterSetup | None = None
    node: NodeSetup | None = None


def main() -> int:
    """Run until the parent wants no more; 3 where it cannot start, and why is on the output."""
    configure_logging(parse_log_setting(read_settings().log))
    say = _own_output()
    try:
        setup = msgspec.json.decode(sys.stdin.buffer.readline(), type=StoreSetup)
        _end_with_parent(ParentWatch(setup.parent_pid))
        if setup.master is not None:
            _run_master(setup.master, say)
        elif setup.node is not None:
            _run_node(setup.node, say)
    except (InlayError, msgspec.MsgspecError) as error:
        code = error.code if isinstance(error, InlayError) else ConfigError.code
        say({"state": "failed", "code": code, "message": str(error)})
        return START_FAILED
    return 0


def _own_output() -> Callable[[dict[str, str]], None]:
    """Lines of the contract go to standard output; what others print, to the log."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(line: dict[str, str]) -> None:
        output.write(msgspec.json.encode(line) + b"\n")

    return say


def _end_with_parent(watch: ParentWatch) -> None:
    """As a stop signal ends it."""

    def wait() -> None:
        watch.stopping.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="inlay-stop", daemon=True).start()


def _run_master(setup: MasterSetup, say: Callable[[dict[str, str]], None]) -> None:
    from inlay.serve.store.master import run_master

    listen = parse_masters(setup.listen)
    assert isinstance(listen, tuple)
    config = MasterConfig(
        listen=listen[0],
        admin=None,
        cluster=None if setup.etcd is None else parse_cluster(setup.etcd),
        state=Path(setup.state),
        tenants=(Tenant(DEFAULT_TENANT, read_token(None)),),
    )
    if config.cluster is not None:  # a standby is ready, too: it waits for its turn
        say({"state": "ready", "address": setup.listen})
    run_master(config, partial(_tell, say, "master at ", setup.listen))


def _run_node(setup: NodeSetup, say: Callable[[dict[str, str]], None]) -> None:
    from inlay.serve.store.node import NodeConfig, run_node

    config = NodeConfig(
        master=setup.master,
        memory_bytes=parse_bytes(setup.memory),
        disk=None if setup.disk is None else Disk.parse(setup.disk),
        name=setup.name,
        keep=False,
        failure_domain=None,
        listen=setup.listen,
        token=read_token(None),
        timeout_s=_JOIN_S,
    )
    run_node(config, partial(_tell, say, f"node {setup.name}:", setup.master))


def _tell(say: Callable[[dict[str, str]], None], begin: str, address: str, text: str) -> None:
    """Of what it tells people, the line that it serves is for the launcher, too."""
    print(text, file=sys.stderr, flush=True)
    if text.startswith(begin):
        say({"state": "ready", "address": address})


if __name__ == "__main__":
    sys.exit(main())
