"""A deployment that divides requests, with a store, as clients meet it."""

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.cluster.mixed_requests import answer, mixed_questions
from tests.integration.cluster.same_text import (
    SHAPES,
    answers,
    differences,
    expected_answers,
    paths,
)
from tests.support.deployments import RunningDeployment, running_deployment, wait_until

SEED = 5
QUESTIONS = 24
QUICK_S = 20.0  # with a share of two cores
LEFT_S = 4.0


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDeployment]:
    folder = tmp_path_factory.mktemp("divided")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INLAY_LOG", "debug")
        with running_deployment(folder, SHAPES["2P+2D, store"]) as found:
            yield found


def instances(deployment: RunningDeployment) -> list[dict[str, Any]]:
    status = httpx.get(f"{deployment.url}/cluster/status", timeout=30).json()
    return list(status["instances"])


def wait_idle(deployment: RunningDeployment, timeout_s: float) -> None:
    """Until no instance has a request, or a page that one uses."""

    def idle() -> bool:
        return all(
            not (one["requests"] or one["waiting"] or one["running"] or one["receiving"])
            and one["pages_free"] + one["pages_cached"] == one["pages_total"] > 0
            for one in instances(deployment)
        )

    wait_until(idle, timeout_s, "no instance has a request")


def test_the_answers_are_those_of_one_instance(deployment: RunningDeployment) -> None:
    questions = mixed_questions(SEED, QUESTIONS)
    expected = expected_answers(questions)
    for _ in range(2):
        assert not differences(questions, expected, answers(deployment.url, questions))
    # Instances report what they have counted a moment later.
    sent = "prompts_over_exchange"
    wait_until(lambda: paths(deployment.url)[sent] > QUESTIONS / 2, 10, "most were sent")
    counts = paths(deployment.url)
    assert counts["divided_requests"] > QUESTIONS and not counts["lost"]


def rss_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()
    return 1024 * int(fields[0])


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "lantern " * 2**18},
        {"prompt": [300 + n % 3000 for n in range(2**19)]},
        {"prompt": "灯" * (2**21 // 3)},
        {"messages": [{"role": "user", "content": "lantern " * 2**18}]},
    ],
    ids=["text", "tokens", "characters", "chat"],
)
def test_a_prompt_of_2_mb_is_refused_and_others_are_served(
    deployment: RunningDeployment, body: dict[str, Any]
) -> None:
    dispatcher = deployment.processes()["dispatcher-0"]
    before_bytes = rss_bytes(dispatcher.pid)
    path = "chat/completions" if "messages" in body else "completions"
    assert len(json.dumps(body, ensure_ascii=False).encode()) >= 2_000_000
    began_s = time.monotonic()
    replies = [httpx.post(f"{deployment.url}/v1/{path}", json=body, timeout=60) for _ in range(4)]
    assert time.monotonic() - began_s < QUICK_S
    for reply in replies:
        assert reply.status_code == 400, reply.text
        error = reply.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "2048 tokens" in error["message"]
    assert answer(deployment.url, mixed_questions(SEED, 1)[0])
    assert rss_bytes(dispatcher.pid) - before_bytes < 100e6


def test_nobody_works_for_a_client_that_disappears(deployment: RunningDeployment) -> None:
    """It leaves while tokens come that would take much longer."""
    body = {"prompt": "A lantern", "max_tokens": 1900, "ignore_eos": True, "n": 8}
    body |= {"stream": True, "temperature": 1, "seed": 1}
    with httpx.stream("POST", f"{deployment.url}/v1/completions", json=body, timeout=60) as reply:
        lines = (line for line in reply.iter_lines() if line.startswith("data: {"))
        for _ in range(8):
            next(lines)
        wait_until(lambda: any(one["running"] for one in instances(deployment)), 10, "it runs")
    wait_idle(deployment, LEFT_S)


def test_nobody_computes_a_prompt_for_a_client_that_disappears(
    deployment: RunningDeployment,
) -> None:
    draw = random.Random(1)
    for _ in range(8):
        body = {"prompt": draw.choices(range(300, 4000), k=1500), "max_tokens": 500}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{deployment.url}/v1/completions",
                json=body | {"ignore_eos": True},
                timeout=httpx.Timeout(10, read=0.02),
            )
    wait_idle(deployment, LEFT_S)


def test_the_logs_of_all_processes_have_a_request_by_its_id(deployment: RunningDeployment) -> None:
    prompt = random.Random(2).choices(range(300, 4000), k=400)
    reply = httpx.post(
        f"{deployment.url}/v1/completions",
        json={"prompt": prompt, "max_tokens": 2},
        headers={"X-Request-Id": "one-of-many"},
        timeout=60,
    )
    assert reply.headers["X-Request-Id"] == "one-of-many"
    (chosen,) = httpx.get(
        f"{deployment.url}/debug/decisions", params={"request": "one-of-many"}
    ).json()["decisions"]
    assert chosen["prefill"] != chosen["decode"]
    logs = {name: one.log for name, one in deployment.processes().items()}
    for name in ("dispatcher-0", chosen["prefill"], chosen["decode"]):
        wait_until(lambda n=name: "one-of-many" in Path(logs[n]).read_text(), 5, name)
