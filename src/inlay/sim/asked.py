"""A request of a trace that has arrived."""

import msgspec

from inlay.cluster.decision import Decision, RequestView


class Asked(msgspec.Struct):
    """One request, until it has finished.

    Attributes:
        number: its place in the trace.
        view: what policies see of it; its output so far is a part of the prompt where it goes on.
        outputs: tokens of its answer.
        arrival_s: when it came.
        decision: where it is; None before it was sent anywhere.
        produced: of the answer, what it had when it was taken away from an instance.
        copied: whether blocks were copied for it.
    """

    number: int
    view: RequestView
    outputs: int
    arrival_s: float
    decision: Decision | None = None
    produced: int = 0
    copied: bool = False

    @property
    def begun(self) -> bool:
        """Whether it was at an instance already."""
        return self.decision is not None

    def taken_back(self, produced: int) -> None:
        """It goes on behind its output so far."""
        num_tokens = self.view.num_tokens + produced - self.produced
        self.view = msgspec.structs.replace(self.view, num_tokens=num_tokens)
        self.produced = produced
