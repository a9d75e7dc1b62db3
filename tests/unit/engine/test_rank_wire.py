"""Messages between an engine and the other ranks."""

import io
from dataclasses import asdict

import msgspec
import numpy as np
import pytest

from inlay.core.messages import EngineFailure
from inlay.engine.rank_wire import (
    FromRank,
    PoolSetup,
    RankReady,
    RankStep,
    ToRank,
    batch_of,
    read_frame,
    step_of,
    write_frame,
)
from inlay.models.adapter_weights import AdapterWeights
from inlay.models.batch import AdapterRows, ForwardBatch


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.mark.parametrize("decode", [None, np.array([False, False, True])])
@pytest.mark.parametrize("rows", [(), (1, 2)])
def test_a_step_arrives_as_it_was(decode: np.ndarray | None, rows: tuple[int, ...]) -> None:
    batch = ForwardBatch(
        token_ids_T=numbers(7, 9, 11),
        positions_T=numbers(0, 1, 40),
        query_starts_B1=numbers(0, 2, 3),
        context_lens_B=numbers(2, 41),
        page_table_BP=np.array([[4, 0, 0], [9, 8, 7]], np.int32),
        logit_rows_R=numbers(*rows),
        decode_T=decode,
        expert_ids_LTK=np.zeros((1, 3, 2), np.int32),
    )
    pipe = io.BytesIO()
    write_frame(pipe, step_of(batch, 3))
    pipe.seek(0)
    message = msgspec.msgpack.decode(read_frame(pipe), type=ToRank)
    assert isinstance(message, RankStep)
    arrived = asdict(batch_of(message, {}))
    for name, wanted in asdict(batch).items():
        if name == "adapters":
            assert arrived[name] == []
            continue
        if name == "expert_ids_LTK" or wanted is None:
            assert arrived[name] is None
        else:
            assert arrived[name].dtype == wanted.dtype
            assert arrived[name].flags.writeable  # PyTorch takes no other memory
            np.testing.assert_array_equal(arrived[name], wanted)


def test_adapters_of_a_step_are_numbers() -> None:
    """Each rank has its part of an adapter under the same number."""
    first, second = (AdapterWeights((), "f" * 32, 0, number) for number in (3, 8))
    parts = {number: AdapterWeights((), "f" * 32, 1, number) for number in (3, 8)}
    batch = ForwardBatch(
        token_ids_T=numbers(7, 9, 11),
        positions_T=numbers(0, 1, 40),
        query_starts_B1=numbers(0, 2, 3),
        context_lens_B=numbers(2, 41),
        page_table_BP=np.array([[4, 0, 0], [9, 8, 7]], np.int32),
        logit_rows_R=numbers(1, 2),
        adapters=[AdapterRows(second, 0, 2), AdapterRows(first, 2, 3)],
    )
    sent = msgspec.msgpack.encode(step_of(batch, 0))
    arrived = batch_of(msgspec.msgpack.decode(sent, type=RankStep), parts).adapters
    assert [(of.first, of.end) for of in arrived] == [(0, 2), (2, 3)]
    assert [of.adapter for of in arrived] == [parts[8], parts[3]]


def test_frames_follow_each_other_until_the_end() -> None:
    pipe = io.BytesIO()
    sent = [RankReady(5), RankReady(), EngineFailure("model_error", "no such file")]
    for message in sent:
        write_frame(pipe, message)
    whole = pipe.getvalue()
    pipe.seek(0)
    decode = msgspec.msgpack.Decoder(FromRank).decode
    assert [decode(read_frame(pipe)) for _ in sent] == sent
    assert read_frame(pipe) is None
    for cut in (1, 3, 5, len(whole) - 1):
        pipe = io.BytesIO(whole[:cut])
        while (frame := read_frame(pipe)) is not None:
            decode(frame)


def test_messages_are_told_apart() -> None:
    data = msgspec.msgpack.encode(PoolSetup("float32", 16, 40))
    assert msgspec.msgpack.decode(data, type=ToRank) == PoolSetup("float32", 16, 40)
