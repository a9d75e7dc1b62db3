"""Which rule has which module: the first that matches, walking down the tree of modules.

Knows neither devices nor what classes mean. A rule must have a module: one that matches none, or
whose modules all belong to rules before it, is a mistake, and is told.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from inlay.core.errors import ConfigError
from inlay.experts.modules import Module
from inlay.experts.operators import nearest
from inlay.experts.rules import Rule

_ANY_CLASS = "Module"
"""`torch.nn.Module`, which every module is."""


@dataclass(frozen=True, kw_only=True)
class Match:
    """A module and its rule.

    Attributes:
        rule: None where none matches.
        below: name of the module above whose rule is not recursive and has this one with it; empty:
            the rule is the module's own.
    """

    module: Module
    rule: Rule | None
    below: str = ""


def match(
    modules: Sequence[Module], rules: Sequence[Rule], *, absent: Collection[str] = ()
) -> tuple[Match, ...]:
    """Each module and the rule that has it, in the order of `modules`.

    Args:
        absent: classes for which a rule may have no module.

    Raises:
        ConfigError: a rule has no module; the message says why, and what is nearest.
    """
    found = tuple(_walk(modules, rules))
    owners = {one.rule.number for one in found if one.rule and not one.below}
    for rule in rules:
        if rule.number not in owners and _last(rule.of_class) not in absent:
            raise ConfigError(f"{rule}: {_why_none(rule, found)}")
    return found


def _walk(modules: Sequence[Module], rules: Sequence[Rule]) -> Iterator[Match]:
    whole: Match | None = None  # of the last module whose rule has all that is below it
    for module in modules:
        if whole and module.name.startswith(whole.module.name + "."):
            yield Match(module=module, rule=whole.rule, below=whole.module.name)
            continue
        rule = next((rule for rule in rules if _matches(rule, module)), None)
        found = Match(module=module, rule=rule)
        whole = None if rule is None or rule.recursive else found
        yield found


def _matches(rule: Rule, module: Module) -> bool:
    if rule.of_class and _last(rule.of_class) not in (*module.classes, _ANY_CLASS):
        return False
    return rule.name is None or any(rule.name.search(name) for name in module.names)


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _why_none(rule: Rule, found: Sequence[Match]) -> str:
    """The reason why a rule has no module."""
    wanted = [one for one in found if _matches(rule, one.module)]
    if not wanted:
        return f"it matches no module of this model{_hint(rule, found)}"
    first = wanted[0]
    others = sorted({one.rule.number for one in wanted if one.rule})
    which = rules_named(others)
    count = f"all {len(wanted)} modules" if len(wanted) > 1 else "the one module"
    them = f"{count} that it matches ({first.module.name}{', ...' if len(wanted) > 1 else ''})"
    if first.below:
        return (
            f"{them} are below {first.below}, which {which} has whole (recursive: False): leave "
            "one of both out"
        )
    return f"{them} belong to {which} before it: put it first, or leave it out"


def rules_named(numbers: Sequence[int]) -> str:
    """`rule 2`, or `rules 2, 3`."""
    return f"rule{'s' if len(numbers) > 1 else ''} {', '.join(str(one) for one in numbers)}"


def _hint(rule: Rule, found: Sequence[Match]) -> str:
    classes = sorted({name for one in found for name in one.module.classes})
    if rule.of_class and _last(rule.of_class) not in classes:
        wanted = _last(rule.of_class)
        meant = nearest(wanted, classes) or f"; there are {', '.join(classes)}"
        return f": none is a {wanted}{meant}"
    both = " and class" if rule.of_class and rule.name else ""
    example = next((one.module.name for one in found if one.module.family == "experts"), "")
    named = f" by its name{both}" if rule.name else ""
    return f"{named}; names are as {example or 'model.layers.0.self_attn.q_proj'}"
