"""What clients have of a server, over the last minutes: rates, latencies, refusals, cache hits.

watched = figures.track(request)
watched.saw(output)     # each one, as the client gets it
watched.close(error)    # however it ended
"""

from array import array
from collections import deque
from collections.abc import Callable

from inlay.cluster.slo import SloClass, meets, tbt_s
from inlay.cluster.windows import Spread, Tally
from inlay.core.clock import Clock
from inlay.core.errors import (
    AdmissionError,
    InlayError,
    NoInstanceError,
    OverloadedError,
)
from inlay.core.messages import GenerateRequest, RequestOutput

_KEPT = 512
_KEPT_REFUSALS = 32
REFUSALS = (AdmissionError, OverloadedError, NoInstanceError)
"""Errors that say: not now."""


class ClassFigures:
    """Latencies of the requests of one class.

    Attributes:
        slo: its objectives.
        ttft, itl: of all requests; a duration is there as soon as it is over.
        tbt: of finished ones.
    """

    def __init__(self, slo: SloClass) -> None:
        self.slo = slo
        self.ttft, self.itl, self.tbt = Spread(), Spread(), Spread()


class Figures:
    """See the module.

    Args:
        slo_of: the objectives of a request.

    Attributes:
        tally: `requests`, `finished`, `cancelled`, `prompt_tokens`, `output_tokens`,
            `finished:CLASS`, `good:CLASS` (kept all objectives), `refused_of:CLASS`,
            `refused:CODE`, `failed:CODE`, `hit_tokens:TIER`, `device` included.
        classes: by name, those that there were requests of.
        refusals: the latest: when, request, error.
        in_flight: requests that are not over.
    """

    def __init__(self, clock: Clock, slo_of: Callable[[GenerateRequest], SloClass]) -> None:
        self.clock = clock
        self.tally = Tally(clock.now())
        self.classes: dict[str, ClassFigures] = {}
        self.refusals: deque[tuple[float, str, InlayError]] = deque(maxlen=_KEPT_REFUSALS)
        self.in_flight = 0
        self._slo_of = slo_of
        self._first_tokens: dict[str, float] = {}

    def track(self, request: GenerateRequest) -> "RequestFigures":
        """A request has come."""
        slo = self._slo_of(request)
        of_class = self.classes.get(slo.name)
        if of_class is None or of_class.slo is not slo:
            of_class = self.classes.setdefault(slo.name, ClassFigures(slo))
            of_class.slo = slo
        self.in_flight += 1
        self.tally.add("requests", self.clock.now())
        return RequestFigures(self, of_class, request)

    def first_token_s(self, request_id: str) -> float | None:
        """When the first token of one of the latest requests came."""
        return self._first_tokens.get(request_id)

    def began(self, request_id: str, now_s: float) -> None:
        """A request's first token is there."""
        if len(self._first_tokens) >= _KEPT:
            del self._first_tokens[next(iter(self._first_tokens))]
        self._first_tokens[request_id] = now_s


class RequestFigures:
    """One request, as its client sees it."""

    def __init__(self, figures: Figures, of_class: ClassFigures, request: GenerateRequest) -> None:
        self._figures = figures
        self._class = of_class
        self._request = request
        self._first_s: float | None = None
        self._last_s: dict[int, float] = {}
        self._gaps_s: array[float] = array("d")
        self._finished = False

    def saw(self, output: RequestOutput) -> None:
        """An output goes to the client. Cost: a microsecond per token."""
        now_s = self._figures.clock.now()
        if output.prompt_tokens is not None:
            self._prompt(output, output.prompt_tokens, now_s)
        for delta in output.choices:
            count = len(delta.token_ids)
            if not count:
                continue
            self._figures.tally.add("output_tokens", now_s, count)
            before_s = self._last_s.get(delta.index)
            self._last_s[delta.index] = now_s
            if before_s is not None:
                gap_s = (now_s - before_s) / count
                self._class.itl.add(gap_s, now_s, count)
                self._gaps_s.extend([gap_s] * count)
            elif self._first_s is None:
                self._first_s = now_s
                self._class.ttft.add(now_s - self._request.arrival_s, now_s)
                self._figures.began(self._request.request_id, now_s)
        self._finished = output.finished and output.error is None

    def close(self, error: BaseException | None = None) -> None:
        """It is over. Without an error before its last output, its client has gone away."""
        figures, name = self._figures, self._class.slo.name
        now_s = figures.clock.now()
        figures.in_flight -= 1
        if self._finished:
            self._judge(now_s)
        elif isinstance(error, REFUSALS) and self._first_s is None:
            figures.tally.add(f"refused:{error.code}", now_s)
            figures.tally.add(f"refused_of:{name}", now_s)
            figures.refusals.append((now_s, self._request.request_id, error))
        elif isinstance(error, InlayError):
            figures.tally.add(f"failed:{error.code}", now_s)
        else:
            figures.tally.add("cancelled", now_s)

    def _prompt(self, output: RequestOutput, prompt_tokens: int, now_s: float) -> None:
        tally, tiers = self._figures.tally, output.tier_tokens or {}
        tally.add("prompt_tokens", now_s, prompt_tokens)
        tally.add("hit_tokens:device", now_s, (output.cached_tokens or 0) - sum(tiers.values()))
        for tier, tokens in tiers.items():
            tally.add(f"hit_tokens:{tier}", now_s, tokens)

    def _judge(self, now_s: float) -> None:
        tally, slo = self._figures.tally, self._class.slo
        tally.add("finished", now_s)
        tally.add(f"finished:{slo.name}", now_s)
        if self._first_s is None:  # nothing was generated: there is nothing to judge
            return
        if self._gaps_s:
            self._class.tbt.add(tbt_s(self._gaps_s), now_s)
        if meets(slo, self._first_s - self._request.arrival_s, self._gaps_s):
            tally.add(f"good:{slo.name}", now_s)
