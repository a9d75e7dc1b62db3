"""The dashboard's parts as HTML, from a status made up; the status of one engine. No browser."""

import re
from collections.abc import Callable

import msgspec
import pytest

from inlay.cluster.status import (
    ClassStatus,
    ClusterStatus,
    DecisionStatus,
    HistoryStatus,
    IndexStatus,
    InstanceStatus,
    PathStatus,
    Percentiles,
    RefusalStatus,
    RouteStatus,
    TrafficStatus,
)
from inlay.core.errors import EngineDiedError, OverloadedError
from inlay.serve.dashboard import numbers
from inlay.serve.dashboard.charts import Line, bars, lines
from inlay.serve.dashboard.decisions import decisions, explanation
from inlay.serve.dashboard.instances import instances
from inlay.serve.dashboard.overview import charts, classes, tiles
from inlay.serve.dashboard.pool import paths, pool, refusals
from tests.unit.serve.conftest import Api

SLOTS = 6
NO_HITS = {"device": 0, "host": 0, "disk": 0, "store": 0}
PARTS: list[Callable[[ClusterStatus], str]] = [
    tiles, charts, classes, instances, pool, paths, refusals, lambda status: decisions(status, None)
]  # fmt: skip


def idle(**changes: object) -> ClusterStatus:
    status = ClusterStatus(
        taken_s=0.0,
        server="dispatcher",
        model="m",
        policy="kv_centric",
        window_s=60.0,
        page_tokens=16,
        instances=[],
        traffic=TrafficStatus(
            in_flight=0, requests_per_s=0.0, output_tokens_per_s=0.0, prompt_tokens=0,
            hit_tokens=NO_HITS, refused={}, failed={}, requests_total=0, refused_total=0,
            failed_total=0,
        ),
        classes=[],
        history=HistoryStatus(
            slot_s=2.0, requests=[0.0] * SLOTS, refused=[0.0] * SLOTS,
            prompt_tokens=[0.0] * SLOTS, hit_tokens={tier: [0.0] * SLOTS for tier in NO_HITS},
        ),
        paths=[],
        decisions=[],
        index=None,
    )  # fmt: skip
    return msgspec.structs.replace(status, **changes)


def instance(**fields: object) -> InstanceStatus:
    known = {
        "name": "p0",
        "role": "prefill",
        "state": "ready",
        "device": "cuda:0",
        "max_running": 8,
    }
    return InstanceStatus(**{**known, **fields})  # type: ignore[arg-type]


def of_class(**fields: object) -> ClassStatus:
    known: dict[str, object] = {
        "name": "chat", "ttft_slo_s": 0.5, "itl_slo_s": 0.05, "tbt_slo_s": None,
        "ttft": Percentiles(p50_s=0.2, p90_s=0.7, p99_s=0.9, count=9),
        "itl": Percentiles(p50_s=0.01, p90_s=0.02, p99_s=0.03, count=99), "tbt": Percentiles(),
        "finished": 10, "good": 8, "refused": 1, "goodput_per_s": 0.4, "impossible": "",
        "ttft_p50_s": [None, 0.1, 0.2, None, 0.1, 0.1], "ttft_p99_s": [None, 0.3] * 3,
        "itl_p50_s": [None] * SLOTS, "itl_p99_s": [None] * SLOTS,
    }  # fmt: skip
    return ClassStatus(**{**known, **fields})  # type: ignore[arg-type]


def decision(**fields: object) -> DecisionStatus:
    known: dict[str, object] = {
        "request": "chatcmpl-1", "age_s": 2.0, "policy": "kv_centric", "outcome": "split",
        "prefill": "p0", "decode": "d0", "num_tokens": 100, "reused_blocks": 3, "ttft_s": 0.2,
        "wait_s": 0.05, "work_s": 0.15, "tbt_s": 0.01, "refusal": None, "measured_ttft_s": 0.25,
    }  # fmt: skip
    return DecisionStatus(**{**known, **fields})  # type: ignore[arg-type]


def words(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html)).strip()


def test_an_idle_cluster_says_what_is_missing() -> None:
    shown = [words(part(idle())) for part in PARTS]
    assert "No instance is in the roster" in shown[3]
    for missing in ("No request yet.", "Nothing in the last minutes."):
        assert missing in shown[1]
    assert "No request has finished" in shown[2]
    assert "No instance has reported its pages" in shown[4]
    assert "No prompt was computed by one instance for another" in shown[5]
    assert shown[6] == "No request was refused."
    assert shown[7] == "No request has come yet."


def test_one_engine_says_that_nothing_is_chosen() -> None:
    alone = idle(server="engine")
    assert "nothing to choose from" in decisions(alone, None)
    assert "stay where they are" in paths(alone)


