"""A dispatcher and real instances: one text, whatever becomes of the instances."""

import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from inlay.cluster.control import Member
from tests.support.cluster import RunningDispatcher, RunningInstance, ended
from tests.support.deployments import wait_until
from tests.support.directories import free_port
from tests.support.server import RunningServer

CHAT = [{"role": "user", "content": "Tell me of lanterns and the sea."}]
TOKENS = 300
LONG = {"model": "inlay-demo", "messages": CHAT, "max_tokens": TOKENS, "ignore_eos": True}
ENDLESS = 4000  # nearly the context: seconds, which nobody waits for
SAMPLINGS = [{"temperature": 0}, {"temperature": 0.9, "seed": 11}]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """What one `inlay serve` answers, for each of SAMPLINGS."""
    server = RunningServer(None, engine={"threads": 1, "device": "cpu"}).wait_ready()
    try:
        yield [answer(server.url, **sampling) for sampling in SAMPLINGS]
    finally:
        server.kill()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts instances and dispatchers that end with the test."""
    with ExitStack() as stack:

        def make(kind: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            process = kind(*arguments, tmp_path, **options)
            stack.enter_context(ended(process))
            return process

        yield make


def answer(url: str, **fields: Any) -> str:
    reply = httpx.post(url + "/v1/chat/completions", json=LONG | fields, timeout=60)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


def stream(url: str, at_token: int, act: Callable[[], object], **fields: Any) -> tuple[str, float]:
    """The begin of a streamed answer without an end, in which something is done at one token.

    Returns it, of nearly TOKENS tokens, and the longest gap after that token.
    """
    text, count, gap_s, last_s = "", 0, 0.0, 0.0
    body = LONG | fields | {"stream": True, "max_tokens": ENDLESS}
    with httpx.stream("POST", url + "/v1/chat/completions", json=body, timeout=60) as reply:
        for line in reply.iter_lines():
            assert line != "data: [DONE]" and '"error"' not in line, line
            if not line.startswith("data: {"):
                continue
            if count == TOKENS:  # one of these events had no text
                break
            delta = json.loads(line[6:])["choices"][0]["delta"]
            text += delta.get("content") or ""
            now_s = time.monotonic()
            if count >= at_token:
                gap_s = max(gap_s, now_s - last_s)
            last_s = now_s
            count += 1
            if count == at_token:
                act()
    return text, gap_s


def stop_busy(url: str, instances: dict[str, RunningInstance]) -> str:
    """Stop the instance that has a request; returns its name. All stand still while it is looked
    for, since the answer could be over by then.
    """
    for one in instances.values():
        one.send(signal.SIGSTOP)
    states = httpx.get(url + "/health").json()["instances"]
    (name,) = [str(one["name"]) for one in states if one.get("requests")]
    for one in instances.keys() - {name}:
        instances[one].send(signal.SIGCONT)
    return name


def kill_busy(url: str, instances: dict[str, RunningInstance], victims: list[str]) -> None:
    victims.append(stop_busy(url, instances))
    instances[victims[-1]].kill()


def two(start: Callable[..., Any]) -> tuple[RunningDispatcher, dict[str, RunningInstance]]:
    instances = {name: start(RunningInstance, name, port=free_port()) for name in ("a", "b")}
    for instance in instances.values():
        instance.wait_ready()
    dispatcher = start(RunningDispatcher, [one.member for one in instances.values()])
    return dispatcher, instances


def test_the_same_text_with_and_without_a_lost_instance(
    start: Callable[..., Any], texts: list[str]
) -> None:
    dispatcher, instances = two(start)
    client = openai.OpenAI(base_url=dispatcher.url + "/v1", api_key="-", max_retries=0)
    for _ in instances:
        reply = client.chat.completions.create(
            model="inlay-demo",
            messages=CHAT,  # type: ignore[arg-type]
            max_tokens=300,
            temperature=0,
            extra_body={"ignore_eos": True},
        )
        assert reply.choices[0].message.content == texts[0]
    for sampling, text in zip(SAMPLINGS, texts, strict=True):
        victims: list[str] = []
        kill = partial(kill_busy, dispatcher.url, instances, victims)
        got, gap_s = stream(dispatcher.url, 30, kill, **sampling)
        assert text.startswith(got)
        assert gap_s < 5
        (victim,) = victims
        assert states(dispatcher)[victim] == "connecting"
        if sampling is SAMPLINGS[0]:  # back, where it was
            port = int(instances[victim].member.address.rpartition(":")[2])
            instances[victim] = start(RunningInstance, victim, port=port).wait_ready()
            wait_for(dispatcher, victim, "ready")
    text = httpx.get(dispatcher.url + "/metrics").text
    lost = re.findall(r'inlay_dispatch_retries_total{instance_name="\w+",reason="lost"} (\d)', text)
    assert sum(map(int, lost)) == 2


def wait_for(dispatcher: RunningDispatcher, name: str, state: str) -> None:
    """Until the dispatcher sees an instance so."""
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        if states(dispatcher)[name] == state:
            return
        time.sleep(0.02)
    raise AssertionError(f"{name} is not {state}: {states(dispatcher)}")


def test_a_stopped_instance_is_left_in_seconds(start: Callable[..., Any], texts: list[str]) -> None:
    dispatcher, instances = two(start)
    stopped: list[RunningInstance] = []

    def stop() -> None:
        stopped.append(instances[stop_busy(dispatcher.url, instances)])

    text, gap_s = stream(dispatcher.url, 30, stop, temperature=0)
    assert texts[0].startswith(text)
    assert 1 < gap_s < 6
    stopped[0].send(signal.SIGCONT)
    wait_for(dispatcher, stopped[0].member.name, "ready")


def test_requests_wait_for_an_instance_that_starts(start: Callable[..., Any]) -> None:
    instance = start(RunningInstance, "a")
    instance.send(signal.SIGSTOP)  # it starts faster than the dispatcher
    dispatcher = start(RunningDispatcher, [instance.member], instance_wait_s=60.0)
    assert httpx.get(dispatcher.url + "/health").status_code == 503
    instance.send(signal.SIGCONT)
    assert answer(dispatcher.url, max_tokens=3)


def test_without_instances_it_says_so(start: Callable[..., Any]) -> None:
    dispatcher = start(RunningDispatcher, [], instance_wait_s=0.2)
    reply = httpx.post(dispatcher.url + "/v1/chat/completions", json=LONG)
    assert reply.status_code == 503 and int(reply.headers["Retry-After"]) > 0
    assert "no instance" in reply.json()["error"]["message"]


def test_two_dispatchers_share_a_port_and_one_leaves(start: Callable[..., Any]) -> None:
    instance = start(RunningInstance, "a").wait_ready()
    with socket.socket() as kept:  # as a supervisor keeps it
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(("127.0.0.1", 0))
        port = kept.getsockname()[1]
        both = [
            start(RunningDispatcher, [instance.member], name=f"d{number}", port=port)
            for number in range(2)
        ]
        assert {one.url for one in both} == {f"http://127.0.0.1:{port}"}
        for _ in range(8):
            assert answer(both[0].url, max_tokens=2)
        both[0].send(signal.SIGTERM)
        assert both[0].wait() == 0
        for _ in range(8):
            assert answer(both[1].url, max_tokens=2)
        both[1].kill()
        began_s = time.monotonic()
        again = start(RunningDispatcher, [instance.member], name="d2", port=port)
        assert answer(again.url, max_tokens=2)
        assert time.monotonic() - began_s < 10  # 3 on a machine that has nothing else to do


def test_an_instance_of_another_kv_format_gets_no_requests(start: Callable[..., Any]) -> None:
    instances = [
        start(RunningInstance, "a"),
        start(RunningInstance, "b", cache={"page_tokens": 32}),
    ]
    both = start(
        RunningDispatcher, [one.wait_ready().member for one in instances], instance_wait_s=60.0
    )
    wait_until(lambda: any("refused" in state for state in states(both).values()), 20, "refused")
    (taken,) = [name for name, state in states(both).items() if state == "ready"]
    (refused,) = states(both).keys() - {taken}
    assert re.search(
        rf"refused: kv_format.page_tokens is \d+, that of {taken} is \d+", states(both)[refused]
    )
    for _ in range(3):
        assert answer(both.url, max_tokens=2)


def states(dispatcher: RunningDispatcher) -> dict[str, str]:
    """How a dispatcher sees each instance."""
    found = httpx.get(dispatcher.url + "/health").json()["instances"]
    return {one["name"]: one["state"] for one in found}


def test_it_ends_with_its_parent(start: Callable[..., Any]) -> None:
    dispatcher = start(RunningDispatcher, [])
    dispatcher.hang_up()
    assert dispatcher.wait() == 0


@pytest.mark.parametrize(
    ("setup", "code", "said"),
    [
        ({"serve": {"prot": 1}}, "invalid_config", "unknown field 'prot'"),
        ({"policy": "best"}, "invalid_config", "policy 'best' is not one of"),
        ({"model": "/nowhere"}, "model_not_found", "/nowhere"),
        ({"admission": {"mod": "off"}}, "invalid_config", "dispatcher.admission: "),
        ({"colour": "red"}, "invalid_config", "colour"),
    ],
)
def test_a_wrong_setup_is_named(
    start: Callable[..., Any], setup: dict[str, Any], code: str, said: str
) -> None:
    dispatcher = start(RunningDispatcher, [], **setup)
    line = dispatcher.first_line
    assert (line["state"], line["code"]) == ("failed", code) and said in line["message"]
    assert dispatcher.wait() == 3


def test_two_instances_of_a_name_are_refused(start: Callable[..., Any]) -> None:
    twin = Member(name="a", role="both", address="tcp://127.0.0.1:1", run=1, state="ready")
    line = start(RunningDispatcher, [twin, twin]).first_line
    assert (line["state"], line["code"]) == ("failed", "invalid_config")
    assert "2 members are named 'a'" in line["message"]


def test_idle_is_idle(start: Callable[..., Any]) -> None:
    instance = start(RunningInstance, "a").wait_ready()
    dispatcher = start(RunningDispatcher, [instance.member])
    answer(dispatcher.url, max_tokens=2)

    def cpu_s() -> float:
        fields = Path(f"/proc/{dispatcher.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before_s = cpu_s()
    time.sleep(2)
    assert cpu_s() - before_s < 0.1


def of_roles(
    start: Callable[..., Any], roles: dict[str, str]
) -> tuple[RunningDispatcher, dict[str, RunningInstance]]:
    instances = {
        name: start(RunningInstance, name, role=role, port=free_port())
        for name, role in roles.items()
    }
    for instance in instances.values():
        instance.wait_ready()
    dispatcher = start(RunningDispatcher, [one.member for one in instances.values()])
    return dispatcher, instances


def test_a_divided_request_survives_either_instance(
    start: Callable[..., Any], texts: list[str]
) -> None:
    dispatcher, instances = of_roles(start, {"p0": "prefill", "d0": "decode"})
    for sampling, text in zip(SAMPLINGS, texts, strict=True):
        assert answer(dispatcher.url, **sampling) == text
    assert decisions(dispatcher)["split"] == 2
    got, _ = stream(dispatcher.url, 30, instances["d0"].kill, temperature=0)
    assert texts[0].startswith(got)  # the instance for prefill went on
    port = int(instances["d0"].member.address.rpartition(":")[2])
    start(RunningInstance, "d0", role="decode", port=port).wait_ready()
    wait_for(dispatcher, "d0", "ready")
    got, _ = stream(dispatcher.url, 30, instances["p0"].kill, temperature=0)
    assert texts[0].startswith(got)
    assert answer(dispatcher.url, temperature=0) == texts[0]  # the one for decode does it all


def decisions(dispatcher: RunningDispatcher) -> dict[str, int]:
    """How many there were, by outcome."""
    text = httpx.get(dispatcher.url + "/metrics").text
    found = re.findall(r'dispatch_decisions_total\{outcome="(\w+)".*\} ([\d.]+)', text)
    return {outcome: int(float(count)) for outcome, count in found}


def test_what_would_miss_its_objective_is_refused(start: Callable[..., Any]) -> None:
    instance = start(RunningInstance, "a").wait_ready()
    slo = {"default": {"tbt_s": 1e-6}, "batch": {"tbt_s": 60.0}}
    dispatcher = start(RunningDispatcher, [instance.member], slo=slo)
    url = dispatcher.url + "/v1/chat/completions"
    assert httpx.post(url, json=LONG | {"max_tokens": 2}).status_code == 200  # nobody else is there

    def others() -> None:
        reply = httpx.post(url, json=LONG)
        assert reply.status_code == 429 and int(reply.headers["Retry-After"]) >= 1
        assert reply.json()["error"]["code"] == "not_admitted"
        for chosen in ({"priority": 1}, {"service_tier": "flex"}, {"service_tier": "batch"}):
            assert httpx.post(url, json=LONG | chosen | {"max_tokens": 2}).status_code == 200

    stream(dispatcher.url, 30, others, service_tier="batch")
    assert decisions(dispatcher) == {"refused": 1, "whole": 5}
    finished = r'inlay_slo_requests_total\{class="(\w+)",.*outcome="(\w+)"\} ([\d.]+)'
    found = re.findall(finished, httpx.get(dispatcher.url + "/metrics").text)
    counts = {name: sum(float(n) for of, _, n in found if of == name) for name, _, _ in found}
    assert counts == {"default": 2.0, "flex": 1.0, "batch": 1.0}  # of whole answers


def test_best_effort_makes_room_and_goes_on_with_the_same_text(
    start: Callable[..., Any], texts: list[str]
) -> None:
    instance = start(RunningInstance, "a", scheduler={"max_running": 1}).wait_ready()
    slo = {"default": {"tbt_s": 60.0}}
    dispatcher = start(RunningDispatcher, [instance.member], slo=slo)
    urgent = partial(answer, dispatcher.url, max_tokens=20)
    text, _ = stream(dispatcher.url, 30, urgent, service_tier="flex", temperature=0)
    assert texts[0].startswith(text)
    metrics = httpx.get(dispatcher.url + "/metrics").text
    assert 'inlay_dispatch_retries_total{instance_name="a",reason="preempted"} 1.0' in metrics


@pytest.mark.parametrize("paused", [False, True])
def test_streams_are_told_when_a_dispatcher_stops(start: Callable[..., Any], paused: bool) -> None:
    instance = start(RunningInstance, "a").wait_ready()
    serve = {"page": False, "drain_s": 0.0}
    dispatcher = start(RunningDispatcher, [instance.member], serve=serve)
    body = LONG | {"stream": True, "max_tokens": 4000, "ignore_eos": True}
    url = dispatcher.url + "/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=60) as reply:
        lines = (line for line in reply.iter_lines() if line)
        next(lines)
        if paused:
            told = httpx.post(dispatcher.url + "/v1/rollouts/pause", json={}, timeout=60)
            assert len(told.json()["data"]) == 1
        dispatcher.send(signal.SIGTERM)
        *_, failure, _ = lines
    assert '"code":"server_stopping"' in failure
    assert dispatcher.wait() == 0
