"""`inlay bench serve` against a real server with a tiny random model."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import RunningServer, running_server
from tests.support.tiny_models import make_tiny_model

BENCH = [sys.executable, "-c", "from inlay.serve.cli import main; main()", "bench", "serve"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "qwen3")


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[RunningServer]:
    with running_server(model) as running:
        yield running


def bench(
    server: RunningServer, output: Path, *arguments: str
) -> "tuple[subprocess.CompletedProcess[str], dict[str, Any]]":
    result = subprocess.run(
        [*BENCH, "--url", server.url, "--output", str(output), *arguments],
        capture_output=True,
        text=True,
        timeout=90,
    )
    return result, json.loads(output.read_text()) if output.exists() else {}


def test_fixed_concurrency_with_a_shared_prefix(server: RunningServer, tmp_path: Path) -> None:
    arguments = ["--num-prompts", "24", "--concurrency", "4", "--input-len", "20-40"]
    arguments += ["--output-len", "8", "--shared-prefix", "64", "--slo", "ttft=30s,e2e=60s"]
    result, report = bench(server, tmp_path / "report.json", *arguments)
    assert result.returncode == 0, result.stderr
    metrics = report["metrics"]
    assert metrics["requests"] == 24 and metrics["failed"] == 0
    assert metrics["output_tokens"] == 24 * 8
    assert 24 * 84 <= metrics["prompt_tokens"] <= 24 * 104
    assert metrics["cached_tokens"] >= 20 * 48
    assert metrics["peak_concurrency"] <= 4 and metrics["concurrency"] > 1
    assert metrics["goodput_fraction"] == 1.0
    assert metrics["retokenised_tokens"] is not None
    for name in ("e2e_s", "ttft_s", "tpot_s", "itl_s"):
        spread = metrics[name]
        assert spread["median"] <= spread["p90"] <= spread["p95"] <= spread["p99"]
        # A tiny model is quicker than the reads, so tokens may be read at once; on a busy machine
        # all of each answer's, which leaves gaps of 0 alone.
        assert spread["median"] > 0 or (name in ("tpot_s", "itl_s") and spread["median"] == 0)
        assert spread["p99"] <= spread["max"]
    assert len(report["requests"]) == 24 and len(report["requests"][0]["itl_s"]) >= 6
    for word in ("request throughput", "achieved concurrency", "retokenised", "goodput", "ITL"):
        assert word in result.stdout


def test_poisson_arrivals_of_chats(server: RunningServer, model: Path, tmp_path: Path) -> None:
    arguments = ["--dataset", "sharegpt", "--num-prompts", "12", "--request-rate", "20"]
    arguments += ["--input-len", "60", "--output-len", "5", "--tokenizer", str(model)]
    result, report = bench(server, tmp_path / "report.json", *arguments)
    assert result.returncode == 0, result.stderr
    assert report["config"]["endpoint"] == "/v1/chat/completions"
    assert report["config"]["tokenizer"].endswith("tokenizer.json")
    assert "not the ShareGPT data" in result.stdout
    sent = [request["sent_s"] for request in report["requests"]]
    assert sent == sorted(sent) and sent[-1] > 0.1


def test_a_server_that_refuses(server: RunningServer, tmp_path: Path) -> None:
    result, report = bench(server, tmp_path / "report.json", "--model", "other")
    assert result.returncode == 1 and report == {}
    assert "other" in result.stderr and result.stderr.startswith("inlay: error: HTTP 404")
