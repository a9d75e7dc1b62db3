"""When a foreign engine counts as gone."""

import asyncio

import pytest

from inlay.connect.foreign import watch
from inlay.connect.foreign.vllm import Vllm
from inlay.connect.foreign.watch import EngineWatch
from inlay.core.errors import EndpointError, EngineDiedError

RUNNING = "vllm:num_requests_running 2.0\nprocess_start_time_seconds {}\n"
GONE, SLOW = EngineDiedError("refused"), EndpointError("slow")


class Http:
    """An engine's answers, in order; the last one holds."""

    def __init__(self, **answers):
        self.answers = {f"/{path}": list(found) for path, found in answers.items()}
        self.asked = []

    async def text(self, path, timeout_s):
        self.asked.append(path)
        await asyncio.sleep(0)
        found = self.answers[path]
        answer = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(watch, "_LOOK_S", 0)
    monkeypatch.setattr(watch, "_AGAIN_S", 0)


def run(http):
    """Watch until the engine is gone: why, and the watch."""
    ends = []
    found = EngineWatch(Vllm(), http, lambda: 1, ends.append)
    asyncio.run(asyncio.wait_for(found.run(), 20))
    (end,) = ends
    assert isinstance(end, EngineDiedError)
    return str(end), found


def test_it_is_gone_when_it_cannot_be_reached_twice():
    http = Http(metrics=[RUNNING.format(1), GONE], health=["", GONE])
    end, found = run(http)
    assert end == "refused"
    assert http.asked.count("/health") == 2  # the first time it was well
    assert (found.gauges.running, found.own) == (2, 1)


def test_it_is_gone_when_it_says_nothing_three_times():
    http = Http(metrics=[SLOW, SLOW, RUNNING.format(1), SLOW])
    end, _ = run(http)
    assert "does not answer" in end
    assert len(http.asked) == 6


def test_it_is_gone_when_it_was_started_again():
    end, _ = run(Http(metrics=[RUNNING.format(1), RUNNING.format(1), RUNNING.format(2)]))
    assert "started again" in end


def test_one_without_metrics_is_asked_for_its_health():
    http = Http(metrics=[EndpointError("none", 404)], health=["", "", GONE])
    assert run(http)[0] == "refused"
    assert http.asked.count("/metrics") == 1


@pytest.mark.parametrize(
    ("health", "gone"),
    [("", False), (SLOW, False), (EndpointError("no", 404), False),
     (GONE, True), (EndpointError("dead", 503), True)],
)  # fmt: skip
def test_a_request_that_failed(health, gone):
    async def main():
        ends = []
        found = EngineWatch(Vllm(), Http(health=[health]), lambda: 1, ends.append)
        checking = asyncio.ensure_future(found.check(EngineDiedError("lost")))
        await asyncio.wait((checking,), timeout=0.2 if gone else 20)
        assert (checking.done(), len(ends)) == (not gone, gone)
        checking.cancel()

    asyncio.run(main())