def test_tiles_tell_what_is_late() -> None:
    status = idle(classes=[of_class(), of_class(name="batch", ttft=Percentiles(count=1))])
    html = tiles(status)
    assert re.search(r'tile late"[^>]*><span>TTFT p90</span><b>700 ms', html)
    assert re.search(r'tile"[^>]*><span>ITL p99</span><b>30 ms', html)
    assert "objective 500 ms" in html and "80 %" in html
    late = classes(status)
    assert '<td class="late">700 ms</td>' in late and "<td>30 ms</td>" in late


def test_an_instance_shows_its_load() -> None:
    row = instance(
        running=3, waiting=2, receiving=1, prefill_tokens=4096, context_tokens=1_500_000,
        pages_total=100, pages_free=50, pages_cached=20, prefill_tokens_per_s=1234.5,
        decode_step_s=0.0123, query_tokens=200, hit_tokens={**NO_HITS, "host": 50},
        retries={"lost": 2}, busy=[0.0, 1.0, 5.0],
    )  # fmt: skip
    shown = words(instances(idle(instances=[row])))
    for part in (
        "p0 prefill cuda:0", "3 of 8", "2 waiting, 1 receiving", "4,096 tok", "1.5 M tok",
        "30 used, 20 kept of 100", "1,234 tok/s", "12 ms", "25 %",
    ):  # fmt: skip
        assert part in shown, part
    assert shown.endswith(" 2")


def test_an_instance_that_is_not_there_says_why() -> None:
    shown = instances(idle(instances=[instance(state="refused: kv_format.dtype is <float16>")]))
    assert 'class="dot bad"' in shown
    assert "refused: kv_format.dtype is &lt;float16&gt;" in shown
    assert 'class="dot soon"' in instances(idle(instances=[instance(state="loading")]))


def test_the_pool_is_a_map_of_equal_parts() -> None:
    full = instance(pages_total=1000, pages_free=0, pages_cached=0, page_bytes=1 << 20)
    half = instance(name="d0", pages_total=64, pages_free=16, pages_cached=32, page_bytes=1 << 20)
    index = IndexStatus(different_blocks=200, blocks=300, expected_blocks=0, memory_bytes=4096)
    html = pool(idle(instances=[full, half], index=index))
    maps = re.findall(r'<div class="map">(.*?)</div>', html)
    assert maps[0].count('"used"') == 64
    assert [maps[1].count(f'"{kind}"') for kind in ("used", "kept", "free")] == [16, 32, 16]
    assert "1000.0 MiB of 1000.0 MiB" in html and "48.0 MiB of 64.0 MiB" in html
    assert "1.50</b> instances each" in html


def test_tiers_and_their_failures() -> None:
    row = instance(
        pages_total=9, hit_tokens={**NO_HITS, "device": 30, "store": 10}, query_tokens=80,
        loaded_bytes=1 << 30, written_bytes=1 << 20, tier_failures=2,
    )  # fmt: skip
    shown = words(pool(idle(instances=[row])))
    assert "device 75 %" in shown and "store 25 %" in shown and "host" not in shown
    assert "1.0 GiB loaded, 1.0 MiB written, 2 failures" in shown


@pytest.mark.parametrize(("lost", "mood"), [(0, "good"), (1, "soon"), (4, "bad")])
def test_paths_show_their_health(lost: int, mood: str) -> None:
    path = PathStatus(
        source="p0", target="d0", prompts=4, size_bytes=1 << 20, lost=lost, last_s=0.2, age_s=70.0
    )
    html = paths(idle(paths=[path]))
    assert f'class="dot {mood}"' in html
    assert f"p0 → d0 – 4 1.0 MiB 200 ms {lost} 1 min" in words(html)


@pytest.mark.parametrize(("states", "mood"), [("rr", "good"), ("rc", "soon"), ("cc", "bad")])
def test_paths_show_what_the_bytes_go_by(states: str, mood: str) -> None:
    routes = [
        RouteStatus(transport="tcp", state="ready", reason="", size_bytes=9, retries=3,
                    bandwidth_gbs=2.04)
        if state == "r"
        else RouteStatus(transport="rdma", state="closed", reason="peer_unreachable", size_bytes=0,
                         retries=0, bandwidth_gbs=None)
        for state in states
    ]  # fmt: skip
    path = PathStatus(
        source="p0", target="d0", prompts=0, size_bytes=0, lost=0, last_s=None, age_s=None,
        routes=routes,
    )  # fmt: skip
    html = paths(idle(paths=[path]))
    assert f'class="dot {mood}"' in html
    assert ("tcp 2 GB/s, 3 again" in words(html)) == ("r" in states)
    assert ("rdma peer_unreachable" in words(html)) == ("c" in states)


def test_refusals_by_code_and_the_latest() -> None:
    refusal = RefusalStatus(
        request="r", age_s=3.0, code="not_admitted", reason="TTFT <late>", retry_after_s=4.0
    )
    traffic = msgspec.structs.replace(
        idle().traffic, refused={"not_admitted": 7}, refusals=[refusal]
    )
    html = refusals(idle(traffic=traffic))
    assert "TTFT &lt;late&gt;" in html
    assert "7 not_admitted 3 s" in words(html) and "come back in 4 s" in html


