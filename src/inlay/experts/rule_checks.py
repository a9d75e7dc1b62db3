"""Whether Inlay can do what a rule asks of a module, and what of it has no effect here.

The tables are `inlay.experts.operators`; where a layer goes is `inlay.experts.rule_placement`.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from inlay.core.errors import ConfigError
from inlay.core.placement import CPU
from inlay.experts.matching import Match, rules_named
from inlay.experts.modules import Family, Module
from inlay.experts.operators import CLASSES, DEFAULT, KEYWORDS, OPERATORS, nearest
from inlay.experts.rules import Rule

_PHASES = (("prefill_op", "prefill_device"), ("generate_op", "generate_device"))


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Devices of a rule, as the machine calls them; None: it does not say.

    Attributes:
        out: where results go.
        same: prefill has no operator of its own, and runs as decode does.
        transfers: the device of each layer at which it changes.
    """

    prefill: str | None = None
    decode: str | None = None
    out: str | None = None
    same: bool = False
    transfers: tuple[tuple[int, str], ...] = ()


def asked_of(rule: Rule, devices: Sequence[str], layers: int) -> Asked:
    """The devices that a rule names.

    Raises:
        ConfigError: the machine does not have one, or the model not a layer of `transfer_map`.
    """

    def device(keyword: str, name: str | None) -> str | None:
        if name is None or name in devices:
            return name
        if f"{name}:0" in devices:  # `cuda` is the first one
            return f"{name}:0"
        raise ConfigError(f"{rule}: {keyword} is {name}, and this machine has {', '.join(devices)}")

    transfers = []
    for layer, name in sorted(rule.kwargs.get("transfer_map", {}).items()):
        if not 0 <= layer < layers:
            raise ConfigError(f"{rule}: transfer_map has layer {layer}, the model 0..{layers - 1}")
        transfers.append((layer, device("transfer_map", name) or CPU))
    return Asked(
        prefill=device("prefill_device", rule.kwargs.get("prefill_device")),
        decode=device("generate_device", rule.kwargs.get("generate_device")),
        out=device("out_device", rule.kwargs.get("out_device")),
        same=rule.kwargs.get("prefill_op", "") is None,
        transfers=tuple(transfers),
    )


def check(rule: Rule, module: Module, asked: Asked) -> None:
    """Whether the rule's class and operators are for such a module.

    Raises:
        ConfigError: they are not, or Inlay lacks them; the message has the nearest.
    """
    name = rule.to_class.rpartition(".")[2]
    if name != DEFAULT:
        row = CLASSES.get(name)
        if row is None:
            near = nearest(name, CLASSES) or "; `default` leaves a module as it is"
            raise ConfigError(f"{rule}: Inlay knows no class {name}{near}")
        if row.refused:
            raise ConfigError(f"{rule}: {name} is not taken: {row.refused}")
        if module.family not in row.families:
            raise ConfigError(
                f"{rule}: {name} is for {_families(row.families)}, and {module.name} is "
                f"{_families((module.family,))}{_class_for(module.family)}"
            )
    for keyword, at in _PHASES:
        operator = rule.kwargs.get(keyword)
        if operator is not None:
            device = asked.prefill if at == "prefill_device" else asked.decode
            _check_operator(rule, keyword, operator, module, at, device)


def _check_operator(
    rule: Rule, keyword: str, operator: str, module: Module, at: str, device: str | None
) -> None:
    row = OPERATORS[operator]
    if row.refused:
        raise ConfigError(f"{rule}: {keyword} {operator} is not taken: {row.refused}")
    if module.family not in row.families:
        raise ConfigError(
            f"{rule}: {keyword} {operator} is for {_families(row.families)}, and {module.name} is "
            f"{_families((module.family,))}"
        )
    if device is None or row.on == "both" or (row.on == "cpu") == (device == CPU):
        return
    others = [
        name
        for name, other in OPERATORS.items()
        if module.family in other.families and not other.refused and other.on != row.on
    ]
    where = "on the CPU" if row.on == "cpu" else "on a device"
    raise ConfigError(
        f"{rule}: {keyword} {operator} computes {where}, and {at} is {device}: take another "
        f"device, or {' or '.join(others)}"
    )


def _families(families: Sequence[Family]) -> str:
    return " or ".join(families)


def _class_for(family: Family) -> str:
    """The class to take instead: the first of the table."""
    for name, row in CLASSES.items():
        if family in row.families and not row.refused:
            return f": take {name}, or default"
    return ": take default"


def notes_of(matches: Sequence[Match]) -> tuple[str, ...]:
    """One line for each thing that rules say and that has no effect on their modules."""
    found: dict[str, set[int]] = defaultdict(set)
    for one in matches:
        if one.rule is None or one.below:
            continue
        for keyword, value in one.rule.kwargs.items():
            for note in _notes(one.module.family, keyword, value, one.rule):
                found[note].add(one.rule.number)
    return tuple(f"{rules_named(sorted(numbers))}: {note}" for note, numbers in found.items())


def _notes(family: Family, keyword: str, value: object, rule: Rule) -> list[str]:
    row = KEYWORDS[keyword]
    if row.kind == "operator":
        note = OPERATORS[value].note if isinstance(value, str) else ""
        return [f"{value} has no effect on formats: {note}"] if note else []
    if row.families and family not in row.families:
        return [f"{keyword} has no effect on a module that is {_families((family,))}"]
    if row.note and value not in row.fulfilled:
        return [f"{keyword}: {value} has no effect: {row.note}"]
    return []
