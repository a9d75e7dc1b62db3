"""Policies choose instances. Pure objects, one small file each; the simulator runs them, too."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from inlay.cluster.policies.inlay import Inlay
from inlay.cluster.policies.kv_centric import KvCentric
from inlay.cluster.policies.least_loaded import LeastLoaded
from inlay.cluster.policies.local_cache_aware import LocalCacheAware
from inlay.cluster.policies.policy import Blocks, Policy
from inlay.cluster.policies.random import Random
from inlay.cluster.policies.roles import RoleChange, RoleConfig, RolePlanner
from inlay.cluster.policies.round_robin import RoundRobin
from inlay.core.errors import ConfigError
from inlay.core.near_names import did_you_mean

__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
    "Blocks",
    "Inlay",
    "KvCentric",
    "LeastLoaded",
    "LocalCacheAware",
    "Policy",
    "Random",
    "RoleChange",
    "RoleConfig",
    "RolePlanner",
    "RoundRobin",
    "make_policy",
]

_ALL: tuple[type[Policy], ...] = (
    Random, RoundRobin, LeastLoaded, LocalCacheAware, KvCentric, Inlay,
)  # fmt: skip
POLICIES: Mapping[str, Callable[..., Policy]] = {policy.name: policy for policy in _ALL}
"""By the names that deployments use."""

DEFAULT_POLICY = Inlay.name


def make_policy(
    name: str, options: Mapping[str, object] | None = None, seed: int | None = None
) -> Policy:
    """The policy of a name.

    Args:
        options: its keyword arguments.
        seed: of its draws, if it makes any; None: a different one each time.

    Raises:
        ConfigError: no such policy or option; the message has those that there are.
    """
    make = POLICIES.get(name)
    if make is None:
        meant = did_you_mean(name, POLICIES)
        raise ConfigError(
            f"policy {name!r} is not one of {', '.join(POLICIES)}{f'; {meant}' if meant else ''}"
        )
    arguments: dict[str, Any] = dict(options or {})
    if make is Random:
        arguments["rng"] = np.random.default_rng(seed)
    try:
        return make(**arguments)
    except TypeError as error:
        raise ConfigError(f"policy {name}, options {dict(options or {})}: {error}") from error
