"""A plan as JSON with stable names, and the notes to it."""

from dataclasses import asdict
from typing import Any

from inlay.serve.plan.changes import Change
from inlay.serve.plan.make import Plan
from inlay.serve.plan.modules import module_rows

# Raised when a field changes its meaning or goes; new fields do not raise it.
SCHEMA = 1


def as_dict(plan: Plan, changes: list[Change]) -> dict[str, Any]:
    """The whole plan. Sizes are bytes, bandwidths 10^9 bytes/s, rates tokens/s."""
    model, quantization = plan.model, plan.model.shape.quantization
    return {
        "schema": SCHEMA,
        "model": {
            "name": model.name,
            "origin": model.origin,
            "architecture": model.shape.architecture,
            "parameters": model.shape.parameters,
            "active_parameters": model.shape.active_parameters,
            "published": quantization and quantization.weight_format,
        },
        "machine": asdict(plan.machine),
        "origin": plan.origin,
        "simulated": plan.machine.origin != "measured",
        "weight_format": plan.weight_format,
        "formats": asdict(plan.formats),
        "context_tokens": plan.context_tokens,
        "kv_token_bytes": plan.kv_token_bytes,
        "most_requests": plan.most_requests,
        "kv_bytes": plan.kv_token_bytes * plan.context_tokens,
        "operators": [
            asdict(size) | {"intensity": size.intensity, "per_stored_byte": size.per_stored_byte}
            for size in plan.operators
        ],
        "offload_order": [size.operator for size in reversed(plan.operators)],
        "placement": asdict(plan.placement),
        "rules": None
        if plan.rules is None
        else {
            "modules": [asdict(row) for row in module_rows(plan.rules)],
            "experts_format": plan.rules.experts_format,
            "notes": plan.rules.notes,
        },
        "memory": [
            asdict(use) | {"held_bytes": use.held_bytes, "total_bytes": use.total_bytes}
            for use in plan.placement.uses
        ],
        "prefill": [asdict(speed) for speed in plan.prefill],
        "decode": [asdict(speed) for speed in plan.decode],
        "together": plan.together and asdict(plan.together),
        "changes": [asdict(change) for change in changes],
        "notes": notes(plan),
    }


def notes(plan: Plan) -> list[str]:
    """What is assumed, and what nobody has measured."""
    machine, found = plan.machine, _notes_of_rules(plan)
    if machine.origin != "measured":
        found.append("simulated: the machine's figures are not of a measurement by Inlay")
    elif machine.gpus:
        found.append("rates of the GPU are those of the catalogue, not measured")
    for kind, device in (("processors", machine.host), ("GPU", machine.gpu)):
        if device is not None:
            told = device.efficiency.measured or "not measured, taken as 1"
            found.append(f"share of peak that kernels reach on {kind}: {told}")
    if any(plan.placement.gpu_share.values()):
        found.append("nobody has measured Inlay on a GPU yet: speeds with one are predictions")
    if plan.prefill_chunk < plan.prefill[-1].tokens:
        found.append(
            f"prompts in steps of {plan.prefill_chunk} tokens, as the engine does by default"
        )
    return found


def _notes_of_rules(plan: Plan) -> list[str]:
    if plan.rules is None:
        return []
    found, asked = list(plan.rules.notes), plan.rules.experts_format
    if asked is not None and asked != plan.formats.experts:
        found.append(
            f"backend asks for experts in {asked}, and they are in {plan.formats.experts}: "
            + ("--weight-format says so" if plan.weight_format != "auto" else "the files are")
        )
    return found
