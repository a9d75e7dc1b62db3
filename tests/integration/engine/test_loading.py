"""An engine whose routed experts are still on their way, and one where they never come."""

import shutil
import signal
import subprocess
import sys
import threading

import pytest
from safetensors.torch import load_file, save_file

from inlay.core.errors import ModelFileError, ResourceError
from inlay.engine.config import EngineConfig
from inlay.engine.engine import Engine
from inlay.engine.loading import prepare
from inlay.models import load_model
from inlay.models import native_ops as native_ops_module
from inlay.models.background import Loading
from inlay.models.decoder import Decoder
from inlay.models.native_ops import NativeOps
from inlay.models.placed import Placed
from inlay.models.tensor_weights import open_checkpoint
from inlay.models.text import Text
from inlay.models.weights import load_weights
from tests.integration.engine.engines import drain, request
from tests.support.tiny_models import make_tiny_model

LONG_S = 30.0
EXPERTS = 32


class Holding(NativeOps):
    """One expert comes when it is let go."""

    def __init__(self, held):
        super().__init__()
        self._held, self.gate = held, threading.Event()

    def set_expert(self, experts, number, tensors):
        if number == self._held:
            assert self.gate.wait(LONG_S)
        super().set_expert(experts, number, tensors)


@pytest.fixture
def directory(tmp_path):
    return make_tiny_model(tmp_path / "model", num_experts=EXPERTS, num_hidden_layers=1)


@pytest.fixture
def cold_expert(directory):
    """One that the first steps of an engine do not choose."""
    model = load_model(directory)
    config = EngineConfig(model=str(directory), device="cpu", seed=0)
    engine = Engine(config, loaded=prepare(config, "test", model, Text.load(directory)))
    counts = [0] * EXPERTS
    for temperature in (0.0, 1.0):
        params = {"temperature": temperature, "max_tokens": 2, "ignore_eos": True, "seed": 0}
        engine.add(request("warm", [0] * 17, trace=True, **params))
        (counted,) = drain(engine)["warm"][-1].trace.expert_counts_LE
        counts = [a + b for a, b in zip(counts, counted, strict=True)]
    engine.close()
    return counts.index(0)


@pytest.fixture
def holding(directory, cold_expert):
    """An engine that lacks this expert, and what holds it."""
    made = []

    def make(weights_of=directory, on_ready=None):
        config = EngineConfig(model=str(directory), device="cpu", seed=0)
        model = load_model(directory)
        loading, ops = Loading(threads=2), Holding(cold_expert)
        placed = Placed.whole(ops, model.shape)
        opened = open_checkpoint(weights_of, model.shape, placed)
        weights = load_weights(opened.source, model.shape.layers, loading)
        loading.seal(opened.held_bytes)
        model._decoder, model.loading = Decoder(model.shape, weights, placed), loading
        make.models = [model]
        loaded = prepare(config, "test", model, Text.load(directory))
        made.append((Engine(config, loaded=loaded, on_ready=on_ready), ops))
        return made[0]

    yield make
    engine, ops = made[0]
    ops.gate.set()
    engine.close()


EVERYTHING = [token for token in range(512) if token % 3]


@pytest.fixture
def spoiled(directory, cold_expert, tmp_path):
    """The same model, whose cold expert is damaged."""
    shutil.copytree(directory, tmp_path / "spoiled")
    file = tmp_path / "spoiled" / "model.safetensors"
    tensors = load_file(file)
    tensors[f"model.layers.0.mlp.experts.{cold_expert}.down_proj.weight"][1, 0] = float("inf")
    save_file(tensors, file)
    return tmp_path / "spoiled"


def test_a_request_waits_for_an_expert(holding):
    engine, ops = holding()
    progress = engine.load_progress
    assert not progress.over and 0 < progress.loaded_bytes < progress.total_bytes
    engine.add(request("one", EVERYTHING, temperature=0, max_tokens=4, ignore_eos=True))
    threading.Timer(0.2, ops.gate.set).start()
    late = drain(engine)["one"]
    assert engine.load_progress.over and ops.gate.is_set()
    engine.reset_prefix_cache()
    engine.add(request("two", EVERYTHING, temperature=0, max_tokens=4, ignore_eos=True))
    again = drain(engine)["two"]
    assert [o.choices[0].token_ids for o in late if o.choices] == [
        o.choices[0].token_ids for o in again if o.choices
    ]
    engine.audit()


def test_pages_leave_room_for_what_is_to_come(directory, holding, monkeypatch):
    """Memory that experts will take looks free before they are there."""
    holding()
    model, text = holding.models[0], Text.load(directory)
    missing = model.unfilled_bytes
    assert missing == model.loading.missing_bytes > 0
    monkeypatch.setattr(native_ops_module, "free_memory_bytes", lambda: missing + 1000)
    with pytest.raises(ResourceError, match="1000 B are free on cpu beside the weights"):
        prepare(EngineConfig(model=str(directory), device="cpu"), "test", model, text)


def test_damage_ends_requests_under_way_and_later_ones(spoiled, holding, cold_expert):
    engine, ops = holding(spoiled)
    engine.add(request("one", EVERYTHING, temperature=0, max_tokens=4, ignore_eos=True))
    engine.add(request("two", [1, 2], temperature=0, max_tokens=400, ignore_eos=True))
    threading.Timer(0.2, ops.gate.set).start()
    outputs = drain(engine)
    message = f"expert {cold_expert} of layer 0 cannot be packed"
    for name in ("one", "two"):
        last = outputs[name][-1]
        assert last.finished and last.error_code == "model_file_damaged"
        assert message in last.error and "the file is damaged" in last.error
    with pytest.raises(ModelFileError, match=message):
        engine.add(request("three", [1, 2]))
    with pytest.raises(ModelFileError, match=message):
        engine.generate([1, 2])
    with pytest.raises(ModelFileError, match=message):
        load_model(spoiled)
    engine.audit()


def test_an_idle_engine_notices_damage(spoiled, holding, cold_expert):
    woken = threading.Event()
    engine, ops = holding(spoiled, woken.set)
    assert engine.failure is None
    woken.clear()
    ops.gate.set()
    assert woken.wait(LONG_S)
    assert f"expert {cold_expert} of layer 0" in str(engine.failure)
    assert engine.step() == []


_SLOW = """
import sys, time
from inlay.models.background import Loading, Piece
loading = Loading(threads=2)
loading.add(Piece(1, lambda: time.sleep(0.02)) for _ in range(100_000))
loading.seal(100_000)
print("loading", flush=True)
if sys.argv[1] == "wait":
    try:
        loading.wait()
    finally:
        loading.close()
"""


@pytest.mark.parametrize("how", ["wait", "leave"])
def test_a_process_ends_promptly_while_it_loads(how):
    """By Ctrl-C while it waits; and without waiting for threads that it left."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SLOW, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout.readline() == b"loading\n"
        if how == "wait":
            process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=LONG_S)  # a thousandth of what it loads
        assert (process.returncode, b"KeyboardInterrupt" in log) == (
            (-signal.SIGINT, True) if how == "wait" else (0, False)
        )
    finally:
        process.kill()
        process.wait()


def test_a_model_that_is_left_loading_does_not_hold_its_process(directory):
    program = "import sys; from inlay.models import load_model; from pathlib import Path\n"
    program += "model = load_model(Path(sys.argv[1]), load='lazy')\n"
    done = subprocess.run(
        [sys.executable, "-c", program, directory], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
