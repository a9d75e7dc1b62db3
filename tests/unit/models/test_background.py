"""Loading in the background: order, demand, errors, ends; and the weights that come that way."""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file

from inlay.core.errors import EngineError, ModelFileError, WaitTimeoutError
from inlay.core.model_config import read_shape
from inlay.models import packed as packed_module
from inlay.models.background import ColdExperts, Loading, Piece
from inlay.models.conversion.convert import convert
from inlay.models.decoder import Decoder
from inlay.models.gguf import gguf_directory
from inlay.models.model import Model, load_model
from inlay.models.native_ops import NativeOps
from inlay.models.ops import ExpertTensors
from inlay.models.packed_metadata import PACKED_FILE
from inlay.models.placed import Placed
from inlay.models.tensor_weights import open_checkpoint
from inlay.models.weights import MixtureWeights, load_weights
from tests.support.gguf_files import TOKENIZER, write_gguf
from tests.support.model_driver import ModelDriver
from tests.support.quantized_files import quantize_files
from tests.support.tiny_models import make_tiny_model

TOKENS = [5, 400, 33, 2, 17, 250, 9]
LONG_S = 30.0


def own_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("inlay-load-")]


@pytest.fixture(autouse=True)
def no_threads_stay() -> Iterator[None]:
    yield
    until = time.monotonic() + LONG_S
    while own_threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert not own_threads()


class Held:
    """Pieces that note their turn; the first of them waits to be let go."""

    def __init__(self) -> None:
        self.turns: list[Any] = []
        self.begun, self.gate = threading.Event(), threading.Event()

    def piece(self, name: Any, nbytes: int = 1) -> Piece:
        return Piece(nbytes, lambda: self.turns.append(name))

    def first(self) -> Piece:
        def bring() -> None:
            self.begun.set()
            assert self.gate.wait(LONG_S)

        return Piece(0, bring)


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """What the call gives, or raises, once the thread has ended."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def test_pieces_come_in_order_and_what_is_required_first() -> None:
    loading, held = Loading(threads=1), Held()
    loading.add([held.first()], order=-1)
    assert held.begun.wait(LONG_S)
    late = [held.piece(name) for name in "ab"]
    loading.add(late, order=2)
    loading.add([held.piece(name) for name in "cd"], order=1)
    loading.seal(100)
    assert loading.progress.loaded_bytes == 96 and not loading.progress.over
    with pytest.raises(WaitTimeoutError, match=r"4 bytes of weights are not loaded after 0\.01 s"):
        loading.wait(0.01)
    asking, _ = in_thread(lambda: loading.require(late[1:]))
    while not late[1].taken:
        time.sleep(0.001)
    held.gate.set()
    loading.wait(LONG_S)
    asking.join()
    assert held.turns == ["b", "c", "d", "a"]
    progress = loading.progress
    assert progress.loaded_bytes == progress.total_bytes == 100 and progress.over
    assert progress.seconds == loading.progress.seconds > 0


def test_results_of_calls() -> None:
    before = torch.get_num_threads()
    loading = Loading(threads=4)
    assert loading.gather([lambda n=n: (n, torch.get_num_threads()) for n in range(9)]) == [
        (n, 1) for n in range(9)
    ]
    loading.seal(0)
    loading.wait(LONG_S)
    assert torch.get_num_threads() == before
    later = in_thread(torch.get_num_threads)
    later[0].join()
    assert later[1] == [before]


def test_an_error_ends_it_for_all() -> None:
    told = threading.Event()
    loading, held = Loading(threads=1, on_change=told.set), Held()

    def spoiled() -> None:
        raise ModelFileError("expert 3 is damaged")

    loading.add([held.first()], order=-1)
    assert held.begun.wait(LONG_S)
    loading.add([Piece(1, spoiled)])
    never = held.piece("never")
    loading.add([never], order=1)
    loading.seal(2)
    waiting = in_thread(loading.wait)
    held.gate.set()
    assert told.wait(LONG_S)
    waiting[0].join(LONG_S)
    for wait in (lambda: loading.wait(LONG_S), lambda: loading.require([never])):
        with pytest.raises(ModelFileError, match="expert 3 is damaged"):
            wait()
    assert isinstance(waiting[1][0], ModelFileError) and held.turns == []
    assert loading.failure is not None and loading.progress.over


def test_close_ends_the_threads_and_those_who_wait() -> None:
    loading, held = Loading(threads=1), Held()
    loading.add([held.first()], order=-1)
    assert held.begun.wait(LONG_S)
    rest = [held.piece(n) for n in range(1000)]
    loading.add(rest)
    loading.seal(1000)
    asking = [in_thread(lambda: loading.require(rest[-1:])), in_thread(loading.wait)]
    closing, _ = in_thread(loading.close)
    for thread, results in asking:
        thread.join(LONG_S)
        assert isinstance(results[0], EngineError), results
        assert "closed before" in str(results[0]), results
    held.gate.set()
    closing.join(LONG_S)
    assert not closing.is_alive() and held.turns == []
    with pytest.raises(EngineError, match="closed before"):
        loading.require(rest[:1])


def test_an_interrupt_while_threads_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C does it: none of them is left waiting for the others."""

    class Interrupted(threading.Barrier):
        def wait(self, timeout: float | None = None) -> int:
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return super().wait(timeout)

    before, loading = torch.get_num_threads(), Loading(threads=3)
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Barrier", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            loading.add([Held().piece("never")])
    closing, _ = in_thread(loading.close)
    closing.join(LONG_S)
    assert not closing.is_alive() and torch.get_num_threads() == before


