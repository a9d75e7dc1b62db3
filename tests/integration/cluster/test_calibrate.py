"""`inlay calibrate` at a real instance."""

import asyncio

import pytest
import zmq

from inlay.cluster.calibrate import calibrate
from inlay.cluster.control import Member
from inlay.cluster.timing import TimingModel
from inlay.core.errors import EngineDiedError
from inlay.core.instance_socket import connect_instance
from tests.support.instances import RunningInstance

CONFIG = {"threads": 1, "max_context_tokens": 1024, "cache": {"pages": 200}, "device": "cpu"}


def measure(instance, budget_s):
    member = Member(name="i0", role="both", address=instance.address, run=1, state="ready")
    context = zmq.Context()
    try:
        return asyncio.run(
            calibrate(member, lambda at: connect_instance(context, at, ""), budget_s=budget_s)
        )
    finally:
        context.destroy(linger=0)


def test_what_is_learned_fits_what_was_measured(tmp_path):
    instance = RunningInstance(CONFIG).wait_ready()
    try:
        found = measure(instance, 10.0)
    finally:
        assert instance.stop() == 0
    assert found.info.name == "i0"
    assert found.num_steps > 50
    assert found.median_error < 0.5
    model = found.model
    # More work takes longer; a batch of decodes is cheaper than its parts.
    assert model.prefill_s(512, 0) > 2 * model.prefill_s(64, 0)
    assert model.decode_s(8, 800) < 8 * model.decode_s(1, 100)
    model.save(tmp_path / "kind.json")
    again = TimingModel.load(tmp_path / "kind.json")
    assert again.prefill_s(512, 256) == pytest.approx(model.prefill_s(512, 256), rel=1e-3)


def test_an_instance_that_ends_is_an_error():
    instance = RunningInstance(CONFIG).wait_ready()
    instance.process.kill()
    instance.process.wait()
    member = Member(name="gone", role="both", address=instance.address, run=1, state="ready")

    async def run():
        context = zmq.Context()
        try:
            connect = lambda at: connect_instance(context, at, "")  # noqa: E731
            await asyncio.wait_for(calibrate(member, connect, budget_s=5.0), 2.0)
        finally:
            context.destroy(linger=0)

    with pytest.raises((EngineDiedError, TimeoutError)):
        asyncio.run(run())
    instance.stop()
