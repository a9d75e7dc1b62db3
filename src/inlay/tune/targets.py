"""Which of the matrices that LoRA can be put on a configuration means. Loads no torch."""

from collections.abc import Sequence

from inlay.core.errors import ConfigError
from inlay.core.model_shape import ModelShape
from inlay.models.targets import Target, targets_of

ALL = "all"


def chosen_targets(shape: ModelShape, wanted: Sequence[str]) -> list[Target]:
    """The matrices that `lora_target` means.

    Args:
        wanted: `all`, or last words of modules (`q_proj`), which may have words before them
            (`shared_experts.up_proj`). What names one of a routed expert's three matrices means
            this one of all experts.

    Raises:
        ConfigError: a word matches nothing, or stands beside `all`; the message has those that
            match.
    """
    every = list(targets_of(shape))
    there = ", ".join(dict.fromkeys(target.leaf for target in every))
    if list(wanted) == [ALL]:
        return every
    if ALL in wanted:
        raise ConfigError(
            f"lora_target={','.join(wanted)}: {ALL} means {there} together: name it alone, or "
            "others without it"
        )
    if not wanted:
        raise ConfigError(f"lora_target is empty: name some of {there}, or {ALL}")
    chosen = set()
    for word in wanted:
        matching = [target for target in every if f".{target.path}".endswith(f".{word}")]
        if not matching:
            raise ConfigError(
                f"lora_target: {word!r} matches nothing in this {shape.architecture} model; there "
                f"are {there}, and {ALL} for all of them; router, embedding and head get none"
            )
        chosen.update(matching)
    return [target for target in every if target in chosen]
