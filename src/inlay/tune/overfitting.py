"""Whether a run learns its samples by heart: evaluation gets worse while training improves."""

from collections.abc import Mapping, Sequence
from typing import Any

_RISE = 1.01  # less may be chance


def overfitting(log: Sequence[Mapping[str, Any]]) -> str:
    """What to do where the last evaluation is worse than the best one, and the training loss has
    fallen since; empty: nothing.

    Args:
        log: entries as in trainer_state.json.
    """
    evaluations = [entry for entry in log if "eval_loss" in entry]
    if len(evaluations) < 2:
        return ""
    best = min(evaluations, key=lambda entry: entry["eval_loss"])
    last = evaluations[-1]
    before = [e["loss"] for e in log if "loss" in e and e["step"] <= best["step"]]
    after = [e["loss"] for e in log if "loss" in e and e["step"] > best["step"]]
    rises = last["eval_loss"] > _RISE * best["eval_loss"]
    if not (rises and before and after and after[-1] < before[-1]):
        return ""
    return (
        f"overfitting: evaluation loss was {best['eval_loss']:.4f} after step {best['step']} and "
        f"is {last['eval_loss']:.4f} after step {last['step']}, while training loss fell from "
        f"{before[-1]:.4f} to {after[-1]:.4f}: set lora_dropout=0.1, and fewer epochs "
        "(num_train_epochs=2)"
    )
