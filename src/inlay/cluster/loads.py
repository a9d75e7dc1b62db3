"""How loaded each instance was, over the last minutes."""

from collections.abc import Set
from dataclasses import dataclass

from inlay.cluster.windows import Ring, num_slots
from inlay.core.instance_messages import LoadReport


@dataclass(slots=True)
class LoadSlot:
    """Of one instance in a slot of time.

    Attributes:
        busy: most choices that were there: running, waiting, or receiving KV.
        prefill_tokens, prefill_s: prompt tokens computed, in steps that took so long.
        decode_steps, decode_s: steps that had no prompt tokens, and what they took.
    """

    busy: int = 0
    prefill_tokens: int = 0
    prefill_s: float = 0.0
    decode_steps: int = 0
    decode_s: float = 0.0


class Loads:
    """By the names of instances."""

    def __init__(self) -> None:
        self._rings: dict[str, Ring[LoadSlot]] = {}

    def saw(self, name: str, report: LoadReport, now_s: float) -> None:
        """An instance has reported. Cost: 2 us, and 0.2 us per sample."""
        ring = self._rings.get(name)
        if ring is None:
            ring = self._rings[name] = Ring(LoadSlot)
        slot = ring.at(now_s)
        slot.busy = max(slot.busy, report.running + report.waiting + report.receiving)
        for sample in report.samples:
            if sample.prefill_tokens:
                slot.prefill_tokens += sample.prefill_tokens
                slot.prefill_s += sample.seconds
            elif sample.decodes:
                slot.decode_steps += 1
                slot.decode_s += sample.seconds

    def keep(self, names: Set[str]) -> None:
        """Forget all other instances."""
        for name in self._rings.keys() - names:
            del self._rings[name]

    def speeds(self, name: str, now_s: float, window_s: float) -> tuple[float | None, float | None]:
        """Prompt tokens per second while prompts were computed, and seconds of a decode step."""
        ring = self._rings.get(name)
        slots = [slot for slot in ring.latest(now_s, num_slots(window_s)) if slot] if ring else []
        prefill_s = sum(slot.prefill_s for slot in slots)
        steps = sum(slot.decode_steps for slot in slots)
        return (
            sum(slot.prefill_tokens for slot in slots) / prefill_s if prefill_s else None,
            sum(slot.decode_s for slot in slots) / steps if steps else None,
        )

    def busy(self, name: str, now_s: float) -> list[float]:
        """The most choices that were there in each slot; 0 where nothing was reported."""
        ring = self._rings.get(name)
        return [float(slot.busy) if slot else 0.0 for slot in (ring.latest(now_s) if ring else ())]
