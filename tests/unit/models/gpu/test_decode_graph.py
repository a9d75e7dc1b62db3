"""Replayed decode steps: on CUDA by graphs; elsewhere what was recorded runs again, which shows
that it reads nothing but the buffers that are loaded.
"""

import logging

import numpy as np
import pytest
import torch

from inlay.core.errors import UnsupportedModelError
from inlay.core.model_config import read_shape
from inlay.core.placement import LayerPlacement, Placement
from inlay.models import decode_graph
from inlay.models.decode_graph import SIZES, size_for
from inlay.models.gpu.ops import GpuOps
from inlay.models.host_share import ShareConfig
from inlay.models.model import load_model
from inlay.models.torch_ops import TorchOps
from tests.support.model_driver import ModelDriver
from tests.support.tiny_models import make_tiny_model

PROMPTS = [[5, 6, 7], [200, 3, 77, 4, 60], [9]]
NEXT = [30, 31, 32, 33, 34, 35]


class Again:
    """Records by running again, or with what a device has; counts both."""

    def __init__(self, inner=None):
        self.made, self.replays, self._inner = 0, 0, inner

    def record(self, run):
        self.made += 1
        go = run if self._inner is None else self._inner.record(run)

        def replay():
            self.replays += 1
            go()

        return replay


class NamedOps(GpuOps):
    """A device with a number of its own, and a recorder that counts."""

    def __init__(self, device, number=0):
        super().__init__(device)
        self._own_name = f"{'cuda' if device.type == 'cuda' else 'gpu'}:{number}"
        self.used = Again(super().recorder() if device.type == "cuda" else None)

    @property
    def device(self):
        return self._own_name

    def free_bytes(self):
        return 1 << 40

    def recorder(self):
        return self.used


def model_of(directory, *devices, resident=None, graph=True, **sharing):
    shape = read_shape(directory)
    layers = tuple(
        LayerPlacement(
            device=devices[number * len(devices) // shape.layers].device,
            resident=shape.experts if resident is None else resident,
        )
        for number in range(shape.layers)
    )
    return load_model(
        directory,
        weight_format="bfloat16",
        placement=Placement(layers=layers),
        backends={ops.device: ops for ops in devices},
        sharing=ShareConfig(**sharing),
        graph=graph,
    )


def tiny(path, architecture="qwen3_moe", layers=2):
    return make_tiny_model(
        path, architecture, tokenizer="none", num_hidden_layers=layers, dtype="float32"
    )


class Requests:
    """Those of the prompts, computed."""

    def __init__(self, model):
        # In float32: sums that libraries add in another order for other numbers of rows differ in
        # their last bits, which rounding to bfloat16 would turn into a step of eight bits.
        self.driver = ModelDriver(model, num_pages=16, page_tokens=4, dtype="float32")
        self.running = [self.driver.add([*prompt, *NEXT]) for prompt in PROMPTS]
        work = zip(self.running, PROMPTS, strict=True)
        self.driver.step([(one, len(prompt)) for one, prompt in work])

    def decode(self, count, **more):
        """The next token of the first ones."""
        return torch.cat(self.driver.step([(one, 1) for one in self.running[:count]], **more))


def decoded(model, together=(3, 1, 3)):
    requests = Requests(model)
    return torch.cat([requests.decode(count) for count in together])


def assert_near(found, expected, device):
    """Up to the order of sums, which depends on the rows of a call: 2e-7 of a product, and up to
    200 times as much behind the layers of a random model (seen with OpenBLAS' for Haswell).
    """
    tolerance = 0.05 if device.type == "cuda" else 1e-3
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * float(expected.std()))


@pytest.fixture(autouse=True)
def few_sizes(monkeypatch):
    """Three rows are one too few."""
    monkeypatch.setattr(decode_graph, "SIZES", (1, 4))


def warnings_of(caplog):
    return [line for line in caplog.messages if "not replayed" in line]


def test_sizes(monkeypatch):
    monkeypatch.setattr(decode_graph, "SIZES", SIZES)
    assert [size_for(rows) for rows in (1, 5, 8, 9, 13, 33, 128)] == [1, 5, 8, 12, 16, 48, 128]
    assert size_for(129) is None


