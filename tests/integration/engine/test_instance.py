"""Instances of a deployment: worker processes, and the dispatchers that connect to them."""

import random
import signal
import subprocess
import sys
import time

import msgspec
import psutil
import pytest
import zmq

from inlay import __version__
from inlay.core.instance_messages import (
    PROTOCOL,
    InstanceInfo,
    KvEvents,
    KvSnapshot,
    LoadReport,
    SetRole,
    Subscribe,
)
from inlay.core.instance_setup import Bound, Failed, Ready
from inlay.core.messages import (
    CancelRequest,
    EngineFailure,
    EngineStats,
    LoadProgress,
    ResetPrefixCache,
    StatsRequest,
)
from tests.integration.engine.engines import ENDLESS, request
from tests.support.instances import Peer, RunningInstance, tokens
from tests.support.pause import pause

PAGES = 4000  # more than an endless answer takes


def _config(directory, **fields):
    return {"model": str(directory), "device": "cpu", "seed": 0, "cache": {"pages": PAGES}} | fields


@pytest.fixture(scope="module")
def instance(patient_directory):
    running = RunningInstance(_config(patient_directory), role="decode").wait_ready()
    yield running
    assert running.stop() == 0


@pytest.fixture
def peer(instance):
    with Peer(instance.address) as peer:
        yield peer


@pytest.fixture
def other(instance):
    with Peer(instance.address, name="other") as peer:
        yield peer


def _endless(name, **fields):
    return request(name, [5, 6, 7], max_tokens=ENDLESS, ignore_eos=True, **fields)


def _stats(peer):
    peer.send(StatsRequest())
    return peer.next(EngineStats)


def _until_idle(peer):
    end = time.monotonic() + 30
    while (stats := _stats(peer)).running or stats.waiting:
        assert time.monotonic() < end, f"{stats.running} requests run on"


def test_each_peer_gets_its_own_outputs(peer, other, tiny):
    """The same ids at two peers, at the same time; what comes is what one engine gives."""
    rng = random.Random(1)
    prompts = {
        (who, n): [rng.randrange(200) for _ in range(rng.randrange(1, 80))]
        for who in (peer, other)
        for n in range(12)
    }
    params = {"max_tokens": 12, "temperature": 0.8, "seed": 3, "ignore_eos": True}
    for (who, n), prompt in prompts.items():
        who.send(request(n, prompt, **params))
    for who in (peer, other):
        who.until(lambda who=who: all(who.finished(n) for n in range(12)))
        assert set(who.outputs) == {str(n) for n in range(12)}
    for (who, n), prompt in prompts.items():
        with tiny.engine() as engine:
            engine.add(request(n, prompt, **params))
            expected = []
            while engine.num_live:
                expected += engine.step()
        assert tokens(who.outputs[str(n)]) == tokens(expected)


def test_a_step_is_one_message_to_a_peer(peer, other):
    for n in range(8):
        peer.send(request(n, [n + 1], max_tokens=30, ignore_eos=True))
    peer.until(lambda: all(peer.finished(n) for n in range(8)))
    assert peer.batches < 60 < sum(len(outputs) for outputs in peer.outputs.values())
    assert other.receive(0) is None


def test_ids_in_use_and_cancels_are_the_peers_own(peer, other):
    peer.send(_endless("same"))
    other.send(_endless("same"))
    for who in (peer, other):
        who.until(lambda who=who: "same" in who.outputs)
    other.send(_endless("same"))
    other.until(lambda: other.finished("same"))
    assert other.outputs["same"][-1].error == "request id 'same' is in use"
    other.send(CancelRequest("same"))
    other.until(lambda: bool(other.outputs["same"][-1].choices) and other.finished("same"))
    assert other.outputs["same"][-1].choices[0].finish_reason == "cancel"
    assert _stats(peer).running == 1
    peer.send(CancelRequest("same"))
    peer.until(lambda: peer.finished("same"))
    _until_idle(peer)


def test_what_a_subscriber_hears(instance, peer):
    peer.subscribe().next(LoadReport)
    assert [type(m) for m in peer.heard] == [InstanceInfo, LoadProgress, KvSnapshot, LoadReport]
    info, progress, snapshot, load = peer.heard
    assert (info.name, info.role, info.version, info.protocol) == (
        "i0", "decode", __version__, PROTOCOL,
    )  # fmt: skip
    assert info.engine.num_pages == PAGES
    assert info.namespace.kv_format.page_tokens == info.engine.page_tokens
    assert len(info.key_check) == 8
    assert (info.host, info.transfer) == ("127.0.0.1", "")
    assert progress.over
    assert info.run_id == snapshot.run_id == load.run_id
    assert (load.waiting, load.running, load.pages_total) == (0, 0, PAGES)


