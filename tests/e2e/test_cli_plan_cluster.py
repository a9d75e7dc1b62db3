"""`inlay plan --cluster` as a user types it."""

import json
from pathlib import Path

from tests.e2e.test_cli_errors import assert_one_line, inlay
from tests.support.tree import ROOT

TRACE = ROOT / "benchmarks/traces/mooncake_conversation.jsonl.gz"
ASKED = ("plan", "--cluster", "--trace", str(TRACE), "--until", "1min", "--model", "qwen3-8b")
SLO = ("--slo", "ttft=2s,tbt=50ms")


def test_the_cheapest_fleet_and_its_files(tmp_path: Path) -> None:
    scenario, deployment = tmp_path / "fleet.toml", tmp_path / "deployment.toml"
    files = ("--save", str(scenario), "--deployment", str(deployment))
    done = inlay(*ASKED, *SLO, "--hardware", "h20,h800", "--budget", "500000", *files, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    best = found["plans"][0]
    assert found["simulated"] and best["kept"] >= 0.9 and best["price_usd"] <= 500000
    assert found["neighbours"] and found["lost"] and found["assumptions"]
    same = inlay("simulate", str(scenario), "--trace", str(TRACE), "--until", "1min", "--json")
    assert json.loads(same.stdout)["slo"]["default"]["share"] == best["kept"]
    assert "placement.tensor_parallel" in deployment.read_text()


def test_what_a_budget_buys() -> None:
    small = ("--hardware", "h20", "--budget", "300000", "--json")
    found = [
        json.loads(inlay(*ASKED, "--slo", "ttft=5s,tbt=50ms", *small, "--optimize", aim).stdout)
        for aim in ("cost", "throughput", "ttft")
    ]
    cheapest, most, earliest = (one["plans"][0] for one in found)
    assert most["rate"] >= cheapest["rate"] == earliest["rate"] == 1.0
    assert earliest["ttft_s"]["p90"] <= cheapest["ttft_s"]["p90"]
    assert all(one["price_usd"] <= 300000 for one in (cheapest, most, earliest))


def test_what_cannot_be_planned() -> None:
    cheap = ("--hardware", "h20")
    assert_one_line(inlay(*ASKED, *SLO, *cheap, "--budget", "1000"), 1, "above the budget by")
    assert_one_line(
        inlay(*ASKED, "--slo", "ttft=1ms,tbt=1ms", *cheap), 1, "no hardware keeps these objectives"
    )
    assert_one_line(inlay(*ASKED, *SLO, "--hardware", "h2o"), 2, "did you mean h20")
    assert_one_line(inlay(*ASKED, "--slo", "tfft=5s"), 2, "did you mean ttft")
    for aim in ("throughput", "ttft"):
        assert_one_line(inlay(*ASKED, *SLO, "--optimize", aim), 2, "add --budget")
    assert_one_line(inlay(*ASKED, *SLO, "--optimize", "speed"), 2, "one of cost, throughput, ttft")
    assert_one_line(inlay("plan", "qwen3-8b", "--optimize", "ttft"), 2, "add --cluster")
    assert_one_line(inlay(*ASKED), 2, "--cluster needs --trace and --slo")
    assert_one_line(inlay(*ASKED, *SLO, "--machine", "xeon-spr"), 2, "--machine is for one machine")
