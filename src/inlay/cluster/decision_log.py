"""The latest decisions, kept as they were made and written out only when somebody asks."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

from inlay.cluster.decision import Decision, RequestView, explain

KEPT = 256


_Entry = tuple[str, RequestView, Decision, Mapping[int, str], float]


class DecisionLog:
    """The last `KEPT` decisions, and how many there were of each kind.

    Attributes:
        outcomes: decisions so far by (policy, outcome): `whole`, `split`, `refused`.
        reused_blocks: of prompts, that the chosen instances were taken to have.
    """

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque(maxlen=KEPT)
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.reused_blocks = 0

    def add(
        self,
        request_id: str,
        request: RequestView,
        decision: Decision,
        names: Mapping[int, str],
        now_s: float,
    ) -> None:
        """A decision was made.

        Args:
            names: of instances by slot; kept as it is, so give another one when that changes.
        """
        self.outcomes[decision.policy, outcome(decision)] += 1
        self.reused_blocks += decision.reused_blocks
        self._entries.append((request_id, request, decision, names, now_s))

    def describe(self, now_s: float, *, candidates: bool = True) -> Iterator[dict[str, Any]]:
        """Decisions for people and programs, the latest first. Times are ages.

        Args:
            candidates: say what was compared, too.
        """
        for request_id, request, decision, names, made_s in reversed(self._entries):
            by_slot = [names.get(slot, "") for slot in range(max(names, default=-1) + 1)]
            yield {
                "request": request_id,
                "age_s": now_s - made_s,
                "policy": decision.policy,
                "outcome": outcome(decision),
                "prefill": names.get(decision.prefill),
                "decode": names.get(decision.decode),
                "num_tokens": request.num_tokens,
                "priority": request.priority,
                "tenant": request.tenant,
                "reused_blocks": decision.reused_blocks,
                "loaded_blocks": decision.loaded_blocks,
                "store_blocks": request.store_blocks,
                "ttft_s": decision.ttft_s,
                "tbt_s": decision.tbt_s,
                "wait_s": decision.wait_s,
                "work_s": decision.work_s,
                "refusal": None if decision.refusal is None else decision.refusal.reason,
                "retry_after_s": (
                    None if decision.refusal is None else decision.refusal.retry_after_s
                ),
                "candidates": explain(decision, by_slot) if candidates else [],
            }


def outcome(decision: Decision) -> str:
    """What was decided, in a word."""
    if decision.refusal is not None:
        return "refused"
    return "split" if decision.split else "whole"
