import msgspec
import pytest

from inlay.core.messages import (
    CancelRequest,
    ChoiceDelta,
    EngineFailure,
    EngineStats,
    FromEngine,
    GenerateRequest,
    OutputBatch,
    RequestOutput,
    RequestTimes,
    RequestTrace,
    ResetPrefixCache,
    SamplingParams,
    StatsRequest,
    Structure,
    ToEngine,
    TokenLogprob,
)
from inlay.core.token_ids import pack_token_ids

PARAMS = SamplingParams(
    temperature=0.5,
    logit_bias={3: -1.5},
    stop=("a", "b"),
    seed=2**63,
    structure=Structure("regex", "a+"),
)
REQUEST = GenerateRequest(
    request_id="r", prompt=pack_token_ids([1, 2]), params=PARAMS, arrival_s=1.5
)
OUTPUT = RequestOutput(
    request_id="r",
    choices=(
        ChoiceDelta(
            index=1,
            text="ü",
            token_ids=(7,),
            logprobs=(TokenLogprob(7, -0.5, ((7, -0.5), (8, -1.5))),),
            finish_reason="stop",
            stop_reason="\n",
        ),
    ),
    prompt_logprobs=(None, TokenLogprob(2, -1.0)),
    finished=True,
    times=RequestTimes(arrival_s=1.0, scheduled_s=2.0, first_token_s=3.0, finished_s=4.0),
    trace=RequestTrace(expert_counts_LE=[[1, 2]], pages_reused=1, pages_used=2, preemptions=0),
)


def _there_and_back(message, union):
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=union)


@pytest.mark.parametrize(
    "message", [REQUEST, CancelRequest("r"), ResetPrefixCache(), StatsRequest()]
)
def test_to_the_engine(message):
    assert _there_and_back(message, ToEngine) == message


@pytest.mark.parametrize(
    "message", [OutputBatch((OUTPUT, OUTPUT)), EngineStats(running=3), EngineFailure("c", "m")]
)
def test_from_the_engine(message):
    assert _there_and_back(message, FromEngine) == message


def test_fields_added_at_the_end_are_ignored_by_older_readers():
    data = msgspec.msgpack.decode(msgspec.msgpack.encode(OUTPUT))
    longer = msgspec.msgpack.encode([*data, "from the future"])
    assert msgspec.msgpack.decode(longer, type=RequestOutput) == OUTPUT


@pytest.mark.parametrize("damage", [b"", b"\x90", b"\x92\xa1x\xa1y"])
def test_damaged_messages_are_refused(damage):
    with pytest.raises(msgspec.MsgspecError):
        msgspec.msgpack.decode(damage, type=ToEngine)


def test_a_step_costs_few_bytes():
    delta = ChoiceDelta(index=0, text=" lantern", token_ids=(417,))
    batch = OutputBatch((RequestOutput(request_id="cmpl-1234", choices=(delta,)),))
    assert len(msgspec.msgpack.encode(batch)) < 80
