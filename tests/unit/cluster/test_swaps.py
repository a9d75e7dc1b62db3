"""New weights for the instances behind a dispatcher, and requests meanwhile."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inlay.core.errors import (
    EngineError,
    ModelNotFoundError,
    NoInstanceError,
    RequestError,
    WeightsConflictError,
    WeightsError,
    WeightsMismatchError,
)
from inlay.core.failures import failure_output
from inlay.core.messages import CancelRequest, GenerateRequest, RolloutHandle, SwapWeights
from tests.unit.cluster.dispatching import Cluster, Reading, expected, request, wire_id
from tests.unit.cluster.instance_stand_in import InstanceStandIn

V2 = Path("/there/v2")


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not met():
            await asyncio.sleep(0)


def versions(cluster: Cluster) -> dict[str, str]:
    return {one.name: one.info.weights.version for one in cluster.instances if one.info is not None}


async def test_all_instances_take_them_one_after_the_other(make: Callable[..., Cluster]) -> None:
    cluster = make()
    made = [await cluster.add(name, swaps=False) for name in "abc"]
    task = asyncio.ensure_future(cluster.dispatcher.swap_weights(V2, "v2", "recompute"))
    for count, one in enumerate(made, 1):
        message = await one.until(SwapWeights)
        assert (message.directory, message.version, message.in_flight) == (
            "/there/v2", "v2", "recompute",
        )  # fmt: skip
        heard = [any(isinstance(m, SwapWeights) for m in other.heard) for other in made]
        assert sum(heard) == count, "more than one loads at a time"
        with pytest.raises(WeightsConflictError, match="under way"):
            await cluster.dispatcher.swap_weights(V2, "v3")
        one.swapped(message)
    swapped = await asyncio.wait_for(task, 10)
    assert swapped.error is None and swapped.version == "v2"
    assert [(one.name, one.version, one.seconds) for one in swapped.instances] == [
        ("a", "v2", 1.0), ("b", "v2", 1.0), ("c", "v2", 1.0),
    ]  # fmt: skip
    again = await cluster.dispatcher.swap_weights(V2, "v2")
    assert again.error is None and [one.seconds for one in again.instances] == [0.0] * 3


async def test_where_nobody_may_look_nothing_is_offered(make: Callable[..., Cluster]) -> None:
    cluster = make()
    one = await cluster.add("a", swaps=False)
    no_name = Path("/") / ("x" * 300)
    task = asyncio.ensure_future(cluster.dispatcher.swap_weights(no_name, "v2"))
    one.swapped(await one.until(SwapWeights), ModelNotFoundError("File name too long"))
    with pytest.raises(ModelNotFoundError, match="too long"):
        await asyncio.wait_for(task, 10)


async def test_several_load_at_a_time_if_they_may(make: Callable[..., Cluster]) -> None:
    cluster = make(swaps_at_once=2)
    made = [await cluster.add(name, swaps=False) for name in "abc"]
    task = asyncio.ensure_future(cluster.dispatcher.swap_weights(V2, "v2"))
    made[0].swapped(await made[0].until(SwapWeights))
    messages = [await one.until(SwapWeights) for one in made[1:]]
    for one, message in zip(made[1:], messages, strict=True):
        one.swapped(message)
    await asyncio.wait_for(task, 10)


async def test_what_the_first_one_refuses_changes_nothing(make: Callable[..., Cluster]) -> None:
    cluster = make()
    first, second = [await cluster.add(name, swaps=False) for name in "ab"]
    task = asyncio.ensure_future(cluster.dispatcher.swap_weights(V2, "v2"))
    first.swapped(await first.until(SwapWeights), WeightsMismatchError("of another model"))
    with pytest.raises(WeightsMismatchError, match="of another model"):
        await task
    assert not any(isinstance(message, SwapWeights) for message in second.heard)


async def test_one_that_fails_is_told_of_and_a_second_update_mends_it(
    make: Callable[..., Cluster],
) -> None:
    cluster = make()
    first, second, third = [await cluster.add(name, swaps=False) for name in "abc"]
    task = asyncio.ensure_future(cluster.dispatcher.swap_weights(V2, "v2"))
    first.swapped(await first.until(SwapWeights))
    second.swapped(await second.until(SwapWeights), WeightsError("no room"))
    await third.until(SwapWeights)
    third.close()
    swapped = await asyncio.wait_for(task, 10)
    assert swapped.error_code == "weights_partial"
    assert swapped.error is not None and "a serve v2, not so b: no room; c: c: its" in swapped.error
    assert [(one.name, one.version, one.error_code) for one in swapped.instances] == [
        ("a", "v2", None), ("b", "", "weights_error"), ("c", "", "engine_died"),
    ]  # fmt: skip
    for number in range(2):
        await Reading(cluster, request(f"r{number}")).end()
    assert len(first.requests) == 2 and not second.requests
    task = asyncio.ensure_future(cluster.dispatcher.swap_weights(V2, "v2"))
    second.swapped(await second.until(SwapWeights, 2))
    swapped = await asyncio.wait_for(task, 10)
    assert swapped.error is None
    assert [(one.name, one.seconds) for one in swapped.instances] == [("a", 0.0), ("b", 1.0)]


async def test_one_that_is_gone_before_its_turn_is_not_waited_for(
    make: Callable[..., Cluster],
) -> None:
    cluster = make()
    first, second = [await cluster.add(name, swaps=False) for name in "ab"]
    lost = cluster.instances.find("b")
    assert lost is not None
    task = asyncio.ensure_future(cluster.dispatcher.swap_weights(V2, "v2"))
    message = await first.until(SwapWeights)
    second.close()
    await until(lambda: lost.slot is None)
    first.swapped(message)
    swapped = await asyncio.wait_for(task, 10)
    assert [(one.name, one.error_code) for one in swapped.instances] == [
        ("a", None), ("b", "engine_died"),
    ]  # fmt: skip


async def test_without_instances_there_is_nothing_to_update(make: Callable[..., Cluster]) -> None:
    cluster = make()
    with pytest.raises(NoInstanceError):
        await cluster.dispatcher.swap_weights(V2, "v2")
    only = await cluster.add("a", swaps=False)
    task = asyncio.ensure_future(cluster.dispatcher.swap_weights(V2, "v2"))
    await only.until(SwapWeights)
    only.close()
    with pytest.raises(EngineError, match="connection was lost"):
        await task


async def test_one_that_comes_later_is_given_what_the_others_have(
    make: Callable[..., Cluster],
) -> None:
    cluster = make()
    await cluster.add("a")
    await cluster.dispatcher.swap_weights(V2, "v2")
    late = await cluster.add("b", swaps=False)
    message = await late.until(SwapWeights)
    (newest,) = [one.info.weights for one in cluster.instances if one.name == "a" and one.info]
    assert message == SwapWeights("/there/v2", "v2", "finish", newest.asked_s)
    await Reading(cluster, request("r1")).end()
    assert not late.requests, "it has old weights"
    late.swapped(message)
    await until(lambda: versions(cluster) == {"a": "v2", "b": "v2"})
    for number in range(2):
        await Reading(cluster, request(f"s{number}")).end()
    assert len(late.requests) == 1


async def test_one_that_does_not_see_the_directory_is_told_who_holds_them(
    make: Callable[..., Cluster],
) -> None:
    cluster = make()
    first = await cluster.add("a", swaps=False)
    task = asyncio.ensure_future(cluster.dispatcher.swap_weights(V2, "v2"))
    first.swapped(await first.until(SwapWeights), held_at="10.0.0.1:4711")
    await task
    late = await cluster.add("b", swaps=False)
    message = await late.until(SwapWeights)
    assert message.holders == ()
    late.swapped(message, ModelNotFoundError("there is no model directory /there/v2"))
    again = await late.until(SwapWeights, 2)
    assert again == msgspec.structs.replace(message, holders=("10.0.0.1:4711",))
    late.swapped(again)
    await until(lambda: versions(cluster) == {"a": "v2", "b": "v2"})


async def test_one_that_came_in_the_middle_follows_at_the_end(make: Callable[..., Cluster]) -> None:
    cluster = make()
    first = await cluster.add("a", swaps=False)
    task = asyncio.ensure_future(cluster.dispatcher.swap_weights(V2, "v2"))
    message = await first.until(SwapWeights)
    await cluster.add("b")
    first.swapped(message)
    assert [one.name for one in (await asyncio.wait_for(task, 10)).instances] == ["a"]
    await until(lambda: versions(cluster) == {"a": "v2", "b": "v2"})


async def test_a_request_names_the_weights_that_its_instance_has(
    make: Callable[..., Cluster],
) -> None:
    cluster = make()
    one = await cluster.add("a")
    await Reading(cluster, request("r1")).end()
    assert one.requests["1:r1"].weights == "f@0"
    before = cluster.dispatcher.instances.weights.current
    await cluster.dispatcher.swap_weights(V2, "v2")
    await Reading(cluster, request("r2")).end()
    assert one.requests["2:r2"].weights == f"of v2@{sum(b'v2')}" != before


async def test_a_refusal_for_other_weights_is_no_failure(make: Callable[..., Cluster]) -> None:
    """It was sent while the instance changed; the next attempt is for what it has then."""
    cluster = make(max_tries=1)
    one = await cluster.add("a", eager=False, swaps=False)
    reading = Reading(cluster, request())
    await one.until(GenerateRequest)
    one.swapped(SwapWeights("/there/v2", "v2"))
    one.output(failure_output(wire_id(one), WeightsConflictError("others")))
    again = await one.until(GenerateRequest, 2)
    assert again.weights.startswith("of v2@") and not again.produced
    one.answer(again.request_id)
    await reading.end()
    assert reading.text() == expected()
    assert cluster.dispatcher.retries == {("a", "weights"): 1}


async def test_what_has_begun_stays_with_its_weights(make: Callable[..., Cluster]) -> None:
    """Its instance is lost while one has the new weights and another one the old ones."""
    cluster = make()
    made = {name: await cluster.add(name, eager=False, swaps=False) for name in "abc"}
    reading = Reading(cluster, request())
    await until(lambda: any(one.requests for one in made.values()))
    (held,) = [name for name, one in made.items() if one.requests]
    made[held].answer(wire_id(made[held]), 2)
    await reading.until(2)
    new, old = [name for name in made if name != held]
    made[new].swapped(SwapWeights("/there/v2", "v2", "finish", 5.0))
    await until(lambda: versions(cluster)[new] == "v2")
    made[held].close()
    again = await made[old].until(GenerateRequest)
    assert again.weights == "f@0" and len(again.produced[0] or ()) == 2
    # Then nobody has its weights any more: it goes on all the same.
    made[old].close()
    last = await made[new].until(GenerateRequest)
    assert last.weights.startswith("of v2@") and last.kv_weights == ""
    made[new].answer(last.request_id)
    await reading.end()
    assert reading.text() == expected()


async def test_both_instances_of_a_divided_request_have_the_same_weights(
    make: Callable[..., Cluster],
) -> None:
    cluster = make()
    made = {
        name: await cluster.add(name, eager=False, swaps=False, role=role)
        for name, role in (("p", "prefill"), ("d", "decode"))
    }
    made["p"].swapped(SwapWeights("/there/v2", "v2", "finish", 5.0))
    await until(lambda: versions(cluster)["p"] == "v2")
    reading = Reading(cluster, request())
    sent = await made["p"].until(GenerateRequest)
    assert sent.phase == "both" and not made["d"].requests
    made["p"].answer(sent.request_id)
    await reading.end()
    made["d"].swapped(SwapWeights("/there/v2", "v2", "finish", 5.0))
    await until(lambda: versions(cluster)["d"] == "v2")
    reading = Reading(cluster, request("s"))
    phases = [(await made[name].until(GenerateRequest, n)) for name, n in (("p", 2), ("d", 1))]
    assert [one.phase for one in phases] == ["prefill", "decode"]
    assert phases[0].weights == phases[1].weights
    reading.task.cancel()
    await made["d"].until(CancelRequest)


def names_of(one: InstanceStandIn) -> list[str]:
    return [name.partition(":")[2] for name in one.requests]


async def test_paused_requests_go_on_where_there_is_an_instance(
    make: Callable[..., Cluster],
) -> None:
    cluster = make()
    first = await cluster.add("a", eager=False)
    reading = Reading(cluster, request())
    sent = await first.until(GenerateRequest)
    first.answer(sent.request_id, 2)
    await reading.until(2)
    (paused,) = await cluster.dispatcher.pause_rollouts(["r"])
    assert paused.request_id == "r" and paused.prompt_tokens == 40
    assert len(paused.choices[0].token_ids) == 2
    assert await first.until(CancelRequest) == CancelRequest(sent.request_id)
    assert not any(instance.attempts for instance in cluster.instances)
    second = await cluster.add("b", eager=False)
    first.close()
    await until(lambda: cluster.instances.find("a").slot is None)  # type: ignore[union-attr]
    assert not second.requests
    running = RolloutHandle("other", "")
    other = Reading(cluster, request("other"))
    await until(lambda: "other" in names_of(second))
    for handle, message in (
        (RolloutHandle("r", "v1"), "nothing is resumed: r@v1 is paused as r@$"),
        (running, "nothing is resumed: other@ is not paused$"),
        (RolloutHandle("strange", ""), "no request 'strange' is running here"),
    ):
        with pytest.raises(RequestError, match=message):
            await cluster.dispatcher.resume_rollouts([paused.handle, handle])
    assert (await cluster.dispatcher.pause_rollouts(["r"]))[0].handle == paused.handle
    assert names_of(second) == ["other"]
    assert await cluster.dispatcher.resume_rollouts([paused.handle]) == ["r"]
    await until(lambda: "r" in names_of(second))
    again = next(one for one in second.requests.values() if one.request_id.endswith(":r"))
    assert again.produced == (paused.choices[0].token_ids,)
    for name in list(second.requests):
        second.answer(name)
    await reading.end()
    await other.end()
    assert reading.text() == expected()


@pytest.mark.parametrize("kv", ["keep", "recompute"])
async def test_what_is_resumed_is_for_the_newest_weights(
    make: Callable[..., Cluster], kv: Any
) -> None:
    cluster = make()
    one = await cluster.add("a", eager=False)
    reading = Reading(cluster, request())
    sent = await one.until(GenerateRequest)
    one.answer(sent.request_id, 2)
    await reading.until(2)
    (paused,) = await cluster.dispatcher.pause_rollouts()
    assert paused.version == ""
    await cluster.dispatcher.swap_weights(V2, "v2")
    assert await cluster.dispatcher.resume_rollouts(None, kv) == ["r"]
    again = await one.until(GenerateRequest, 2)
    assert again.weights.startswith("of v2@")
    assert again.kv_weights == ("f@0" if kv == "keep" else "")
    one.answer(again.request_id)
    await reading.end()
    assert reading.text() == expected()


async def test_requests_of_other_dispatchers_are_paused_at_their_instances(
    make: Callable[..., Cluster],
) -> None:
    cluster = make()
    one = await cluster.add("a", eager=False)
    one.requests["7:theirs"] = request("7:theirs")
    paused = await cluster.dispatcher.pause_rollouts(["theirs"])
    assert [rollout.request_id for rollout in paused] == ["theirs"]
    with pytest.raises(Exception, match="no request 'strange' is running here"):
        await cluster.dispatcher.pause_rollouts(["theirs", "strange"])
    reading = Reading(cluster, request())
    await until(lambda: "r" in names_of(one))
    (own,) = await cluster.dispatcher.pause_rollouts(["r"])
    for handle, error in (
        (RolloutHandle("theirs", "v9"), "nothing is resumed: theirs@v9 is paused as theirs@$"),
        (RolloutHandle("strange", ""), "no request 'strange' is running here"),
    ):
        with pytest.raises(RequestError, match=error):
            await cluster.dispatcher.resume_rollouts([own.handle, paused[0].handle, handle])
        assert one.paused == {"7:theirs"} and "r" not in names_of(one)
    resumed = await cluster.dispatcher.resume_rollouts([own.handle, paused[0].handle])
    assert resumed == ["r", "theirs"] and not one.paused
    await until(lambda: "r" in names_of(one))
    # Another dispatcher pauses it where it is.
    (sent,) = (name for name in one.requests if name.endswith(":r"))
    one.paused.add(sent)
    assert await cluster.dispatcher.resume_rollouts([own.handle]) == ["r"] and not one.paused
    one.answer(sent)
    await reading.end()


async def test_a_request_without_an_instance_is_paused_too(make: Callable[..., Cluster]) -> None:
    cluster = make()
    reading = Reading(cluster, request())
    await until(lambda: cluster.dispatcher.num_waiting == 1)
    (paused,) = await cluster.dispatcher.pause_rollouts()
    assert paused.choices[0].token_ids == ()
    one = await cluster.add("a")
    await until(lambda: cluster.dispatcher.num_waiting == 0)
    assert not one.requests
    await cluster.dispatcher.resume_rollouts([paused.handle])
    await reading.end()
    assert reading.text() == expected()
