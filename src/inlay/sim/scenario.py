"""What is simulated, as data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from inlay.cluster.admission import AdmissionConfig
from inlay.cluster.policies import DEFAULT_POLICY
from inlay.cluster.slo import SloClass
from inlay.core.errors import ConfigError
from inlay.core.instance_messages import ROLES, Role
from inlay.sim.tier import Tier
from inlay.sim.world import InstanceConfig


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Instances that are equal.

    Attributes:
        role: which phases they are for.
        count: how many.
        instance: what each is.
        believed: seconds of `timing.FEATURES` that are believed of its steps at first; None: what
            `step_time.calibrated` finds.
        name: for figures.
        gpus: of each.
        assumed: whether nobody has measured what kernels reach on its hardware.
        price_usd: of each; None: not known.
    """

    instance: InstanceConfig
    role: Role = "both"
    count: int = 1
    believed: tuple[float, ...] | None = None
    name: str = "instances"
    gpus: int = 0
    assumed: bool = False
    price_usd: float | None = None

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ConfigError(f"kind.role {self.role!r} is not one of {', '.join(ROLES)}")
        if self.count < 1:
            raise ConfigError(f"kind.count must be at least 1, got {self.count}")


@dataclass(frozen=True, kw_only=True)
class Loss:
    """An instance is lost with all that it has and does.

    Attributes:
        at_s: when.
        slot: which; they are numbered in the order of the scenario's kinds.
        back_s: after which another one of its kind is in its place; infinite: none ever is.
    """

    at_s: float
    slot: int
    back_s: float = math.inf


@dataclass(frozen=True, kw_only=True)
class RoleChange:
    """An instance has another role from `at_s` on; what it has and does stays."""

    at_s: float
    slot: int
    role: Role


Change = Loss | RoleChange


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Instances, and who sends requests to them.

    Attributes:
        kinds: slots are given in this order.
        policy: name of who chooses, with `policy_options`.
        admission: when requests are refused; by default never.
        slo: objectives and priority of requests.
        groups: of those of some groups of the trace, by its name, in place of `slo`.
        weights: shares of tenants, which are the groups, in admission; 1 where there is none.
        copies: whether instances give each other blocks, as a decision asks for, over their links.
        report_s: between two load reports of an instance, at least.
        news_delay_s: after which it is heard what instances say.
        learn: whether the times of steps are learned from reports, as a dispatcher does; otherwise
            what is believed at first holds.
        link_latency_s: from the last byte that is sent between instances to the first use.
        seed: of all that is drawn.
        losses, role_changes: of instances, at given times.
        roles: `auto` lets instances take another role when the mix of work shifts, as in a
            deployment.
        store: that all instances share, over their links; None: there is none.
    """

    kinds: tuple[Kind, ...]
    policy: str = DEFAULT_POLICY
    policy_options: Mapping[str, object] = field(default_factory=dict)
    admission: AdmissionConfig = field(default_factory=lambda: AdmissionConfig(mode="off"))
    slo: SloClass = field(default_factory=SloClass)
    groups: Mapping[str, SloClass] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    copies: bool = True
    report_s: float = 0.1
    news_delay_s: float = 0.002
    learn: bool = False
    link_latency_s: float = 0.0
    seed: int = 0
    losses: tuple[Loss, ...] = ()
    role_changes: tuple[RoleChange, ...] = ()
    roles: Literal["fixed", "auto"] = "fixed"
    store: Tier | None = None

    def __post_init__(self) -> None:
        if not self.kinds:
            raise ConfigError("a scenario needs at least one kind of instances")
        sizes = sorted({kind.instance.page_tokens for kind in self.kinds})
        if len(sizes) > 1:
            raise ConfigError(f"all instances need the same page_tokens, got {sizes}")
        if self.store is not None and not self.linked:
            raise ConfigError(
                "store: it is reached over the network, and an instance has no link: set "
                "network_gbs"
            )
        self._check_changes()

    def _check_changes(self) -> None:
        slots = sum(kind.count for kind in self.kinds)
        changes: tuple[Change, ...] = (*self.losses, *self.role_changes)
        for change in changes:
            if not (0 <= change.slot < slots and 0 <= change.at_s < math.inf):
                raise ConfigError(
                    f"{change}: slot must be below {slots}, the number of instances, and at_s a "
                    "time from 0 on"
                )
        for change in self.role_changes:
            if change.role not in ROLES:
                raise ConfigError(f"{change}: role is not one of {', '.join(ROLES)}")
        there_s = dict.fromkeys(range(slots), 0.0)
        for loss in sorted(self.losses, key=lambda loss: loss.at_s):
            if loss.at_s < there_s[loss.slot]:
                raise ConfigError(
                    f"{self.told(loss)}: it was lost before and is not back until then"
                    if there_s[loss.slot] == math.inf
                    else f"{self.told(loss)}: it was lost before and is back at "
                    f"{there_s[loss.slot]:g} s"
                )
            if not loss.back_s > self.news_delay_s:
                raise ConfigError(
                    f"{self.told(loss)}: it cannot be back after {loss.back_s:g} s, before anybody "
                    f"knows that it was lost: news_delay is {self.news_delay_s:g} s"
                )
            there_s[loss.slot] = loss.at_s + loss.back_s

    def told(self, change: Change) -> str:
        """A loss or a change of roles for people."""
        kind, number = self.place(change.slot)
        what = "is lost" if isinstance(change, Loss) else f"gets the role {change.role}"
        return f"{kind.name} {number} {what} at {change.at_s:g} s"

    def place(self, slot: int) -> tuple[Kind, int]:
        """The kind of an instance, and its number among those of its kind."""
        number = slot
        for kind in self.kinds:
            if number < kind.count:
                return kind, number
            number -= kind.count
        raise AssertionError(f"there is no slot {slot}")

    @property
    def linked(self) -> bool:
        """Whether each instance can send blocks to each other one."""
        instances = [kind.instance for kind in self.kinds]
        return all(one.out_bytes_per_s > 0 < one.in_bytes_per_s for one in instances)

    @property
    def page_tokens(self) -> int:
        """Of all instances."""
        return self.kinds[0].instance.page_tokens
