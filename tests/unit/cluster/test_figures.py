"""What clients had: rates, latencies against objectives, refusals, hits."""

import pytest

from inlay.cluster import picture
from inlay.cluster.figures import Figures
from inlay.cluster.loads import Loads
from inlay.cluster.slo import SloClass
from inlay.core.clock import FakeClock
from inlay.core.errors import AdmissionError, EngineError, InlayError, OverloadedError
from inlay.core.instance_messages import LoadReport, StepSample
from inlay.core.messages import ChoiceDelta, GenerateRequest, RequestOutput, SamplingParams
from inlay.core.token_ids import pack_token_ids

CHAT = SloClass(name="chat", ttft_s=0.5, tbt_s=0.2, itl_s=0.3)


class Clients:
    """Sends requests by a clock that is set by hand."""

    def __init__(self, slo: SloClass = CHAT) -> None:
        self.clock = FakeClock(1000.0)
        self.figures = Figures(self.clock, slo_of=lambda request: slo)

    def ask(
        self,
        request_id: str = "r",
        *,
        ttft_s: float = 0.1,
        gaps_s: tuple[float, ...] = (0.05, 0.05),
        end: bool = True,
        **first: object,
    ) -> None:
        request = GenerateRequest(
            request_id=request_id,
            prompt=pack_token_ids([1, 2, 3]),
            params=SamplingParams(),
            arrival_s=self.clock.now(),
        )
        watched = self.figures.track(request)
        for i, gap_s in enumerate((ttft_s, *gaps_s)):
            self.clock.advance(gap_s)
            last = end and i == len(gaps_s)
            watched.saw(
                RequestOutput(
                    request_id=request_id,
                    choices=(ChoiceDelta(index=0, text="x", token_ids=(7,)),),
                    finished=last,
                    **(first if i == 0 else {}),  # type: ignore[arg-type]
                )
            )
        watched.close()

    def refuse(self, error: InlayError, request_id: str = "r") -> None:
        request = GenerateRequest(
            request_id=request_id,
            prompt=pack_token_ids([1]),
            params=SamplingParams(),
            arrival_s=self.clock.now(),
        )
        self.figures.track(request).close(error)


def test_a_request_is_judged_by_its_objectives() -> None:
    clients = Clients()
    clients.ask("a")
    clients.ask("b", ttft_s=0.6)
    clients.ask("c", gaps_s=(0.05, 0.25, 0.05))  # its worst gap is its TBT
    clients.ask("d", gaps_s=())
    (chat,) = picture.classes(clients.figures, clients.clock.now())
    assert (chat.name, chat.finished, chat.good) == ("chat", 4, 2)
    assert (chat.ttft_slo_s, chat.itl_slo_s, chat.tbt_slo_s) == (0.5, 0.3, 0.2)
    assert chat.ttft.count == 4 and chat.itl.count == 7 and chat.tbt.count == 3
    assert chat.ttft.p50_s == pytest.approx(0.1, rel=0.03)
    assert chat.ttft.p99_s == pytest.approx(0.6, rel=0.03)
    age_s = clients.clock.now() - 1000.0
    assert chat.goodput_per_s == pytest.approx(2 / age_s)
    assert chat.impossible == ""
    [chat] = picture.classes(
        clients.figures, clients.clock.now(), {"ttft": 0.6, "tbt": 0.1, "itl": 0.1}
    )
    assert chat.impossible == "ttft is 0.5 s, and an idle instance needs 0.6 s"


def test_without_objectives_all_that_finish_are_good() -> None:
    clients = Clients(SloClass())
    clients.ask(ttft_s=9.0)
    (only,) = picture.classes(clients.figures, clients.clock.now())
    assert (only.good, only.ttft_slo_s) == (1, None)


