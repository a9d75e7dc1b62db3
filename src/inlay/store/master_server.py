"""A master that listens, for this process: the native server and what is asked of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inlay.core.errors import ConfigError
from inlay.store import _backend
from inlay.store.address import join_address
from inlay.store.policy import POLICIES
from inlay.store.succession import Reign
from inlay.store.survey import Survey, read_survey
from inlay.store.tenants import Tenant


@dataclass(frozen=True, kw_only=True)
class MasterPolicy:
    """What `--set` reaches.

    Attributes:
        location_ttl_s: how long clients may use a location before they ask again.
        client_timeout_s: how long the room of a client that is gone is kept for it.
        node_timeout_s: a node that is silent for longer is lost.
        high_watermark, low_watermark: of a tenant's memory used, where eviction begins and ends.
        recover_s: how long a new master waits for the nodes that the last one knew.
        eviction: one of `inlay.store.policy.POLICIES`.
    """

    location_ttl_s: float = 2.0
    client_timeout_s: float = 10.0
    node_timeout_s: float = 2.5
    high_watermark: float = 0.95
    low_watermark: float = 0.92
    recover_s: float = 10.0
    eviction: str = POLICIES[0]

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("location_ttl_s", self.location_ttl_s, 0.05, 600),
            ("client_timeout_s", self.client_timeout_s, 0.5, 3600),
            ("node_timeout_s", self.node_timeout_s, 0.5, 600),
            ("recover_s", self.recover_s, 0, 600),
        ):
            if not low <= value <= high:
                raise ConfigError(f"{name} is {value:g}: it must be in {low:g}..{high:g} seconds")
        if self.eviction not in POLICIES:
            raise ConfigError(f"eviction is {self.eviction!r}: it must be {', '.join(POLICIES)}")
        if not 0 < self.low_watermark < self.high_watermark <= 1:
            raise ConfigError(
                "watermarks are parts of the memory, the low one below the high one; got "
                f"low_watermark {self.low_watermark:g}, high_watermark {self.high_watermark:g}"
            )


class MasterServer:
    """See `native/store/master_server.h`. Its thread answers; nothing here waits for a client.

    Args:
        listen: host and port; port 0 takes a free one.
        policy: how it decides.

    Raises:
        AddressInUseError: another process listens there.
        ArgumentError: two tenants have one token.
    """

    def __init__(
        self,
        listen: tuple[str, int],
        tenants: Sequence[Tenant],
        reign: Reign,
        policy: MasterPolicy,
    ) -> None:
        self._server = _backend.MasterServer(
            join_address(*listen),
            [(tenant.name, tenant.token) for tenant in tenants],
            epoch=reign.epoch,
            expected_nodes=list(reign.nodes),
            location_ttl_ms=_ms(policy.location_ttl_s),
            client_timeout_ms=_ms(policy.client_timeout_s),
            node_timeout_ms=_ms(policy.node_timeout_s),
            recover_ms=_ms(policy.recover_s),
            high_watermark=policy.high_watermark,
            low_watermark=policy.low_watermark,
            eviction=policy.eviction,
            serve_until_s=reign.until,
        )

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._server.address

    @property
    def epoch_seen(self) -> int:
        """The greatest epoch that a node has told of; above the master's own: it is to end."""
        return self._server.epoch_seen

    def serve_until(self, boot_s: float) -> None:
        """Answer until then, in seconds of `boot_time`, and nothing later."""
        self._server.serve_until(boot_s)

    def survey(self) -> Survey:
        """State and counts, of all tenants."""
        return read_survey(self._server.survey())

    def segments(self, tenant: str) -> list[dict[str, Any]]:
        """A tenant's segments."""
        return self._server.segments(tenant)

    def keys(self, tenant: str, prefix: str, cursor: int, limit: int) -> tuple[list[str], int]:
        """Some keys, and where to go on; 0: that was all."""
        keys, after = self._server.keys(tenant, prefix, cursor, limit)
        return [key.decode(errors="backslashreplace") for key in keys], after

    def explain(self, tenant: str, key: str) -> str:
        """Why an object is where it is, or is not there."""
        return self._server.explain(tenant, key)

    def stop(self) -> None:
        """Close all connections. May be called again."""
        self._server.stop()


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
