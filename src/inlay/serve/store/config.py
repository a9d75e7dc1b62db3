"""How a master listens, who may use it, and how it decides."""

from dataclasses import dataclass, field
from pathlib import Path

from inlay.core.errors import ConfigError
from inlay.serve.api_key import check_api_key
from inlay.store.address import Cluster
from inlay.store.master_server import MasterPolicy
from inlay.store.tenants import Tenant


@dataclass(frozen=True, kw_only=True)
class MasterConfig:
    """The configuration of `inlay store master`.

    Attributes:
        listen: host and port for clients and nodes.
        admin: host and port of the administration over HTTP; None: there is none.
        api_key: if set, the administration needs `Authorization: Bearer <api_key>`, but for
            `/health`.
        cluster: where masters are elected; None: this one stands alone.
        advertise: how others reach `listen`, in the cluster's entry.
        state: the file of the epoch of a master that stands alone.
        tenants: whose tokens are taken.
    """

    listen: tuple[str, int] = ("127.0.0.1", 50051)
    admin: tuple[str, int] | None = ("127.0.0.1", 9003)
    api_key: str | None = None
    cluster: Cluster | None = None
    advertise: str | None = None
    state: Path
    tenants: tuple[Tenant, ...]
    policy: MasterPolicy = field(default_factory=MasterPolicy)

    def __post_init__(self) -> None:
        check_api_key(self.api_key)
        if self.admin is not None and self.api_key is None and not is_loopback(self.admin[0]):
            raise ConfigError(
                f"the administration at {self.admin[0]} shows every key to whoever reaches it: "
                "give it an --api-key, or let it listen at 127.0.0.1"
            )
        if self.cluster and not self.advertise and self.listen[0] in ("0.0.0.0", "::"):
            raise ConfigError(
                "a master that listens on all addresses has to say how others reach it: give "
                "--advertise HOST:PORT"
            )


def is_loopback(host: str) -> bool:
    """Whether only processes of this host reach it."""
    return host in ("localhost", "::1") or host.startswith("127.")