def test_what_was_left_out_counts_as_missing() -> None:
    loading = Loading(threads=1)
    loading.add([Piece(30, lambda: False), Piece(12, lambda: True)])
    loading.seal(50)
    loading.wait(LONG_S)
    assert loading.progress.loaded_bytes == 20 and loading.missing_bytes == 30


def test_what_nobody_requires_gives_way() -> None:
    loading, held = Loading(threads=1), Held()
    loading.add([held.first()], order=-1)
    assert held.begun.wait(LONG_S)
    with loading.give_way():
        loading.add([held.piece("rest")])
        loading.seal(1)
        held.gate.set()
        loading.require([held.piece("asked"), held.piece("too")])
        assert held.turns == ["asked", "too"] and not loading.over
    loading.wait(LONG_S)
    assert held.turns == ["asked", "too", "rest"] and loading.over


def test_cold_experts_ask_for_what_is_missing() -> None:
    loading, held = Loading(threads=1), Held()
    loading.add([held.first()], order=-1)
    assert held.begun.wait(LONG_S)
    pieces = [held.piece(n) for n in range(6)]
    cold = ColdExperts(loading, pieces)
    loading.add(pieces)
    loading.seal(6)
    asking, _ = in_thread(lambda: cold.require(np.array([[4, 2], [2, 4]], np.int32)))
    while not pieces[4].taken:
        time.sleep(0.001)
    held.gate.set()
    asking.join()
    assert cold.expected
    loading.wait(LONG_S)
    assert held.turns == [2, 4, 0, 1, 3, 5]
    cold.require(np.array([[1]], np.int32))
    assert not cold.expected


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe": ("", {"architecture": "qwen3_moe", "dtype": "bfloat16"}),
    "fused": ("", {"architecture": "qwen3_moe", "expert_names": "fused", "dtype": "float16"}),
    "mixed": ("", {"architecture": "qwen3_moe", "decoder_sparse_step": 2}),
    "mixtral": ("", {"architecture": "mixtral"}),
    "llama": ("", {"architecture": "llama"}),
    "glm": ("", {"architecture": "glm4_moe"}),
    "fp8": ("fp8", {"architecture": "deepseek_v3", "hidden_size": 160, "q_lora_rank": 136}),
    "int4": ("int4", {"architecture": "deepseek_v3", "hidden_size": 96}),
    "mxfp4": ("mxfp4", {"architecture": "gpt_oss", "hidden_size": 96, "intermediate_size": 64}),
    "gguf": ("gguf", {"architecture": "qwen3_moe", "moe_intermediate_size": 256}),
}


