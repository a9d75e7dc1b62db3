"""Instances that are lost, or get another role, as a scenario's file says it.

[[losses]]
instance = "prefill"   # a group of the file
number = 2             # which of them, from 0 on
at = "20min"
back = "5min"          # after which another one is in its place; never, if it is left out

[[role_changes]]
instance = "decode"
at = "30min"
role = "both"
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from inlay.core.errors import ConfigError
from inlay.core.instance_messages import Role
from inlay.core.near_names import did_you_mean
from inlay.core.tables import Settings, read_table
from inlay.sim.scenario import Kind, Loss, RoleChange


@dataclass(frozen=True, kw_only=True)
class _Change:
    """What happens to one instance.

    Attributes:
        instance: its group.
        number: which of the group, from 0 on.
        at_s: when, in the time of the trace.
    """

    instance: str
    number: int = 0
    at_s: float

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ConfigError(f"number is {self.number}: instances of a group count from 0 on")
        if not 0 <= self.at_s < math.inf:
            raise ConfigError(f"at is {self.at_s:g} s: it must be a time of the trace, 0 or later")


@dataclass(frozen=True, kw_only=True)
class LossTable(_Change):
    """An instance is lost, `[[losses]]`.

    Attributes:
        back_s: after which another one is in its place.
    """

    back_s: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.back_s > 0:
            raise ConfigError(
                f"back is {self.back_s:g} s: it is the time from the loss on, above 0; leave it "
                "out where nothing takes its place"
            )


@dataclass(frozen=True, kw_only=True)
class RoleChangeTable(_Change):
    """An instance has another role from then on, `[[role_changes]]`."""

    role: Role


def losses_of(tables: Settings, kinds: Sequence[Kind]) -> tuple[Loss, ...]:
    """What `[[losses]]` say.

    Args:
        tables: of the whole file.
        kinds: one for each group, in the order of its slots.

    Raises:
        ConfigError: a key, a time or an instance is wrong; names the table.
    """
    return tuple(
        Loss(at_s=one.at_s, slot=slot, back_s=one.back_s)
        for slot, one in _changes(tables, "losses", LossTable, kinds)
    )


def role_changes_of(tables: Settings, kinds: Sequence[Kind]) -> tuple[RoleChange, ...]:
    """What `[[role_changes]]` say; as `losses_of`."""
    return tuple(
        RoleChange(at_s=one.at_s, slot=slot, role=one.role)
        for slot, one in _changes(tables, "role_changes", RoleChangeTable, kinds)
    )


C = TypeVar("C", bound=_Change)


def _changes(
    tables: Settings, key: str, made: type[C], kinds: Sequence[Kind]
) -> list[tuple[int, C]]:
    """Slots, and what happens there."""
    listed = tables.get(key, [])
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise ConfigError(f"{key} is {listed!r}: it must be tables, each written [[{key}]]")
    found = []
    for place, table in enumerate(listed, 1):
        where = f"[{key}], number {place}" if len(listed) > 1 else f"[{key}]"
        for missing in ("instance", "at", *(["role"] if made is RoleChangeTable else [])):
            if missing not in table:
                raise ConfigError(f"[{where}] has no {missing}")
        one = read_table(where, table, made)
        try:
            found.append((_slot(one, kinds), one))
        except ConfigError as error:
            raise ConfigError(f"[{where}] {error}") from None
    return found


def _slot(one: _Change, kinds: Sequence[Kind]) -> int:
    first = 0
    for kind in kinds:
        if kind.name == one.instance:
            if one.number >= kind.count:
                raise ConfigError(
                    f"{one.instance} has no instance {one.number}: its {kind.count} count from 0 on"
                )
            return first + one.number
        first += kind.count
    names = [kind.name for kind in kinds]
    meant = did_you_mean(one.instance, names) or f"the file has {', '.join(names)}"
    raise ConfigError(f"there are no instances {one.instance!r}: {meant}")