def test_decisions_can_be_picked() -> None:
    refused = decision(request='"><b>', outcome="refused", prefill=None, decode=None)
    html = decisions(idle(decisions=[decision(), refused]), "chatcmpl-1")
    assert 'data-request="chatcmpl-1" class="chosen"' in html
    assert 'data-request="&quot;&gt;&lt;b&gt;"' in html
    assert "p0 → d0 100 tok 48 % 200 ms 250 ms" in words(html)
    assert words(html).endswith("refused 100 tok 48 % – 250 ms")


def test_why_this_instance() -> None:
    entry = msgspec.to_builtins(decision()) | {
        "retry_after_s": None,
        "candidates": [
            {"instance": "p0", "chosen": True, "cost": 1.5, "wait_s": 0.05},
            {"instance": "p1", "chosen": False, "cost": 2.0, "wait_s": 0.5},
        ],
    }
    html = explanation(entry, 16)
    assert "its prompt to p0 and its output to d0" in words(html).replace("  ", " ")
    assert "48 tokens need not be computed" in html
    assert "Candidate cost wait p0 chosen 1.5 50 ms p1 2 500 ms" in words(html)
    refused = entry | {"refusal": "TTFT would be 3 s", "retry_after_s": 4.0, "candidates": []}
    assert "was refused: TTFT would be 3 s. Come back in 4.00 s" in words(explanation(refused, 16))
    assert "not remembered" in explanation(None, 16)


def test_lines_have_gaps_and_an_objective_that_fits() -> None:
    line = Line(name="p50", values=[None, 0.1, 0.2, None, 0.1, 0.1])
    svg = lines([line], slot_s=2.0, objective=0.5)
    (path,) = re.findall(r'class="line p50" d="([^"]+)"', svg)
    assert path.count("M") == 2
    assert 'class="objective"' in svg and "500 ms" in svg
    assert 'class="objective"' not in lines([line], slot_s=2.0, objective=5.0)


def test_bars_lie_on_each_other() -> None:
    layers = [
        Line(name="taken", values=[1.0] * 6),
        Line(name="refused", values=[0.0, 0, 0, 1, 1, 1]),
    ]
    svg = bars(layers, slot_s=2.0)
    taken, refused = re.findall(r'class="bar \w+" d="([^"]*)"', svg)
    assert (taken.count("M"), refused.count("M")) == (2, 1)
    assert ">6</text>" in svg  # three of each in the higher bar


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (numbers.rate(3.14159, "/s"), "3.1 /s"),
        (numbers.rate(1234.5, "tok/s"), "1,234 tok/s"),
        (numbers.rate(0.0, "/s"), "0 /s"),
        (numbers.rate(None, "/s"), "–"),
        (numbers.share(1, 3), "33 %"),
        (numbers.share(0, 0), "–"),
        (numbers.share(0, 9), "0 %"),
        (numbers.share(1, 999), "&lt; 1 %"),
        (numbers.count(2_345_678), "2.3 M"),
        (numbers.ago(0.2), "now"),
        (numbers.ago(59), "59 s"),
        (numbers.ago(7300), "2 h"),
    ],
)
def test_numbers_have_units(shown: str, text: str) -> None:
    assert words(shown) == text


async def test_the_status_of_one_engine(api: Api) -> None:
    async with api() as (client, engine):
        await client.post("/v1/completions", json={"prompt": "a b c", "max_tokens": 3})
        answer = await client.get("/cluster/status")
        status = msgspec.json.decode(answer.content, type=ClusterStatus)
        (only,) = status.instances
        assert (status.server, only.name, only.state, only.pages_used) == (
            "engine", "engine", "ready", 10,
        )  # fmt: skip
        assert status.traffic.requests_total == 1
        assert status.classes[0].finished == 1
        assert b"Infinity" not in answer.content and b"NaN" not in answer.content


async def test_refusals_of_one_engine_are_counted(api: Api) -> None:
    async with api() as (client, engine):
        engine.fails_after, engine.error = 0, OverloadedError("the queue is full")
        await client.post("/v1/completions", json={"prompt": "a b c"})
        status = (await client.get("/cluster/status")).json()
        assert status["traffic"]["refused"] == {"overloaded": 1}


async def test_an_engine_that_is_gone(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def died() -> None:
        raise EngineDiedError("exit code 9")

    async with api() as (client, engine):
        engine.alive = False
        monkeypatch.setattr(engine, "stats", died)
        (only,) = (await client.get("/cluster/status")).json()["instances"]
        assert only["state"] == "gone"


async def test_the_status_needs_the_key(api: Api) -> None:
    async with api(api_key="sesame") as (client, _):
        assert (await client.get("/cluster/status")).status_code == 401
