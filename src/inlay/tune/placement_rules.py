"""`kt_optimize_rule`: what a file of placement rules means for training.

Rules are KTransformers' (`inlay.experts` reads them and finds their modules). Training takes from
them where layers are and in which format routed experts are held; these are the CPU's in any case.
Loads no torch.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from inlay.core.errors import ConfigError
from inlay.core.model_shape import ModelShape
from inlay.core.placement import CPU
from inlay.experts import Rule, RulePlacement, place_by_rules, read_rules
from inlay.tune.config import TuneConfig
from inlay.tune.frozen_formats import product_dtype

_KEY = "kt_optimize_rule"
_DEVICES = ("generate_device", "prefill_device", "out_device")


@dataclass(frozen=True)
class Ruled:
    """Settings as rules have them.

    Attributes:
        config: with `devices` and `weight_format` from the rules, where they are not set.
        notes: what was taken from the rules and what was not, a line each.
    """

    config: TuneConfig
    notes: tuple[str, ...] = ()


def follow_rules(config: TuneConfig, shape: ModelShape, gpus: int) -> Ruled:
    """Carry out the rules of `kt_optimize_rule` as far as they concern training.

    A file that is not there, or whose rules do not fit the model, changes nothing: a line says so,
    as files written for another program name such files.

    Args:
        gpus: that the run can use.

    Raises:
        ConfigError: the file cannot be read, or is no list of rules.
    """
    if config.kt_optimize_rule is None:
        return Ruled(config)
    file = Path(config.kt_optimize_rule).expanduser()
    if not file.is_file():
        return Ruled(
            config,
            (f"{_KEY}: there is no file {file}: devices says where layers are, and weight_format "
             "how routed experts are held",),
        )  # fmt: skip
    there = (CPU, *(f"cuda:{number}" for number in range(gpus)))
    try:
        rules = read_rules(file)
    except ConfigError as error:
        raise ConfigError(f"{_KEY}: {error}") from None
    try:
        # With the devices that they name, so that it can be said what rules for others would do.
        placed = place_by_rules(shape, rules, tuple(dict.fromkeys((*there, *_named(rules)))))
    except ConfigError as error:
        return Ruled(config, (f"{_KEY}: {file.name} is not followed: {error}",))
    notes = [f"{_KEY}: {note}" for note in placed.notes]
    config = _placed(config, placed, there, notes)
    return Ruled(_held(config, placed, notes), tuple(notes))


def _named(rules: tuple[Rule, ...]) -> list[str]:
    """All devices of rules, as placements call them, in order."""
    names = set()
    for rule in rules:
        names |= {rule.kwargs[keyword] for keyword in _DEVICES if keyword in rule.kwargs}
        names |= set(rule.kwargs.get("transfer_map", {}).values())
    return sorted(f"{name}:0" if name == "cuda" else name for name in names)


def _placed(
    config: TuneConfig, placed: RulePlacement, there: tuple[str, ...], notes: list[str]
) -> TuneConfig:
    stages = placed.placement.stages
    said = ", ".join(f"layers {one.first} to {one.end - 1} on {one.device}" for one in stages)
    if any(layer.resident for layer in placed.placement.layers):
        notes.append(f"{_KEY}: routed experts are trained on the CPU, whatever rules say of them")
    if config.devices:
        notes.append(f"{_KEY}: {said}: devices={','.join(config.devices)} goes before it")
        return config
    if missing := [one for one in placed.placement.devices if one not in there]:
        notes.append(
            f"{_KEY}: {said}: this run has {', '.join(there)} and no {', '.join(missing)}, so "
            f"layers are on {' and '.join(there[1:]) or CPU}"
        )
        return config
    notes.append(f"{_KEY}: {said}, without their routed experts")
    devices = tuple(f"{one.device}={one.end - one.first}" for one in stages)
    return replace(config, devices=devices)


def _held(config: TuneConfig, placed: RulePlacement, notes: list[str]) -> TuneConfig:
    wanted = placed.experts_format
    if wanted is None:
        return config
    if config.base_format != "auto":
        notes.append(f"{_KEY}: backend asks for {wanted}: {config.base_format} goes before it")
        return config
    notes.append(f"{_KEY}: routed experts are held in {wanted}, as backend says")
    return replace(config, weight_format=f"{wanted}+{product_dtype(config)}")