def test_blocks_after_a_random_history(peer, other):
    """Two subscribers, one from the middle on, know the same blocks as a new snapshot has."""
    rng = random.Random(7)
    peer.subscribe().next(LoadReport)
    stems = [[rng.randrange(200) for _ in range(160)] for _ in range(12)]
    for n in range(150):
        if n == 60:
            other.subscribe().next(LoadReport)
        if n % 50 == 49:
            peer.send(ResetPrefixCache())
        prompt = rng.choice(stems)[: rng.randrange(16, 160)]
        prompt = prompt + [rng.randrange(200) for _ in range(rng.randrange(60))]
        peer.send(request(n, prompt, max_tokens=rng.randrange(1, 20), ignore_eos=True))
        if n % 7 == 0:
            peer.send(CancelRequest(str(n)))
    peer.until(lambda: all(peer.finished(n) for n in range(150)))
    _stats(peer)
    _stats(other)
    with Peer(peer.socket.get_string(zmq.LAST_ENDPOINT)) as late:
        late.subscribe().next(LoadReport)
        assert peer.blocks() == other.blocks() == late.blocks() != set()
    assert any(not c.stored for m in peer.heard if isinstance(m, KvEvents) for c in m.changes)


def test_load_reports(peer):
    peer.subscribe().next(LoadReport)
    peer.next(LoadReport)  # with steps of the test before
    started, before = time.monotonic(), len(peer.heard)
    peer.send(request("a", range(3, 103), max_tokens=200, ignore_eos=True))
    peer.until(lambda: peer.finished("a"))
    took_s = time.monotonic() - started
    peer.next(LoadReport)
    reports = [m for m in peer.heard[before:] if isinstance(m, LoadReport)]
    assert len(reports) <= took_s / 0.02 + 2
    samples = [sample for report in reports for sample in report.samples]
    prefills = [sample for sample in samples if sample.prefill_tokens]
    assert [(s.prefill_tokens, s.prefill_pairs, s.decodes) for s in prefills] == [(100, 5050, 0)]
    decodes = [sample for sample in samples if sample.decodes]
    assert len(decodes) == 199, "a step is missing"
    assert [s.decode_context for s in decodes] == list(range(101, 300))
    assert all(0 < sample.seconds < 10 for sample in samples)
    running = [report for report in reports if report.running]
    assert all(report.context_tokens >= 100 for report in running if not report.prefill_tokens)
    assert reports[-1].running == reports[-1].context_tokens == 0
    assert reports[-1].pages_free + reports[-1].pages_cached == PAGES


def test_idle_reports_come_each_second_and_cost_nothing(instance, peer):
    peer.subscribe().next(LoadReport)
    process = psutil.Process(instance.process.pid)

    def four_reports():
        """Seconds and processor seconds until four have come."""
        while peer.receive(0):  # what is read from now on is sent from now on
            pass
        times, started = process.cpu_times(), time.monotonic()
        for _ in range(4):
            peer.next(LoadReport)
        after = process.cpu_times()
        return time.monotonic() - started, sum(after[:2]) - sum(times[:2])

    # Threads spin for a moment after their last work, and a busy machine delays one report or
    # another: what holds on the whole is seen in one of a few looks.
    looks = []
    for _ in range(5):
        seconds, cpu_s = four_reports()
        if 2.8 < seconds < 6 and cpu_s <= 0.08:
            return
        looks.append((seconds, cpu_s))
    pytest.fail(f"seconds and processor seconds for four reports: {looks}")


def test_roles(peer, other):
    for who in (peer, other):
        assert who.subscribe().next(InstanceInfo).role == "decode"
        who.next(LoadReport)
    other.send(SetRole("prefill"))
    assert {peer.next(InstanceInfo).role, other.next(InstanceInfo).role} == {"prefill"}
    peer.send(SetRole("decode"))
    assert {peer.next(InstanceInfo).role, other.next(InstanceInfo).role} == {"decode"}


def test_another_protocol_is_refused(peer):
    peer.send(Subscribe("old", 99, "0.0.1"))
    failure = peer.next(EngineFailure)
    assert failure.code == "instance_version"
    for part in (f"protocol {PROTOCOL}", f"Inlay {__version__}", "speaks 99", "Inlay 0.0.1"):
        assert part in failure.message
    assert not isinstance(peer.receive(0.1), LoadReport)


def test_messages_that_cannot_be_read(peer):
    """None ends the process, and who waits for an answer gets one."""
    wrong = msgspec.msgpack.encode(msgspec.structs.replace(request("typed", [5]), prompt="five"))
    deep = wrong[:-1] + b"\x91" * 100_000 + b"\xc0"
    for data in (b"", b"\xc1", b"\x91" * 100_000 + b"\xc0", deep, msgspec.msgpack.encode(["No"])):
        peer.socket.send(data)
    peer.socket.send_multipart([b"two", b"frames"])
    peer.socket.send(wrong)
    peer.until(lambda: peer.finished("typed"))
    assert "has a wrong type" in peer.outputs["typed"][-1].error
    peer.generate(request("after", [5], max_tokens=2))