def directory_of(case: str, path: Path) -> Path:
    method, config = MODELS[case]
    if method == "gguf":
        config = config | {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    source = make_tiny_model(path / "source", tokenizer="none", **config)
    if method == "gguf":
        write_gguf(source, path / "model.gguf", Type.Q4_0, metadata=TOKENIZER)
        return gguf_directory(path / "model.gguf")
    if method:
        quantize_files(source, path / "quantized", path / "floats", method)
        return path / "quantized"
    return source


def eager(directory: Path, weight_format: str) -> Callable[[Model], torch.Tensor]:
    """Logits of weights that the calling thread packed alone, one after the other."""
    shape = read_shape(directory)
    placed = Placed.whole(NativeOps(), shape)
    opened = open_checkpoint(directory, shape, placed, weight_format)
    decoder = Decoder(shape, load_weights(opened.source, shape.layers), placed)

    def logits(model: Model) -> torch.Tensor:
        model._decoder = decoder
        return ModelDriver(model).prefill(TOKENS, (4,))

    return logits


@pytest.mark.parametrize("weight_format", ["auto", "int4"])
@pytest.mark.parametrize("case", MODELS)
def test_the_same_bits_as_packed_by_one_thread(
    tmp_path: Path, case: str, weight_format: str
) -> None:
    directory = directory_of(case, tmp_path)
    lazy = load_model(directory, weight_format=weight_format, load="lazy")
    at_once = ModelDriver(lazy).prefill(TOKENS, (4,))
    lazy.loading.wait(LONG_S)
    afterwards = ModelDriver(lazy).prefill(TOKENS, (4,))
    whole = load_model(directory, weight_format=weight_format)
    assert whole.loading.progress.over and whole.loading.missing_bytes == 0
    expected = eager(directory, weight_format)(
        load_model(directory, weight_format=weight_format)
    ).view(torch.int32)
    for actual in (at_once, afterwards, ModelDriver(whole).prefill(TOKENS, (4,))):
        assert torch.equal(actual.view(torch.int32), expected)


class Waiting(NativeOps):
    """Its first expert comes when others have been asked for; notes the order of all."""

    def __init__(self, loading: Loading) -> None:
        super().__init__()
        self._loading = loading
        self.turns: list[tuple[int, int]] = []

    def set_expert(self, experts: Any, number: int, tensors: ExpertTensors) -> None:
        """As that of `NativeOps`."""
        until = time.monotonic() + LONG_S
        while not self.turns and not self._loading._urgent:
            assert time.monotonic() < until
            time.sleep(0.001)
        self.turns.append((id(experts), number))
        super().set_expert(experts, number, tensors)


def test_a_step_before_any_expert_is_there(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path, tokenizer="none", num_experts=32)
    model = load_model(directory)
    driver = ModelDriver(model)
    chosen = np.zeros((2, 1, 3), np.int32)
    expected = driver.step([(driver.add(TOKENS[:1]), 1)], expert_ids=chosen)
    shape, loading = model.shape, Loading(threads=1)
    ops = Waiting(loading)
    placed = Placed.whole(ops, shape)
    opened = open_checkpoint(directory, shape, placed)
    weights = load_weights(opened.source, shape.layers, loading)
    loading.seal(opened.held_bytes)
    mixtures = [layer.mlp for layer in weights.layers]
    assert all(isinstance(one, MixtureWeights) and one.cold is not None for one in mixtures)
    model._decoder = Decoder(shape, weights, placed)
    driver = ModelDriver(model)
    actual = driver.step([(driver.add(TOKENS[:1]), 1)])
    assert torch.equal(actual[0], expected[0])
    first, *rest = ops.turns
    asked = {(id(mixtures[0].experts), int(one)) for one in chosen[0, 0]} - {first}
    assert set(rest[: len(asked)]) == asked
    loading.wait(LONG_S)
    assert len(ops.turns) == len(set(ops.turns)) == 64
    assert all(one.cold.expected for one in mixtures)
    driver.step([(driver.add(TOKENS), len(TOKENS))])
    assert not any(one.cold.expected for one in mixtures)


def test_damage_is_found_in_the_background(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path, tokenizer="none")
    file = directory / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.mlp.experts.5.up_proj.weight"][0, 0] = math.nan
    save_file(tensors, file)
    message = r"expert 5 of layer 1 cannot be packed \(up_FM: row 0 .*the file is damaged"
    with pytest.raises(ModelFileError, match=message):
        load_model(directory)
    lazy = load_model(directory, load="lazy")
    with pytest.raises(ModelFileError, match=message):
        lazy.loading.wait(LONG_S)
    every = [token for token in range(512) if token % 3]
    with pytest.raises(ModelFileError, match=message):
        ModelDriver(lazy, num_pages=64).prefill(every, ())


@pytest.mark.parametrize("cut", ["checkpoint", "gguf", PACKED_FILE])
def test_a_file_that_is_cut_while_it_loads(tmp_path: Path, cut: str) -> None:
    """Its mapped pages would end the process if they were touched."""
    big = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    options = {"moe_intermediate_size": 256, "num_experts": 64, "vocab_size": 512} | big
    directory = make_tiny_model(tmp_path / "source", tokenizer="none", **options)
    file = directory / "model.safetensors"
    if cut == "gguf":
        file = tmp_path / "model.gguf"
        write_gguf(directory, file, Type.F16, metadata=TOKENIZER)
        directory = gguf_directory(file)
    elif cut == PACKED_FILE:
        convert(directory, tmp_path / "packed", weight_format="auto")
        directory = tmp_path / "packed"
        file = directory / PACKED_FILE
    shape, loading, held = read_shape(directory), Loading(threads=2), Held()
    placed = Placed.whole(NativeOps(), shape)
    if cut == PACKED_FILE:
        opened = packed_module.open_packed(file, shape, placed, "auto")
    else:
        opened = open_checkpoint(directory, shape, placed)
    loading.add([held.first(), held.first()], order=-1)
    assert held.begun.wait(LONG_S)
    opened.source.layer(1, loading)
    with file.open("rb+") as stream:
        os.truncate(stream.fileno(), 64 * 1024)
    loading.seal(opened.held_bytes)
    held.gate.set()
    with pytest.raises(ModelFileError, match=f"{file.name}.* cannot be read"):
        loading.wait(LONG_S)


def test_no_more_pages_than_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_tiny_model(tmp_path / "source", tokenizer="none")
    convert(source, tmp_path / "packed", weight_format="auto")
    monkeypatch.setattr(packed_module, "free_memory_bytes", lambda: 1000)
    model = load_model(tmp_path / "packed")
    progress = model.loading.progress
    assert progress.over and model.loading.brought_bytes <= 1000 < model.loading.missing_bytes
    assert torch.equal(
        ModelDriver(model).prefill(TOKENS, ()), ModelDriver(load_model(source)).prefill(TOKENS, ())
    )


def test_a_model_that_is_dropped_ends_its_threads(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path, tokenizer="none", num_experts=256)
    model = load_model(directory, load="lazy")
    loading = model.loading
    del model
    assert not own_threads()
    loading.close()