def test_tokens_of_one_output_share_its_gap() -> None:
    clients = Clients()
    request = GenerateRequest(
        request_id="r",
        prompt=pack_token_ids([1]),
        params=SamplingParams(),
        arrival_s=clients.clock.now(),
    )
    watched = clients.figures.track(request)
    for tokens in ((1,), (2, 3, 4, 5)):
        clients.clock.advance(0.4)
        watched.saw(
            RequestOutput(
                request_id="r", choices=(ChoiceDelta(index=0, text="", token_ids=tokens),)
            )
        )
    (chat,) = picture.classes(clients.figures, clients.clock.now())
    assert chat.itl.count == 4
    assert chat.itl.p99_s == pytest.approx(0.1, rel=0.03)


def test_refusals_are_counted_by_code_and_listed() -> None:
    clients = Clients()
    clients.refuse(AdmissionError("TTFT would be 3.2 s", 4.0), "late")
    clients.clock.advance(2.0)
    clients.refuse(OverloadedError("all queues are full"), "full")
    clients.refuse(EngineError("a step failed"), "broken")
    traffic = picture.traffic(clients.figures, clients.clock.now())
    assert traffic.refused == {"not_admitted": 1, "overloaded": 1}
    assert traffic.failed == {"engine_error": 1}
    assert (traffic.requests_total, traffic.refused_total, traffic.failed_total) == (3, 2, 1)
    latest, first = traffic.refusals
    assert (latest.request, first.request) == ("full", "late")
    assert (first.reason, first.retry_after_s, first.age_s) == ("TTFT would be 3.2 s", 4.0, 2.0)
    (chat,) = picture.classes(clients.figures, clients.clock.now())
    assert chat.refused == 2


def test_a_request_that_breaks_off_later_is_no_refusal() -> None:
    clients = Clients()
    clients.ask(end=False)
    traffic = picture.traffic(clients.figures, clients.clock.now())
    assert (traffic.refused_total, traffic.in_flight) == (0, 0)
    assert clients.figures.tally.totals["cancelled"] == 1


def test_hits_by_tier() -> None:
    clients = Clients()
    clients.ask(prompt_tokens=100, cached_tokens=60, tier_tokens={"host": 20, "store": 10})
    traffic = picture.traffic(clients.figures, clients.clock.now())
    assert traffic.prompt_tokens == 100
    assert traffic.hit_tokens == {"device": 30, "host": 20, "disk": 0, "store": 10}
    history = picture.history(clients.figures.tally, clients.clock.now())
    assert sum(history.hit_tokens["host"]) == 20
    assert len(history.requests) == len(history.refused) == len(history.prompt_tokens)


def test_first_tokens_are_remembered_for_a_while() -> None:
    clients = Clients()
    for i in range(600):
        clients.ask(str(i), gaps_s=())
    assert clients.figures.first_token_s("0") is None
    assert clients.figures.first_token_s("599") == clients.clock.now()


def load(*samples: StepSample, running: int = 0, waiting: int = 0) -> LoadReport:
    return LoadReport(
        run_id="x",
        waiting=waiting,
        running=running,
        receiving=0,
        prefill_tokens=0,
        context_tokens=0,
        pages_total=9,
        pages_free=9,
        pages_cached=0,
        samples=samples,
    )


def test_loads_tell_speeds_and_the_most_that_was_there() -> None:
    loads = Loads()
    loads.saw("a", load(StepSample(512, 0, 2, 90, 0.5), StepSample(0, 0, 2, 90, 0.01)), 1000.0)
    loads.saw("a", load(StepSample(0, 0, 2, 90, 0.03), running=3, waiting=2), 1001.0)
    loads.saw("a", load(), 1001.5)
    assert loads.speeds("a", 1002.0, 60.0) == (1024.0, 0.02)
    assert loads.busy("a", 1001.9)[-1] == 5
    assert loads.speeds("a", 2000.0, 60.0) == (None, None)
    assert loads.speeds("b", 1002.0, 60.0) == (None, None)
    loads.keep({"b"})
    assert loads.busy("a", 1002.0) == []
