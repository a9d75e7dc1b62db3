"""What is simulated, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from inlay.cluster.admission import AdmissionConfig
from inlay.cluster.policies import DEFAULT_POLICY
from inlay.cluster.slo import SloClass
from inlay.core.errors import ConfigError
from inlay.core.instance_messages import ROLES, Role
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

    def __post_init__(self) -> None:
        if not self.kinds:
            raise ConfigError("a scenario needs at least one kind of instances")
        sizes = sorted({kind.instance.page_tokens for kind in self.kinds})
        if len(sizes) > 1:
            raise ConfigError(f"all instances need the same page_tokens, got {sizes}")

    @property
    def linked(self) -> bool:
        """Whether each instance can send blocks to each other one."""
        instances = [kind.instance for kind in self.kinds]
        return all(one.out_bytes_per_s > 0 < one.in_bytes_per_s for one in instances)

    @property
    def page_tokens(self) -> int:
        """Of all instances."""
        return self.kinds[0].instance.page_tokens
