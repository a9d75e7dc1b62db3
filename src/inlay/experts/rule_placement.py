"""What placement rules mean for a model: where each module runs in each phase, and a `Placement`.

placed = place_by_rules(shape, read_rules(file), ("cpu", "cuda:0", "cuda:1"))

A layer is on one device, with its cache, in both phases; its routed experts can be the CPU's
instead. So the devices that rules give to a layer's modules must agree, and those of its experts
count, too: the one that has them, and the one where their sum goes. Where no rule says anything, a
layer is where `transfer_map` sends it, or else on the first device. Modules without a rule go with
their layer.

Knows no memory and no speed: `inlay.core.offload` does.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from inlay.core.errors import ConfigError
from inlay.core.model_shape import ModelShape
from inlay.core.placement import CPU, LayerPlacement, Placement
from inlay.experts.matching import Match, match, rules_named
from inlay.experts.modules import Module, absent_classes, modules_of
from inlay.experts.operators import BACKENDS, DEFAULT, part_of
from inlay.experts.rule_checks import Asked, asked_of, check, notes_of
from inlay.experts.rules import Rule


@dataclass(frozen=True, kw_only=True)
class Run:
    """A module in one phase: on which device, and what Inlay runs there, in words."""

    device: str
    operator: str


@dataclass(frozen=True, kw_only=True)
class ModulePlacement:
    """Where one module runs.

    Attributes:
        rule: that has it; None: none does.
        why: the rule, or the reason without one.
    """

    module: Module
    prefill: Run
    decode: Run
    rule: Rule | None
    why: str


@dataclass(frozen=True, kw_only=True)
class RulePlacement:
    """What all rules come to.

    Attributes:
        experts_format: weight format that `backend` asks for, of all routed experts; None: it asks
            for none.
        modules: all that are in one place, in the order in which a token passes them.
        notes: what rules say that has no effect here, and why, a line each.
    """

    placement: Placement
    experts_format: str | None
    modules: tuple[ModulePlacement, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Said:
    """A module, and the devices that its rule gives; None: it does not say."""

    match: Match
    prefill: str | None = None
    decode: str | None = None
    out: str | None = None

    @property
    def homes(self) -> tuple[str, ...]:
        """Where its layer must be for this; that the CPU computes experts says nothing of that."""
        runs = [self.prefill, self.decode]
        if self.match.module.family == "experts":
            runs = [device for device in runs if device != CPU]
        return tuple(dict.fromkeys(one for one in (*runs, self.out) if one is not None))


def place_by_rules(
    shape: ModelShape, rules: Sequence[Rule], devices: Sequence[str]
) -> RulePlacement:
    """Carry rules out on the modules of a model.

    Args:
        devices: of the machine: `cpu`, and any others behind it.

    Raises:
        ConfigError: a rule has no module, names a device that is not there, a class or operator
            that Inlay lacks or that is not for its modules, or asks of a layer what it cannot do.
            Messages name rules and lines.
        UnsupportedModelError: the modules of the architecture have no names.
    """
    asked = {rule.number: asked_of(rule, devices, shape.layers) for rule in rules}
    matches = match(modules_of(shape), rules, absent=absent_classes(shape))
    for one in matches:
        if one.rule is not None and not one.below:
            check(one.rule, one.module, asked[one.rule.number])
    said = [_said(one, asked) for one in matches]
    homes = _homes(shape.layers, said, asked, default=devices[min(1, len(devices) - 1)])
    experts = {one.match.module.layer: one for one in said if one.match.module.family == "experts"}
    placement = Placement(
        layers=tuple(_layer(shape, home, experts.get(layer)) for layer, home in enumerate(homes))
    )
    experts_format = _experts_format(said)
    return RulePlacement(
        placement=placement,
        experts_format=experts_format,
        modules=tuple(
            _placed(one, placement, experts_format)
            for one in said
            if not _is_everywhere(one.match.module)
        ),
        notes=(*_idle(rules, matches), *notes_of(matches), *_outside(said, placement)),
    )


def _said(one: Match, asked: dict[int, Asked]) -> _Said:
    if one.rule is None:
        return _Said(match=one)
    rule, given = one.rule, asked[one.rule.number]
    prefill, decode = given.prefill, given.decode
    if one.module.family == "experts":
        if decode is None and rule.to_class != DEFAULT:
            decode = CPU  # as KTransformers has it; prefill is then on the layer's device
    else:
        prefill, decode = prefill or decode, decode or prefill
    if given.same:
        prefill = decode
    said = _Said(match=one, prefill=prefill, decode=decode, out=given.out)
    if one.module.layer is not None and one.module.family != "experts" and prefill != decode:
        raise ConfigError(
            f"{rule}: {one.module.name} is to prefill on {prefill} and to decode on {decode}; a "
            "layer runs where its weights and its cache are, and only its experts can be "
            f"elsewhere: give {decode} for both"
        )
    return said


def _homes(
    layers: int, said: Sequence[_Said], asked: dict[int, Asked], *, default: str
) -> list[str]:
    """The device of each layer."""
    wanted: list[dict[str, list[Match]]] = [defaultdict(list) for _ in range(layers)]
    transfers: dict[int, str] = {}
    for one in said:
        module, rule = one.match.module, one.match.rule
        if module.layer is not None and module.family != "layer":  # itself it computes nothing
            for device in one.homes:
                wanted[module.layer][device].append(one.match)
        elif module.family == "model" and rule is not None:
            transfers |= dict(asked[rule.number].transfers)
    homes = []
    sent: str | None = None
    for layer, by_device in enumerate(wanted):
        sent = transfers.get(layer, sent)
        if len(by_device) > 1:
            raise ConfigError(_torn(layer, by_device))
        home = next(iter(by_device), sent or default)
        if sent is not None and sent != home:
            raise ConfigError(
                f"layer {layer} is on {home} ({_named(by_device[home])}), and transfer_map sends "
                f"it to {sent}: give both the same device"
            )
        homes.append(home)
    return homes


def _torn(layer: int, by_device: dict[str, list[Match]]) -> str:
    places = "; ".join(f"on {device} {_named(asking)}" for device, asking in by_device.items())
    most = max(by_device, key=lambda device: len(by_device[device]))
    return (
        f"layer {layer} is to be on {len(by_device)} devices: {places}. Inlay runs a layer, with "
        "its cache, on one, and the CPU may compute its experts beside it (generate_device: cpu): "
        f"nearest is all of it on {most}"
    )


def _named(matches: Sequence[Match]) -> str:
    """Modules below their layer, with their rules."""
    by_rule: dict[str, list[str]] = defaultdict(list)
    for one in matches:
        by_rule[str(one.rule)].append(one.module.name.split(".", 3)[-1])
    return ", ".join(
        f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''} by {rule}"
        for rule, names in by_rule.items()
    )


def _layer(shape: ModelShape, home: str, experts: _Said | None) -> LayerPlacement:
    if experts is None:  # dense
        return LayerPlacement(device=home)
    if experts.decode != CPU:  # resident, also where no rule says anything
        if experts.prefill == CPU and home != CPU:
            raise ConfigError(
                f"{experts.match.rule}: {experts.match.module.name} is to prefill on the CPU and "
                f"to decode on {home}: experts that are there compute both; give it for both"
            )
        return LayerPlacement(device=home, resident=0 if home == CPU else shape.experts)
    prefill = home if experts.prefill is None else experts.prefill
    return LayerPlacement(device=home, prefill="host" if prefill == CPU else "device")


def _experts_format(said: Sequence[_Said]) -> str | None:
    """The one of all rules whose experts the CPU computes."""
    formats: dict[str | None, list[int]] = defaultdict(list)
    for one in said:
        rule = one.match.rule
        if rule is not None and one.match.module.family == "experts" and one.decode == CPU:
            held = BACKENDS[rule.kwargs.get("backend", "llamafile")]
            if rule.number not in formats[held]:
                formats[held].append(rule.number)
    if len(formats) > 1:
        told = " and ".join(
            f"{held or 'that of the files'} ({rules_named(rules)})"
            for held, rules in formats.items()
        )
        raise ConfigError(
            f"backend asks for more than one weight format: {told}; the experts of all layers are "
            "held in one: give all the same backend"
        )
    return next(iter(formats), None)


def _is_everywhere(module: Module) -> bool:
    """The decoder as such, and the table of rotations that each device has."""
    return module.layer is None and module.family in ("model", "rope")


def _placed(one: _Said, placement: Placement, experts_format: str | None) -> ModulePlacement:
    module, layers = one.match.module, placement.layers
    why = "" if one.match.rule is None else str(one.match.rule)
    if one.match.below:
        why += f", with {one.match.below.split('.', 3)[-1]}"
    if module.layer is None:
        device, reason = layers[-1].device, "with the last layer"
        if module.family == "embedding":
            device, reason = CPU, "rows are looked up there"
        run = Run(device=device, operator=part_of(module.family))
        return ModulePlacement(
            module=module, prefill=run, decode=run, rule=one.match.rule, why=why or reason
        )
    layer = layers[module.layer]
    run = Run(device=layer.device, operator=part_of(module.family))
    runs = run, run
    if module.family == "experts" and not layer.resident:
        held = f" in {experts_format}" if experts_format else ""
        host = Run(device=CPU, operator=f"CPU kernels{held}")
        brought = Run(device=layer.device, operator="weights brought for each step")
        runs = (brought if layer.prefill == "device" else host), host
    return ModulePlacement(
        module=module,
        prefill=runs[0],
        decode=runs[1],
        rule=one.match.rule,
        why=why or "with its layer",
    )


def _idle(rules: Sequence[Rule], matches: Sequence[Match]) -> list[str]:
    """Rules that change nothing: for what this model leaves out, or for layers as such."""
    families: dict[int, set[str]] = defaultdict(set)
    for one in matches:
        if one.rule is not None:
            families[one.rule.number].add(one.module.family)
    found = []
    for rule in rules:
        if not families[rule.number]:
            found.append(f"{rule}: this model has no {rule.of_class.rpartition('.')[2]}")
        if families[rule.number] == {"layer"}:
            found.append(
                f"{rule}: it has layers and nothing below them, so it has no effect: end its name "
                "without $, or write recursive: False"
            )
    return found


def _outside(said: Sequence[_Said], placement: Placement) -> list[str]:
    """Devices given to modules outside of the layers, which are where they are."""
    found = []
    for one in said:
        module, rule = one.match.module, one.match.rule
        if module.layer is not None or rule is None or _is_everywhere(module):
            continue
        placed = _placed(one, placement, None)
        others = [device for device in one.homes if device != placed.decode.device]
        if others:
            reason = _placed(_Said(match=Match(module=module, rule=None)), placement, None).why
            found.append(
                f"{rule}: {module.name} is on {placed.decode.device}, {reason}; "
                f"{', '.join(others)} has no effect"
            )
    return found
