"""Requests over several instances: one text, whatever becomes of the instances."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from inlay.cluster.compatibility import difference
from inlay.cluster.control import Member, Roster
from inlay.cluster.decision import Decision
from inlay.cluster.policies import Policy
from inlay.core.errors import (
    AdapterNotFoundError,
    AdmissionError,
    EngineDiedError,
    NoInstanceError,
    OverloadedError,
    RequestError,
)
from inlay.core.failures import failure_output
from inlay.core.instance_messages import KvLost, KvTarget, SetRole
from inlay.core.messages import (
    CancelRequest,
    EngineFailure,
    GenerateRequest,
    RequestOutput,
    ResetPrefixCache,
)
from tests.unit.cluster.dispatching import (
    PROMPT,
    Cluster,
    Reading,
    Refusing,
    expected,
    request,
    wire_id,
)
from tests.unit.cluster.instance_stand_in import (
    ENGINE,
    NAMESPACE,
    SECRET,
    InstanceStandIn,
    key_check,
    next_token,
)


async def test_requests_go_to_all_instances(make: Callable[..., Cluster]) -> None:
    cluster = make()
    instances = [await cluster.add("a"), await cluster.add("b")]
    for number in range(4):
        reading = Reading(cluster, request(f"r{number}"))
        await reading.end()
        assert reading.text() == expected()
        assert {output.request_id for output in reading.outputs} == {f"r{number}"}
        assert reading.outputs[-1].finished
    assert [len(one.requests) for one in instances] == [2, 2]
    assert cluster.dispatcher.info == ENGINE
    sent = instances[0].requests[wire_id(instances[0])]
    assert sent.age_s == 1.0 and sent.arrival_s == 99.0
    assert not any(instance.attempts for instance in cluster.instances)
    assert not cluster.chooser.state.live


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("had", [0, 1, 4])
async def test_a_lost_instance_is_not_seen_by_the_client(
    make: Callable[..., Cluster], n: int, had: int
) -> None:
    cluster = make()
    first = await cluster.add("a", eager=False)
    reading = Reading(cluster, request(n=n))
    await first.until(GenerateRequest)
    first.answer(wire_id(first), had)
    await reading.until(had)
    second = await cluster.add("b")
    first.close()
    await reading.end()
    for index in range(n):
        assert reading.text(index) == expected(index)
    again = await second.until(GenerateRequest)
    assert [len(tokens) for tokens in again.produced] == ([had] * n if had else [])
    assert [output.prompt_tokens for output in reading.outputs] == [40] + [None] * 5
    assert cluster.dispatcher.retries == {("a", "lost"): 1}
    if had:
        times = reading.outputs[-1].times
        assert times is not None and times.arrival_s == 99.0


async def test_the_seed_is_drawn_once(make: Callable[..., Cluster]) -> None:
    cluster = make()
    first = await cluster.add("a", eager=False)
    reading = Reading(cluster, request(params={"seed": None}))
    seed = (await first.until(GenerateRequest)).params.seed
    assert seed is not None
    first.answer(wire_id(first), 2)
    await reading.until(2)
    await cluster.add("b")
    first.close()
    await reading.end()
    assert reading.text() == expected(seed=seed)


async def test_a_request_that_loses_every_instance_fails(make: Callable[..., Cluster]) -> None:
    cluster = make(max_tries=2)
    names = ["a", "b", "c"]
    instances = {name: await cluster.add(name, eager=False) for name in names}
    reading = Reading(cluster, request())
    for _ in range(2):
        while not (left := [one for one in instances.values() if one.requests]):
            await asyncio.sleep(0)
        left[0].close()
        del instances[left[0].name]
    with pytest.raises(EngineDiedError, match="lost with its instance: [ab]: its connection"):
        await reading.end()
    assert not instances["c"].requests


async def test_a_full_instance_sends_it_elsewhere(make: Callable[..., Cluster]) -> None:
    cluster = make()
    full = await cluster.add("a", eager=False)
    await cluster.add("b")
    reading = Reading(cluster, request())
    await full.until(GenerateRequest)
    full.output(failure_output(wire_id(full), OverloadedError("8 requests are waiting")))
    await reading.end()
    assert reading.text() == expected()
    assert cluster.dispatcher.retries == {("a", "refused"): 1}


async def test_all_full_is_overload(make: Callable[..., Cluster]) -> None:
    cluster = make()
    full = await cluster.add("a", eager=False)
    reading = Reading(cluster, request())
    await full.until(GenerateRequest)
    full.output(failure_output(wire_id(full), OverloadedError("8 requests are waiting")))
    with pytest.raises(OverloadedError, match="8 requests are waiting"):
        await reading.end()


async def test_errors_are_those_of_an_instance(make: Callable[..., Cluster]) -> None:
    cluster = make()
    first = await cluster.add("a", eager=False)
    reading = Reading(cluster, request())
    await first.until(GenerateRequest)
    first.output(failure_output(wire_id(first), RequestError("top_p is 7", "top_p")))
    with pytest.raises(RequestError, match="top_p is 7") as caught:
        await reading.end()
    assert caught.value.param == "top_p"
    with pytest.raises(RequestError, match="wrong token ids"):
        await Reading(cluster, request(prompt=b"123")).end()


async def test_ids_are_unique(make: Callable[..., Cluster]) -> None:
    cluster = make()
    await cluster.add("a", eager=False)
    reading = Reading(cluster, request())
    await cluster.stand_ins["a"].until(GenerateRequest)
    with pytest.raises(RequestError, match="'r' is in use"):
        await Reading(cluster, request()).end()
    reading.task.cancel()


async def test_a_client_that_goes_cancels(make: Callable[..., Cluster]) -> None:
    cluster = make()
    first = await cluster.add("a", eager=False)
    reading = Reading(cluster, request())
    await first.until(GenerateRequest)
    sent = wire_id(first)
    first.answer(sent, 2)
    await reading.until(2)
    reading.task.cancel()
    assert await first.until(CancelRequest) == CancelRequest(sent)
    assert not cluster.chooser.state.live
    assert not cluster.dispatcher._live


async def test_a_slow_client_holds_nobody_up(make: Callable[..., Cluster]) -> None:
    cluster = make()
    await cluster.add("a")
    slow = cluster.dispatcher.generate(request("slow"))
    await anext(slow)
    for number in range(3):
        reading = Reading(cluster, request(f"r{number}"))
        await reading.end()
    assert [output.choices[0].token_ids async for output in slow] == [
        (next_token(PROMPT, 5, 0, position),) for position in range(1, 6)
    ]


async def test_without_an_instance_a_request_waits(make: Callable[..., Cluster]) -> None:
    cluster = make()
    reading = Reading(cluster, request())
    await asyncio.sleep(0)
    await cluster.add("a")
    await reading.end()
    assert reading.text() == expected()


async def test_it_waits_so_long_and_says_what_is_missing(make: Callable[..., Cluster]) -> None:
    cluster = make(instance_wait_s=0.02, max_waiting=1)
    cluster.states["a"] = "starting"
    cluster.stand_ins["a"] = InstanceStandIn(cluster.context, "a")
    cluster.follow()
    waiting = Reading(cluster, request("r1"))
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="1 requests wait for an instance"):
        await Reading(cluster, request("r2")).end()
    with pytest.raises(NoInstanceError, match="a is starting") as caught:
        await waiting.end()
    assert caught.value.retry_after_s == 5.0
    with pytest.raises(NoInstanceError):
        _ = cluster.dispatcher.info


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"namespace": msgspec.structs.replace(NAMESPACE, fingerprint="g")},
            "the model's fingerprint is g, that of a is f",
        ),
        ({"key_check": key_check(secret=b"another")}, "cache.secret is not the deployment's"),
        ({"protocol": 9}, "it speaks protocol 9"),
        (
            {"engine": msgspec.structs.replace(ENGINE, max_context_tokens=10)},
            "max_context_tokens is 10, that of a is 1000",
        ),
    ],
)
async def test_an_instance_that_differs_is_refused(
    make: Callable[..., Cluster], fields: dict[str, Any], said: str
) -> None:
    cluster = make()
    await cluster.add("a")
    other = await cluster.add("b", **fields)
    for number in range(3):
        await Reading(cluster, request(f"r{number}")).end()
    assert not other.requests
    assert said in cluster.instances.describe()
    ((name, difference),) = cluster.refused
    assert name == "b" and said in difference


async def test_an_instance_that_says_it_is_of_no_use_is_refused(
    make: Callable[..., Cluster],
) -> None:
    cluster = make()
    one = await cluster.add("a")
    one.tell(EngineFailure("instance_version", "it speaks protocol 9"))
    while not cluster.refused:
        await asyncio.sleep(0.001)
    assert cluster.refused == [("a", "it speaks protocol 9")]
    assert cluster.instances.state("a") == "refused: it speaks protocol 9"


async def test_a_client_comes_back_when_an_instance_is_expected(
    make: Callable[..., Cluster],
) -> None:
    cluster = make(instance_wait_s=0.02)
    cluster.states["a"] = "starting"
    one = cluster.stand_ins["a"] = InstanceStandIn(cluster.context, "a")
    cluster.follow()
    cluster.clock.advance(30.0)
    cluster.states["a"] = "ready"
    cluster.follow()
    while not cluster.instances.usable:
        await asyncio.sleep(0.001)
    one.close()
    while cluster.instances.usable:
        await asyncio.sleep(0.001)
    for after_s, expected_s in ((12.0, 18.0), (17.5, 1.0), (1.0, 5.0)):
        cluster.clock.advance(after_s)
        with pytest.raises(NoInstanceError) as caught:
            await Reading(cluster, request(f"r{after_s}")).end()
        assert caught.value.retry_after_s == pytest.approx(expected_s)


async def test_a_draining_instance_ends_what_it_has(make: Callable[..., Cluster]) -> None:
    cluster = make()
    first = await cluster.add("a", eager=False)
    reading = Reading(cluster, request())
    await first.until(GenerateRequest)
    second = await cluster.add("b")
    cluster.states["a"] = "draining"
    cluster.follow()
    await Reading(cluster, request("r1")).end()
    await Reading(cluster, request("r2")).end()
    assert len(second.requests) == 2 and cluster.drained == []
    first.answer(wire_id(first))
    await reading.end()
    assert cluster.drained == ["a"]


async def test_a_member_that_is_gone_is_left(make: Callable[..., Cluster]) -> None:
    cluster = make()
    first = await cluster.add("a", eager=False)
    reading = Reading(cluster, request())
    await first.until(GenerateRequest)
    await cluster.add("b")
    del cluster.stand_ins["a"]
    cluster.follow()
    await reading.end()
    assert reading.text() == expected()
    first.close()


async def test_roles_follow_the_roster(make: Callable[..., Cluster]) -> None:
    cluster = make()
    first = await cluster.add("a")
    members = (Member(name="a", role="decode", address=first.address, run=1, state="ready"),)
    cluster.instances.follow(Roster(number=2, members=members))
    assert (await first.until(SetRole)).role == "decode"
    while cluster.chooser.state.role(0) != "decode":
        await asyncio.sleep(0)


class _Scripted(Policy):
    """Prompt at the first slot that takes some, the rest at the last."""

    name = "scripted"

    def _choose(self, request: Any, blocks_S: Any, state: Any, now_s: float) -> Decision:
        prefill, decode = (
            [slot for slot in state.slots if closed_S[slot] == 0]
            for closed_S in (state.closed_prefill_s, state.closed_decode_s)
        )
        return Decision(policy=self.name, prefill=prefill[0], decode=decode[-1])


async def test_a_divided_request(make: Callable[..., Cluster]) -> None:
    cluster = make()
    cluster.chooser._policy = _Scripted()
    prefill = await cluster.add("p", role="prefill", eager=False)
    decode = await cluster.add("d", role="decode", eager=False)
    reading = Reading(cluster, request())
    prompt, rest = await prefill.until(GenerateRequest), await decode.until(GenerateRequest)
    assert (prompt.phase, rest.phase) == ("prefill", "decode")
    assert prompt.request_id == rest.request_id
    decode.target(rest.request_id)
    assert (await prefill.until(KvTarget)).request_id == rest.request_id
    prefill.output(RequestOutput(request_id=rest.request_id, finished=True))
    cluster.clock.advance(0.3)
    decode.answer(rest.request_id)
    await reading.end()
    assert reading.text() == expected()
    path = cluster.dispatcher.kv_paths.known["p", "d"]
    assert (path.prompts, path.lost, path.last_s) == (1, 0, pytest.approx(0.3))
    assert not [one for one in prefill.heard + decode.heard if isinstance(one, CancelRequest)]


@pytest.mark.parametrize("how", ["lost", "failed"])
async def test_a_prompt_that_fails_is_computed_where_it_decodes(
    make: Callable[..., Cluster], how: str
) -> None:
    cluster = make()
    cluster.chooser._policy = _Scripted()
    prefill = await cluster.add("p", role="prefill", eager=False)
    decode = await cluster.add("d", role="decode", eager=False)
    reading = Reading(cluster, request())
    await prefill.until(GenerateRequest)
    rest = await decode.until(GenerateRequest)
    if how == "lost":
        prefill.close()
    else:
        prefill.output(failure_output(rest.request_id, OverloadedError("full")))
    lost = await decode.until(KvLost)
    assert lost.request_id == rest.request_id and lost.reason.startswith("p: ")
    decode.target(rest.request_id)  # too late: it is not passed on
    decode.answer(rest.request_id)
    await reading.end()
    assert reading.text() == expected()
    assert cluster.dispatcher.kv_lost == 1


async def test_a_decode_instance_that_waits_no_more(make: Callable[..., Cluster]) -> None:
    cluster = make()
    cluster.chooser._policy = _Scripted()
    prefill = await cluster.add("p", role="prefill", eager=False)
    decode = await cluster.add("d", role="decode", eager=False)
    reading = Reading(cluster, request())
    rest = await decode.until(GenerateRequest)
    slot = cluster.instances.find("d").slot  # type: ignore[union-attr]
    assert cluster.chooser.state.live[rest.request_id].prefill != slot
    decode.target(rest.request_id)
    await prefill.until(KvTarget)
    decode.kv_lost(rest.request_id)
    assert await prefill.until(CancelRequest) == CancelRequest(rest.request_id)
    live = cluster.chooser.state.live[rest.request_id]
    assert live.prefill == live.decode == slot
    assert cluster.dispatcher.kv_lost == 1
    assert cluster.dispatcher.kv_paths.known["p", "d"].lost == 1
    assert not [one for one in decode.heard if isinstance(one, KvLost)]
    decode.answer(rest.request_id)
    await reading.end()
    assert reading.text() == expected()


async def test_a_prompt_that_is_not_wanted_is_cancelled(make: Callable[..., Cluster]) -> None:
    cluster = make()
    cluster.chooser._policy = _Scripted()
    prefill = await cluster.add("p", role="prefill", eager=False)
    decode = await cluster.add("d", role="decode", eager=False)
    reading = Reading(cluster, request())
    rest = await decode.until(GenerateRequest)
    decode.target(rest.request_id, num_tokens=0)
    await prefill.until(CancelRequest)
    decode.answer(rest.request_id)
    await reading.end()


async def test_a_lost_decode_instance_cancels_the_prompt(make: Callable[..., Cluster]) -> None:
    cluster = make()
    cluster.chooser._policy = _Scripted()
    prefill = await cluster.add("p", role="prefill", eager=False)
    decode = await cluster.add("d", role="decode", eager=False)
    reading = Reading(cluster, request())
    rest = await decode.until(GenerateRequest)
    decode.close()
    assert await prefill.until(CancelRequest) == CancelRequest(rest.request_id)
    # Only the prefill instance is left: it can compute both.
    both = await prefill.until(GenerateRequest, 2)
    assert both.phase == "both"
    prefill.answer(both.request_id)
    await reading.end()
    assert reading.text() == expected()


async def test_prompt_logprobs_are_not_divided(make: Callable[..., Cluster]) -> None:
    cluster = make()
    cluster.chooser._policy = _Scripted()
    prefill = await cluster.add("p", role="prefill")
    decode = await cluster.add("d", role="decode")
    await Reading(cluster, request(params={"prompt_logprobs": 1})).end()
    assert not prefill.requests and len(decode.requests) == 1


async def test_a_refusal_of_admission(make: Callable[..., Cluster]) -> None:
    cluster = make()
    await cluster.add("a")
    cluster.chooser._admission = Refusing("the prompt would wait for 9 s", 7.0)
    with pytest.raises(AdmissionError, match="wait for 9 s") as caught:
        await Reading(cluster, request()).end()
    assert caught.value.retry_after_s == 7.0 and caught.value.http_status == 429
    assert cluster.chooser.log.outcomes == {("round_robin", "refused"): 1}


async def test_stats_are_sums(make: Callable[..., Cluster]) -> None:
    cluster = make()
    instances = [await cluster.add("a"), await cluster.add("b")]
    stats = await cluster.dispatcher.stats()
    assert stats.running == 2 and stats.tier_hit_tokens == {"host": 4}
    await cluster.dispatcher.reset_prefix_cache()
    for one in instances:
        assert ResetPrefixCache() in one.heard


async def test_decisions_say_why(make: Callable[..., Cluster]) -> None:
    cluster = make()
    await cluster.add("a")
    await cluster.add("b")
    await Reading(cluster, request("r7")).end()
    cluster.clock.advance(2.0)
    (entry,) = cluster.chooser.log.describe(cluster.clock.now())
    assert entry["request"] == "r7" and entry["age_s"] == 2.0 and entry["num_tokens"] == 40
    assert {row["instance"] for row in entry["candidates"]} == {"a", "b"}
    assert [row["instance"] for row in entry["candidates"] if row["chosen"]] == [entry["decode"]]


async def test_closing_ends_requests(make: Callable[..., Cluster]) -> None:
    cluster = make()
    first = await cluster.add("a", eager=False)
    reading = Reading(cluster, request())
    await first.until(GenerateRequest)
    cluster.dispatcher.close()
    with pytest.raises(EngineDiedError):
        await reading.end()


async def test_an_instance_that_exchanges_nothing_computes_both(
    make: Callable[..., Cluster],
) -> None:
    cluster = make()
    await cluster.add("p", role="prefill", transfer="")
    assert cluster.chooser.state.role(0) == "both"
    await Reading(cluster, request()).end()


async def test_adapters(make: Callable[..., Cluster]) -> None:
    """Names go to instances that have them; others are refused before anything is sent."""
    cluster = make()
    engine = msgspec.structs.replace(ENGINE, adapters={"voice": "ab" * 16})
    one = await cluster.add("a", engine=engine)
    reading = Reading(cluster, request(adapter="voice"))
    await reading.end()
    heard = [message for message in one.heard if isinstance(message, GenerateRequest)]
    assert [message.adapter for message in heard] == ["voice"]
    with pytest.raises(AdapterNotFoundError, match=r"'tone' here \(loaded: voice\)"):
        await Reading(cluster, request("s", adapter="tone")).end()
    with pytest.raises(AdapterNotFoundError, match=r"did you mean voice\?"):
        await Reading(cluster, request("s", adapter="voices")).end()
    for call in (
        cluster.dispatcher.load_adapter("tone", "/x"),
        cluster.dispatcher.unload_adapter("voice"),
    ):
        with pytest.raises(RequestError, match="deployment file"):
            await call
    other = msgspec.structs.replace(ENGINE, adapters={"voice": "cd" * 16})
    assert "adapters is" in difference(
        one.info, msgspec.structs.replace(one.info, engine=other), SECRET
    )
