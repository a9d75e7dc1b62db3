"""What a dispatcher's process reads from its standard input, and the line that it answers."""

from typing import Any, Literal

import msgspec

from inlay.cluster.control import Member

DISPATCHER = "inlay.serve.dispatcher"
"""The module to run."""

START_FAILED = 3
"""Exit status of a dispatcher that said why it does not start."""


class DispatcherSetup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of JSON; standard input then stays open, and its end is the dispatcher's.

    Attributes:
        name: unique among the deployment's dispatchers.
        parent_pid: the process whose end is also the dispatcher's.
        control: address of the supervisor's socket, which gives rosters; empty: `members` is all.
        members: the instances, where no supervisor says who they are.
        model: directory or hub name, for tokenizer and chat template; None: the demo model.
        port: shared by dispatchers of a deployment (SO_REUSEPORT); 0: any.
        serve: further fields of `serve.config.ServeConfig`, by name.
        secret: of the deployment, `cache.secret` of its instances.
        store: masters of the store behind the instances, as they have them; empty: there is none.
        policy: a name in `cluster.policies`; empty: the default one.
        policy_options: its arguments.
        admission: fields of `cluster.admission.AdmissionConfig`.
        slo: objectives by class: fields of `cluster.slo.SloClass`.
        tenants: by name; what the policy and admission know of them.
        roles: `auto` lets instances take another role when the mix of work shifts; of several
            dispatchers one is told so. `fixed` leaves them as they are.
        timing: directory of timing models that `inlay calibrate` wrote; None: where it writes.
        seed: of the policy's draws; None: random.
        instance_wait_s: how long a request waits while no instance takes requests.
        stall_s: an instance that reports nothing for so long, and 20 steps, stands still.
    """

    name: str
    parent_pid: int
    control: str = ""
    members: tuple[Member, ...] = ()
    model: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    serve: dict[str, Any] = {}
    secret: str = ""
    store: str = ""
    policy: str = ""
    policy_options: dict[str, Any] = {}
    admission: dict[str, Any] = {}
    slo: dict[str, dict[str, Any]] = {}
    tenants: dict[str, dict[str, Any]] = {}
    roles: Literal["fixed", "auto"] = "fixed"
    timing: str | None = None
    seed: int | None = None
    instance_wait_s: float = 10.0
    stall_s: float = 30.0


class DispatcherReady(msgspec.Struct, frozen=True, tag="ready", tag_field="state"):
    """It listens; requests wait for the first instance."""

    address: str


class DispatcherFailed(msgspec.Struct, frozen=True, tag="failed", tag_field="state"):
    """It does not start: an error's code and message."""

    code: str
    message: str


DispatcherLine = DispatcherReady | DispatcherFailed
"""What it prints, one line of JSON."""