@pytest.mark.parametrize("architecture", ["qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_on_a_device(architecture, tmp_path, device):
    directory, ops = tiny(tmp_path, architecture), NamedOps(device)
    found = decoded(model_of(directory, ops))
    assert_near(found, decoded(model_of(directory, NamedOps(device), graph=False)), device)
    assert (ops.used.made, ops.used.replays) == (2, 3)


@pytest.mark.parametrize("sharing", [{"deferred": 2}, {"moves_per_s": 1 << 40}])
def test_beside_host_experts(sharing, tmp_path, device):
    directory, ops = tiny(tmp_path, layers=3), NamedOps(device)
    model = model_of(directory, ops, resident=2, **sharing)
    found = decoded(model)
    plain = model_of(directory, NamedOps(device), resident=2, graph=False, **sharing)
    # What moves, and when, differs: host and device round at other places.
    tolerance = 0.05 if "moves_per_s" in sharing or device.type == "cuda" else 1e-4
    expected = decoded(plain)
    assert (found - expected).norm() / expected.norm() < tolerance
    assert (ops.used.made, ops.used.replays) == (2, 3)
    # Three of each token in each layer, though a step that is recorded is computed twice.
    assert sum(model.host_share.activations.values()) == 3 * 3 * (3 + 1 + 3)
    assert model.host_share.host_s > 0


def test_stages_on_two_devices(tmp_path, device):
    directory = tiny(tmp_path)
    stages = NamedOps(device), NamedOps(device, 1)
    found = decoded(model_of(directory, *stages, resident=2))
    plain = NamedOps(device), NamedOps(device, 1)
    assert_near(found, decoded(model_of(directory, *plain, resident=2, graph=False)), device)
    assert [ops.used.made for ops in stages] == [2, 2]


def test_rows_in_excess_leave_the_pool_alone(tmp_path, device):
    requests = Requests(model_of(tiny(tmp_path), NamedOps(device)))
    own = {page for one in requests.running for page in one.pages}
    others = [page for page in range(16) if page not in own]
    requests.driver.pool.data[others] = 7.0
    before = requests.driver.pool.data.clone()
    requests.decode(3)
    changed = (requests.driver.pool.data != before).flatten(1).any(1).nonzero().flatten().tolist()
    assert set(changed) <= {one.pages[(one.computed - 1) // 4] for one in requests.running}


def test_other_steps_are_not_replayed(tmp_path, device):
    ops = NamedOps(device)
    requests = Requests(model_of(tiny(tmp_path), ops))  # three prompts in one step
    chosen = np.empty((2, 1, 3), np.int32)
    requests.decode(1, expert_ids=chosen)
    one, other, _ = requests.running
    requests.driver.step([(one, 2), (other, 1)])
    assert ops.used.made == 0
    requests.decode(1)
    assert ops.used.made == 1


def test_only_wanted_rows_have_logits(tmp_path, device):
    """A step of a decoder may want fewer rows than it has."""
    requests = Requests(model_of(tiny(tmp_path), NamedOps(device)))
    forward = requests.driver.model.forward
    seen = []

    def of_last_rows(batch, pool):
        object.__setattr__(batch, "logit_rows_R", np.array([2, 0], np.int32))
        seen.append(forward(batch, pool))
        return seen[-1][[1, 1, 0]]

    expected = Requests(model_of(tiny(tmp_path / "again"), NamedOps(device), graph=False)).decode(3)
    requests.driver.model.forward = of_last_rows
    requests.decode(3)
    assert seen[0].shape == (2, expected.shape[1])
    assert_near(seen[0].cpu(), expected[[2, 0]], device)


def test_what_cannot_be_recorded_runs_as_before(tmp_path, device, caplog):
    directory, ops = tiny(tmp_path), NamedOps(device)

    def refuse(run):
        try:
            raise RuntimeError("operation not permitted when stream is capturing")
        finally:
            raise RuntimeError("capture is invalid")

    ops.used.record = refuse
    found = decoded(model_of(directory, ops, resident=2))
    plain = model_of(directory, NamedOps(device), resident=2, graph=False)
    assert_near(found, decoded(plain), device)
    (warning,) = warnings_of(caplog)
    assert "when stream is capturing" in warning


def test_a_recording_that_gives_something_else_is_not_used(tmp_path, device, caplog):
    directory, ops = tiny(tmp_path), NamedOps(device)
    ops.used.record = lambda run: lambda: None
    found = decoded(model_of(directory, ops))
    assert_near(found, decoded(model_of(directory, NamedOps(device), graph=False)), device)
    assert len(warnings_of(caplog)) == 1 and "of 4 rows it gives logits that are off" in caplog.text


def test_recordings_are_made_anew_when_experts_leave_a_device(tmp_path, device):
    directory, ops = tiny(tmp_path), NamedOps(device)
    model = model_of(directory, ops, resident=2)
    requests = Requests(model)
    first = requests.decode(1)
    assert model.host_share.relieve()
    requests.running[0].computed -= 1
    assert_near(requests.decode(1), first, torch.device("cuda"))
    assert ops.used.made == 2


def test_an_error_in_the_middle_ends_the_step_alone(tmp_path, device):
    directory, ops = tiny(tmp_path), NamedOps(device)
    requests = Requests(model_of(directory, ops, resident=2))
    first = requests.decode(1)
    requests.running[0].computed -= 1
    model = requests.driver.model
    part = model._decoder._graphs._recordings[1].parts[0]
    good = part.replay

    def broken():
        raise RuntimeError("launch failed")

    part.replay = broken
    with pytest.raises(RuntimeError, match="launch failed"):
        requests.decode(1)
    part.replay = good
    requests.running[0].computed -= 1
    assert_near(requests.decode(1), first, device)


def test_backends_without_recordings_say_so(tmp_path, device, caplog):
    caplog.set_level(logging.INFO)

    class NamedTorch(TorchOps):
        device = "gpu:0"

    decoded(model_of(tiny(tmp_path), NamedTorch(device)), together=(1,))
    assert len(warnings_of(caplog)) == 1 and "records nothing" in caplog.text
    ops = GpuOps(device)
    ops.new_experts(2, 64, 64, "float32")
    with pytest.raises(UnsupportedModelError, match="experts in float32 or float16"):
        ops.recorder()
