"""What `kv_connector_extra_config` may hold."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from inlay.core.errors import ConfigError
from inlay.core.units import parse_bytes


@dataclass(frozen=True, kw_only=True)
class ConnectorSettings:
    """Settings of the connector, from `kv_connector_extra_config`.

    Attributes:
        store: master of the store, "host:port" or "etcd://...", that engines share; None: only
            prompts that another instance computed for this one are fetched.
        contribute: memory that each worker gives to the store, e.g. "8GiB"; None: nothing.
        staging: host memory of a worker for blocks under way to and from the store. What finds no
            room is not saved.
        secret: what other deployments on the same store do not know, so that their blocks have
            other names.
        model_id: stands for the weights in the names of blocks; None: made of the files' content
            where the model is a directory, else of its name and revision.
        lookup_s: how long a request may wait to hear what the store has of it.
        call_s: how long any other call to the store may take.
        listen: where other instances reach this one's KV, "host:port"; port 0 for any free one.
        hold_s: how long the KV of a prompt that another instance is to fetch is kept for it.
    """

    store: str | None = None
    contribute: str | None = None
    staging: str = "256MiB"
    secret: str = ""
    model_id: str | None = None
    lookup_s: float = 0.5
    call_s: float = 5.0
    listen: str = "127.0.0.1:0"
    hold_s: float = 120.0

    def __post_init__(self) -> None:
        parse_bytes(self.staging)
        if self.contribute is not None:
            parse_bytes(self.contribute)
            if self.store is None:
                raise ConfigError("contribute needs a store: name its master in 'store'")
        for name in ("lookup_s", "call_s", "hold_s"):
            if not 0 < getattr(self, name) <= 3600:
                raise ConfigError(f"{name} must be in 0..3600 s, got {getattr(self, name)}")

    @classmethod
    def read(cls, extra: Mapping[str, Any]) -> Self:
        """The settings of `kv_connector_extra_config`.

        Raises:
            ConfigError: an unknown name (with the nearest one), or a value that cannot be.
        """
        known = {field.name: field.type for field in fields(cls)}
        for name, value in extra.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
                raise ConfigError(f"kv_connector_extra_config has no {name!r}: {hint}")
            wanted = (int, float) if name.endswith("_s") else str
            if value is not None and (isinstance(value, bool) or not isinstance(value, wanted)):
                raise ConfigError(f"kv_connector_extra_config: {name} cannot be {value!r}")
        return cls(**extra)
