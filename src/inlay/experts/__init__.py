"""Which routed experts lie in a device's memory and which the processors compute, and what else
runs where, as a user's rules say it.

Decides, and moves nothing: `inlay.models` carries it out. `read_rules` reads a file in
KTransformers' grammar; `place_by_rules` turns it into a `Placement` for a model, a table of all
modules, and what of the rules has no effect here.

Exports load on first use, so that front ends get the configuration without all else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inlay.experts.hotness import Hotness, Move
    from inlay.experts.modules import Module, modules_of
    from inlay.experts.residency import Residency
    from inlay.experts.rule_placement import ModulePlacement, RulePlacement, Run, place_by_rules
    from inlay.experts.rules import Rule, parse_rules, read_rules

_MODULES = {
    "Hotness": "hotness",
    "Module": "modules",
    "ModulePlacement": "rule_placement",
    "Move": "hotness",
    "Residency": "residency",
    "Rule": "rules",
    "RulePlacement": "rule_placement",
    "Run": "rule_placement",
    "modules_of": "modules",
    "parse_rules": "rules",
    "place_by_rules": "rule_placement",
    "read_rules": "rules",
}

__all__ = [
    "Hotness",
    "Module",
    "ModulePlacement",
    "Move",
    "Residency",
    "Rule",
    "RulePlacement",
    "Run",
    "modules_of",
    "parse_rules",
    "place_by_rules",
    "read_rules",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
