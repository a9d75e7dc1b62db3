"""`inlay simulate` as a user types it."""

import json
from pathlib import Path

from tests.e2e.test_cli_errors import assert_one_line, inlay
from tests.support.tree import ROOT

TRACE = ROOT / "benchmarks/traces/mooncake_conversation.jsonl.gz"
ONE_POOL = ROOT / "examples/simulations/one_pool.toml"


def simulate(scenario: Path, *args: str) -> object:
    done = inlay("simulate", str(scenario), "--trace", str(TRACE), "--until", "2min", *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_policies_side_by_side() -> None:
    shown = simulate(ONE_POOL, "--policy", "inlay", "--policy", "round_robin")
    assert isinstance(shown, str) and "nobody has measured it" in " ".join(shown.split())
    told = simulate(ONE_POOL, "--policy", "inlay", "--policy", "round_robin", "--json")
    ours, other = json.loads(str(told))
    assert ours["simulated"] and ours["requests"] == other["requests"] > 300
    assert ours["hit_ratio"] > 1.2 * other["hit_ratio"]
    assert ours["ttft_s"]["mean"] < other["ttft_s"]["mean"]
    # The same again, to the last digit.
    assert json.loads(str(simulate(ONE_POOL, "--json"))) == ours


def test_prefill_apart_from_decode_has_shorter_gaps() -> None:
    split = ROOT / "examples/simulations/prefill_decode.toml"
    apart, together = (json.loads(str(simulate(one, "--json"))) for one in (split, ONE_POOL))
    assert apart["tbt_s"]["p90"] < 0.5 * together["tbt_s"]["p90"]
    assert apart["sent_bytes"] > 1e12 > together["sent_bytes"]


def test_what_cannot_be_simulated(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('model = "deepseek-v3"\n[instances.a]\nmachine = "xeon-spr-2s+h800"\n')
    trace = ("--trace", str(TRACE))
    assert_one_line(inlay("simulate", str(wrong), *trace), 1, "take more GPUs")
    wrong.write_text("[instances.a]\ncount = 1\n")
    assert_one_line(inlay("simulate", str(wrong), *trace), 2, "one of machine, calibration")
    assert_one_line(
        inlay("simulate", str(ONE_POOL), "--trace", str(wrong)), 1, "none of the formats"
    )
    assert_one_line(inlay("simulate", str(ONE_POOL), *trace, "--policy", "best"), 2, "policy")
    losses = ROOT / "examples/simulations/losses.toml"
    late = inlay("simulate", str(losses), *trace, "--until", "20s")
    assert_one_line(late, 2, "prefill 3 is lost at 60 s, when all requests were over")
    assert_one_line(
        inlay("simulate", str(ONE_POOL), "--trace", str(tmp_path / "none")), 1, "No such file"
    )