def test_times_in_the_clock_of_the_sender(peer):
    theirs = 1e6 + time.monotonic()
    message = request("t", [5], max_tokens=3, ignore_eos=True)
    message = msgspec.structs.replace(message, arrival_s=theirs, age_s=0.5)
    times = peer.generate(message)[-1].times
    assert times.arrival_s == pytest.approx(theirs)
    assert theirs + 0.5 <= times.scheduled_s <= times.first_token_s <= times.finished_s
    assert times.finished_s < theirs + 10


def test_a_peer_that_leaves_has_its_requests_cancelled(instance, peer):
    with Peer(instance.address) as leaving:
        for n in range(100):  # most of them wait
            leaving.send(_endless(n))
        leaving.until(lambda: len(leaving.outputs) > 5)
        assert _stats(peer).running > 5
    _until_idle(peer)
    stats = _stats(peer)
    assert stats.pages_free + stats.pages_cached == PAGES


_FLOODED = """
import sys
from tests.integration.engine.engines import ENDLESS, request
from tests.support.instances import Peer
peer = Peer(sys.argv[1]).subscribe()
for n in range(20):
    peer.send(request(n, [5], max_tokens=ENDLESS, ignore_eos=True))
peer.until(lambda: len(peer.outputs) == 20)
print("running", flush=True)
peer.until(lambda: False, 60)
"""


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_peer_that_is_killed_or_stands_still(instance, peer, how):
    """The others get their outputs as ever, and its requests end within seconds."""
    lost = subprocess.Popen(
        [sys.executable, "-c", _FLOODED, instance.address], stdout=subprocess.PIPE
    )
    try:
        assert lost.stdout.readline() == b"running\n"
        if how == "SIGSTOP":
            pause(lost.pid)
        else:
            lost.kill()
        started = time.monotonic()
        peer.generate(request("mine", [5], max_tokens=20, ignore_eos=True))
        _until_idle(peer)
        assert time.monotonic() - started < 30
    finally:
        lost.send_signal(signal.SIGCONT)
        lost.kill()
        lost.wait()
        lost.stdout.close()


def test_what_a_launcher_hears(tiny_directory):
    instance = RunningInstance(_config(tiny_directory))
    try:
        bound = instance.line()
        assert isinstance(bound, Bound)
        assert bound.address.startswith("tcp://127.0.0.1:")
        assert bound.pid == instance.process.pid
        with Peer(bound.address) as peer:  # before it is ready
            assert peer.subscribe().next(InstanceInfo).run_id == bound.run_id
        ready = instance.line()
        assert isinstance(ready, Ready)
        assert ready.address == bound.address
        assert ready.load_s > 0
    finally:
        assert instance.stop() == 0


@pytest.mark.parametrize(
    ("change", "setup", "code", "message"),
    [
        ({"model": "/no/such/model"}, {}, "model_not_found", "/no/such/model"),
        ({}, {"listen": "0.0.0.0:0", "host": "10.1.2.3"}, "invalid_config", "set cache.secret"),
        ({}, {"listen": "0.0.0.0:0"}, "invalid_config", "set instance.host"),
        ({}, {"listen": "nowhere"}, "invalid_config", "write host:port"),
        ({}, {"listen": "192.0.2.77:0"}, "invalid_config", "secret"),
        ({"cache": {"pages": 0}}, {}, "invalid_config", "cache.pages must be at least 1"),
    ],
)
def test_reasons_not_to_start(tiny_directory, change, setup, code, message):
    instance = RunningInstance(_config(tiny_directory, **change), **setup)
    line = instance.line()
    if isinstance(line, Bound):
        with Peer(line.address) as peer:
            failure = peer.subscribe().failure()
            assert (failure.code, message in failure.message) == (code, True)
        line = instance.line()
    assert isinstance(line, Failed)
    assert (line.code, message in line.message) == (code, True), line.message
    assert instance.stop() == 3


def test_a_port_that_is_taken(instance, tiny_directory):
    second = RunningInstance(
        _config(tiny_directory), listen=instance.address.removeprefix("tcp://")
    )
    line = second.line()
    assert (line.code, "is taken" in line.message) == ("address_in_use", True)
    assert second.stop() == 3


def test_beyond_loopback_only_those_with_the_secret_can_speak(tiny_directory):
    host = _own_address()
    cache = {"pages": PAGES, "secret": "between us"}
    config = _config(tiny_directory, cache=cache)
    instance = RunningInstance(config, listen="0.0.0.0:0", host=host).wait_ready()
    try:
        assert instance.address.startswith(f"tcp://{host}:")
        with (
            Peer(instance.address, "another") as stranger,
            Peer(instance.address, "between us") as friend,
        ):
            stranger.subscribe()
            assert friend.subscribe().next(InstanceInfo).host == host
            assert stranger.receive(0.5) is None
    finally:
        assert instance.stop() == 0


def _own_address():
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family.name == "AF_INET" and not address.address.startswith("127."):
                return address.address
    pytest.skip("this machine has no address but loopback")
