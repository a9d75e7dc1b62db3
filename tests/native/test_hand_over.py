"""Steps of a device whose host experts are computed here: sums, bits, deferral, and their ends."""

import subprocess
import sys
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from inlay import kernels
from inlay.core.errors import ArgumentError, EngineError, WaitTimeoutError
from inlay.kernels import reference
from tests.native.cases import F32, floats, pairs, routing

MODULES = {"native": kernels, "reference": reference}


class Device:
    """What a device and its host share, and what the device asks for.

    A step is `num_layers` layers of inputs, which are random but for what a test changes.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        module: str = "native",
        *,
        num_layers: int = 4,
        tokens: int = 6,
        top_k: int = 4,
        num_experts: int = 8,
        hidden: int = 40,
        width: int = 24,
        format: str = "float32",
    ) -> None:
        self.tokens, self.num_layers, self.num_experts = tokens, num_layers, num_experts
        both = [pairs(rng, num_experts, hidden, width, format) for _ in range(num_layers)]
        self.experts = [packed for packed, _ in both]
        self.x_LTM = floats(rng, num_layers, tokens, hidden)
        chosen = [routing(rng, tokens, num_experts, top_k) for _ in range(num_layers)]
        self.ids_LTK = np.stack([ids for ids, _ in chosen])
        self.routing_LTK = np.stack([weights for _, weights in chosen])
        self.on_host_LE = np.ones((num_layers, num_experts), np.bool_)
        self.x = np.zeros((2, tokens, hidden), np.float32)
        self.ids = np.zeros((2, tokens, top_k), np.int32)
        self.routing = np.zeros((2, tokens, top_k), np.float32)
        self.out = np.full((2, tokens, hidden), np.nan, np.float32)
        self.words = np.full((num_layers, 2), 7, np.uint32)
        self.hand_over: kernels.HandOver = MODULES[module].HandOver(
            [pair[module == "reference"] for pair in both],
            self.x,
            self.ids,
            self.routing,
            self.out,
            self.words,
        )

    def begin(self, rows: int | None = None, **options: Any) -> kernels.Pending:
        rows = self.tokens if rows is None else rows
        return self.hand_over.begin(rows, on_host_LE=self.on_host_LE, **options)

    def ask(self, layer: int, rows: int | None = None) -> None:
        slot = layer % 2
        self.x[slot, :rows] = self.x_LTM[layer, :rows]
        self.ids[slot, :rows] = self.ids_LTK[layer, :rows]
        self.routing[slot, :rows] = self.routing_LTK[layer, :rows]
        self.hand_over.ask(layer)

    def answer(self, layer: int, rows: int | None = None) -> F32:
        self.ask(layer, rows)
        self.hand_over.wait_answer(layer, 60)
        return self.out[layer % 2, :rows].copy()

    def answers(self, rows: int | None = None) -> F32:
        """A whole step of `rows` tokens, after `begin`."""
        return np.stack([self.answer(j, rows) for j in range(self.num_layers)])


def at_most(*counts: int) -> npt.NDArray[np.int32]:
    return np.array(counts, np.int32)


def expected_bits(
    device: Device,
    rows: int,
    deferred_T: Sequence[int],
    adapters: Sequence[Sequence[tuple[Any, None, int, int]]] = (),
) -> list[F32]:
    """By calls of `moe`, each with the ids that are left."""
    answers = []
    carried: F32 | None = None
    for j in range(device.num_layers):
        x, weights = device.x_LTM[j, :rows], device.routing_LTK[j, :rows]
        most = np.array(deferred_T, np.int32) * (j + 1 < device.num_layers)
        now, later = reference.split_experts(
            device.ids_LTK[j, :rows], weights, device.on_host_LE[j], most
        )
        out = np.zeros_like(x) if carried is None else carried
        added = adapters[j] if adapters else ()
        kernels.moe(
            x, device.experts[j], now, weights, out, accumulate=carried is not None, adapters=added
        )
        carried = None
        if (later >= 0).any():
            carried = np.empty_like(x)
            kernels.moe(x, device.experts[j], later, weights, carried, adapters=added)
        answers.append(out)
    return answers


def by_the_formula(device: Device, deferred_T: Sequence[int]) -> npt.NDArray[np.float64]:
    """In double, one token and one expert at a time: an expert is added where it is due."""
    answers = np.zeros(device.x_LTM.shape)
    for j, experts in enumerate(device.experts):
        for t, x in enumerate(device.x_LTM[j].astype(np.float64)):
            ids, weights = device.ids_LTK[j, t], device.routing_LTK[j, t]
            chosen = [(w, i) for w, i in zip(weights, ids, strict=True) if i >= 0]
            left = deferred_T[t] if j + 1 < device.num_layers else 0
            spare = len(chosen) - 2
            # The least weight first; of equal ones the higher id.
            for w, i in sorted(chosen, key=lambda pair: (pair[0], -pair[1])):
                if not device.on_host_LE[j, i]:
                    continue
                defers = left > 0 and spare > 0
                left, spare = left - defers, spare - defers
                gate, up, down = (part.astype(np.float64) for part in experts.dequantize(int(i)))
                gated = gate @ x
                result = down @ (gated / (1 + np.exp(-gated)) * (up @ x))
                answers[j + defers, t] += w * result
    return answers


def mixed(device: Device) -> list[int]:
    """Residents, absent experts, equal weights; returns counts from 0 to more than there are."""
    device.on_host_LE[:, ::3] = False
    device.on_host_LE[1] = False
    device.on_host_LE[2] = True
    device.ids_LTK[0, 0, 1:] = -1
    device.ids_LTK[-2, 1, 0] = -1
    device.routing_LTK[:, 2] = 0.5
    device.routing_LTK[:, 3, :2] = device.routing_LTK[:, 3, 2:3] if device.ids.shape[2] > 2 else 1
    return [t % (device.ids.shape[2] + 2) for t in range(device.tokens)]


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"num_layers": 1},
        {"num_layers": 5, "top_k": 8, "tokens": 11},
        {"top_k": 1},
        {"top_k": 2},
        {"tokens": 4, "hidden": 130, "width": 65, "top_k": 3},
    ],
    ids=str,
)
def test_deferral_is_as_the_formula_says(
    rng: np.random.Generator, module: str, sizes: dict[str, int]
) -> None:
    device = Device(rng, module, **sizes)
    if device.num_layers > 2:
        deferred = mixed(device)
    else:
        deferred = [t % 6 for t in range(device.tokens)]
    for counts in (deferred, [0] * device.tokens, [device.ids.shape[2]] * device.tokens):
        pending = device.begin(deferred_T=at_most(*counts))
        answers = device.answers()
        pending.wait(60)
        np.testing.assert_allclose(answers, by_the_formula(device, counts), atol=1e-5)


@pytest.mark.parametrize("format", ["float32", "bfloat16", "int4:g32"])
def test_the_bits_of_moe(rng: np.random.Generator, threads: None, format: str) -> None:
    device = Device(rng, num_layers=5, format=format, tokens=7)
    deferred = mixed(device)
    for num_threads in (1, 3):
        kernels.set_num_threads(num_threads)
        for rows in (7, 1, 0, 4):
            for counts in ([0] * rows, deferred[:rows]):
                pending = device.begin(rows, deferred_T=at_most(*counts))
                answers = device.answers(rows)
                pending.wait(60)
                np.testing.assert_array_equal(answers, expected_bits(device, rows, counts))


def test_what_adapters_add() -> None:
    """To immediate and to deferred experts, in the layer that they are of."""
    counts = [2] * 5
    both: dict[str, F32] = {}
    for name, module in MODULES.items():
        rng = np.random.default_rng(7)
        device = Device(rng, name, num_layers=3, tokens=5)
        of_layers: list[list[tuple[Any, None, int, int]]] = []
        for _ in range(3):
            adapter = module.ExpertAdapter(8, 40, 24)
            for expert in range(0, 8, 2):
                for matrix, columns, rows in (("gate", 40, 24), ("down", 24, 40)):
                    adapter.set(expert, matrix, floats(rng, 2, columns), floats(rng, rows, 2), 0.5)
            of_layers.append([(adapter, None, 1, 3), (None, None, 3, 4)])
        pending = device.begin(deferred_T=at_most(*counts), adapters=of_layers)
        both[name] = device.answers()
        pending.wait(60)
        pending = device.begin(deferred_T=at_most(*counts))
        without = device.answers()
        pending.wait(60)
        assert np.abs(both[name] - without)[:, 1:3].max() > 1e-2
        np.testing.assert_array_equal(both[name][:, [0, 3, 4]], without[:, [0, 3, 4]])
        if name == "native":
            expected = expected_bits(device, 5, counts, of_layers)
            np.testing.assert_array_equal(both[name], expected)
    np.testing.assert_allclose(both["native"], both["reference"], atol=1e-4)


@pytest.mark.parametrize("module", MODULES)
def test_adapters_must_fit(rng: np.random.Generator, module: str) -> None:
    device = Device(rng, module, num_layers=2)
    fitting = MODULES[module].ExpertAdapter(8, 40, 24)
    wider = MODULES[module].ExpertAdapter(8, 40, 32)
    for adapters, message in (
        ([[]], "each of the 2 layers, has 1"),
        ([[], [(wider, None, 0, 1)]], "one is for"),
        ([[], [(fitting, None, 0, 7)]], "rows 0 to 7"),
        ([[], [(fitting, fitting, 0, 1)]], "there are none"),
    ):
        with pytest.raises(ArgumentError, match=rf"^adapters: .*{message}"):
            device.begin(adapters=adapters)
    pending = device.begin(adapters=[[], [(fitting, None, 0, 1)]])
    device.answers()
    pending.wait(60)


def test_adapters_of_a_step_are_kept_until_it_is_over(rng: np.random.Generator) -> None:
    device = Device(rng, num_layers=2)
    adapter = kernels.ExpertAdapter(8, 40, 24)
    references = sys.getrefcount(adapter)
    pending = device.begin(adapters=[[(adapter, None, 0, 6)]] * 2)
    assert sys.getrefcount(adapter) > references
    device.answers()
    pending.wait(60)
    assert sys.getrefcount(adapter) == references


def test_a_token_has_its_bits_in_every_company(rng: np.random.Generator) -> None:
    device = Device(rng, tokens=9)
    deferred = mixed(device)
    device.begin(deferred_T=at_most(*deferred))
    together = device.answers()
    for t in range(device.tokens):
        alone = Device(np.random.default_rng(7), tokens=9)
        alone.on_host_LE = device.on_host_LE
        for name in ("x_LTM", "ids_LTK", "routing_LTK"):
            getattr(alone, name)[:, 0] = getattr(device, name)[:, t]
        alone.begin(1, deferred_T=at_most(deferred[t]))
        np.testing.assert_array_equal(alone.answers(1)[:, 0], together[:, t])


@pytest.mark.parametrize("module", MODULES)
def test_nothing_on_the_host(rng: np.random.Generator, module: str) -> None:
    device = Device(rng, module)
    device.on_host_LE[:] = False
    device.routing_LTK[:] = np.nan  # not looked at
    pending = device.begin(deferred_T=at_most(*[3] * device.tokens))
    assert not device.answers().any()
    pending.wait(60)


SPLITS = [
    # weights, ids, on the host, most deferred: immediate, deferred
    ([0.4, 0.3, 0.2, 0.1], [4, 3, 2, 1], "all", 0, {4, 3, 2, 1}, set()),
    ([0.1, 0.2, 0.3, 0.4], [4, 3, 2, 1], "all", 1, {3, 2, 1}, {4}),
    ([0.1, 0.2, 0.3, 0.4], [4, 3, 2, 1], "all", 9, {2, 1}, {4, 3}),
    ([0.4, 0.3, 0.2, 0.1], [4, 3, 2, 1], {1, 2}, 9, set(), {1, 2}),
    ([0.4, 0.3, 0.2, 0.1], [4, 3, 2, 1], {4, 3, 2}, 1, {4, 3}, {2}),
    ([0.4, 0.3, 0.2, 0.1], [4, -1, -1, 1], "all", 9, {4, 1}, set()),
    ([0.4, 0.3, 0.2, 0.1], [4, -1, 2, 1], "all", 9, {4, 2}, {1}),
    ([0.5, 0.5, 0.5, 0.5], [2, 4, 1, 3], "all", 1, {1, 2, 3}, {4}),
    ([0.5, 0.5, 0.5, 0.5], [2, 4, 1, 3], "all", 2, {1, 2}, {3, 4}),
    ([-0.5, 0.5, 0.0], [2, 4, 1], "all", 1, {4, 1}, {2}),
    ([1.0], [2], "all", 1, {2}, set()),
]  # fmt: skip


@pytest.mark.parametrize("weights,ids,host,most,now,later", SPLITS)
def test_who_is_deferred(
    weights: list[float],
    ids: list[int],
    host: Any,
    most: int,
    now: set[int],
    later: set[int],
) -> None:
    on_host = np.array([host == "all" or e in host for e in range(5)])
    immediate, deferred = reference.split_experts(
        np.array([ids], np.int32), np.array([weights], np.float32), on_host, at_most(most)
    )
    assert set(immediate[0][immediate[0] >= 0]) == now
    assert set(deferred[0][deferred[0] >= 0]) == later


@pytest.mark.parametrize("module", MODULES)
def test_counts(rng: np.random.Generator, module: str) -> None:
    device = Device(rng, module, tokens=5)
    device.on_host_LE[:, 0] = False  # resident ones count, too
    device.ids_LTK[1, 0, 0] = -1
    counted = np.array([True, False, True, True, False])
    expected = np.zeros((device.num_layers, device.num_experts), np.uint32)
    for mask in (None, counted, counted[:3]):
        rows = 5 if mask is None else len(mask)
        pending = device.begin(rows, counted_T=mask)
        device.answers(rows)
        pending.wait(60)
        for j, t in np.ndindex(device.num_layers, rows):
            ids = device.ids_LTK[j, t]
            if mask is None or mask[t]:
                np.add.at(expected[j], ids[ids >= 0], 1)
    counts = np.full_like(expected, 99)
    device.hand_over.take_counts(counts)
    np.testing.assert_array_equal(counts, expected)
    device.hand_over.take_counts(counts)
    assert not counts.any()


def test_times_are_of_what_was_computed(rng: np.random.Generator) -> None:
    device = Device(rng)
    pending = device.begin()
    device.answers()
    pending.wait(60)
    at_once = device.hand_over.immediate_s
    assert at_once > 0 and device.hand_over.deferred_s == 0
    pending = device.begin(deferred_T=at_most(*[2] * device.tokens))
    device.answers()
    pending.wait(60)
    hand_over = device.hand_over
    assert hand_over.immediate_s > at_once and hand_over.deferred_s > 0
    assert hand_over.busy_s == hand_over.immediate_s + hand_over.deferred_s


@pytest.mark.parametrize("module", MODULES)
def test_words_are_cleared_and_set(rng: np.random.Generator, module: str) -> None:
    device = Device(rng, module)
    pending = device.begin()
    assert not device.words.any()
    for j in range(device.num_layers):
        assert not pending.done
        device.answer(j)
        assert (device.words[: j + 1] == 1).all() and not device.words[j + 1 :].any()
    pending.wait(60)
    pending.wait(0)
    assert pending.done


def test_what_a_step_gets_is_copied(rng: np.random.Generator) -> None:
    device = Device(rng)
    deferred = at_most(*mixed(device))
    expected = expected_bits(device, device.tokens, deferred.tolist())
    counted = np.zeros(device.tokens, np.bool_)
    pending = device.begin(deferred_T=deferred, counted_T=counted)
    device.on_host_LE[:], deferred[:], counted[:] = True, 2**30, True
    np.testing.assert_array_equal(device.answers(), expected)
    pending.wait(60)
    counts = np.ones_like(device.on_host_LE, dtype=np.uint32)
    device.hand_over.take_counts(counts)
    assert not counts.any()


def test_tensors_of_torch(rng: np.random.Generator) -> None:
    device = Device(rng, num_layers=2, tokens=3)
    buffers = [torch.from_numpy(array) for array in (device.x, device.ids, device.routing)]
    out, words = torch.zeros(2, 3, 40), torch.zeros(2, 2, dtype=torch.uint32)
    native = kernels.HandOver(device.experts, *buffers, out, words)
    result = out.numpy()
    out.data = torch.zeros(1)  # lets go of the storage
    device.hand_over, device.out = native, result
    pending = device.begin()
    np.testing.assert_array_equal(device.answers(), expected_bits(device, 3, [0] * 3))
    pending.wait(60)


def test_one_hand_over_after_the_other(rng: np.random.Generator) -> None:
    """As of a model on two devices: both steps begin, the second walk follows the first."""
    first, second = Device(rng), Device(rng, num_layers=3, hidden=24)
    for _ in range(3):
        pendings = [device.begin(timeout_s=60) for device in (first, second)]
        for device in (first, second):
            expected = expected_bits(device, device.tokens, [0] * device.tokens)
            np.testing.assert_array_equal(device.answers(), expected)
        for pending in pendings:
            pending.wait(60)


def test_a_device_on_a_thread_of_its_own(rng: np.random.Generator) -> None:
    device = Device(rng, num_layers=30, top_k=2)
    deferred = [1] * device.tokens
    for _ in range(5):
        pending = device.begin(deferred_T=at_most(*deferred))
        with ThreadPoolExecutor() as threads:
            answers = threads.submit(device.answers)
            pending.wait(60)
            expected = expected_bits(device, device.tokens, deferred)
            np.testing.assert_array_equal(answers.result(), expected)


def expect_given_up(device: Device, pending: kernels.Pending, error: str) -> None:
    """Nothing hangs, nothing is left in `out`, and the next step is as good as any."""
    for _ in range(2):
        with pytest.raises((ArgumentError, EngineError, WaitTimeoutError), match=error):
            pending.wait(60)
    assert pending.done
    for j in range(device.num_layers):
        device.hand_over.wait_answer(j, 0)
    assert not device.out.any()


BROKEN = [("ids", 8, "id 8 .*layer 2 .* 8 experts"), ("routing", np.nan, "layer 2 is not finite")]


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("name,value,error", BROKEN)
def test_what_a_device_may_not_ask(
    rng: np.random.Generator, module: str, name: str, value: float, error: str
) -> None:
    device = Device(rng, module)
    good = getattr(device, f"{name}_LTK").copy()
    getattr(device, f"{name}_LTK")[2, 1, 3] = value
    pending = device.begin(deferred_T=at_most(*[2] * device.tokens))
    device.answer(0)
    device.answer(1)
    device.ask(2)
    device.hand_over.wait_answer(3, 60)
    expect_given_up(device, pending, error)
    setattr(device, f"{name}_LTK", good)
    pending = device.begin()
    expected = by_the_formula(device, [0] * device.tokens)
    np.testing.assert_allclose(device.answers(), expected, atol=1e-5)
    pending.wait(60)


def test_a_device_that_does_not_ask(rng: np.random.Generator) -> None:
    device = Device(rng)
    pending = device.begin(timeout_s=0.01)
    device.answer(0)
    expect_given_up(device, pending, "did not ask for layer 1 of the 4 .* within 0.01 s")


@pytest.mark.parametrize("module", MODULES)
def test_cancel(rng: np.random.Generator, module: str) -> None:
    device = Device(rng, module)
    device.hand_over.cancel()  # nothing to cancel
    for asked in range(device.num_layers):
        pending = device.begin(deferred_T=at_most(*[2] * device.tokens))
        for j in range(asked):
            device.answer(j)
        device.hand_over.cancel()
        device.hand_over.cancel()
        expect_given_up(device, pending, f"cancelled before layer {asked} of the 4")
    pending = device.begin()
    device.answers()
    pending.wait(60)


@pytest.mark.parametrize("module", MODULES)
def test_one_step_at_a_time(rng: np.random.Generator, module: str) -> None:
    device = Device(rng, module)
    pending = device.begin()
    device.answer(0)
    with pytest.raises(ArgumentError, match="^begin: the step before is not done"):
        device.begin()
    for j in range(1, device.num_layers):
        device.answer(j)
    pending.wait(60)
    device.begin()
    device.answers()


@pytest.mark.parametrize("module", MODULES)
def test_waits_that_are_too_short(rng: np.random.Generator, module: str) -> None:
    device = Device(rng, module)
    pending = device.begin()
    with pytest.raises(WaitTimeoutError, match="layer 1 was not answered after 0.001 s"):
        device.hand_over.wait_answer(1, 0.001)
    with pytest.raises(WaitTimeoutError, match=r"not done after 0.001 s"):
        pending.wait(0.001)
    device.answers()
    pending.wait(60)


@pytest.mark.parametrize("module", MODULES)
def test_layers_that_are_not_there(rng: np.random.Generator, module: str) -> None:
    device = Device(rng, module)
    for layer in (-1, device.num_layers):
        with pytest.raises(ArgumentError, match=f"^layer: must be in 0..3, got {layer}"):
            device.hand_over.ask(layer)
        with pytest.raises(ArgumentError, match="^layer: "):
            device.hand_over.wait_answer(layer, 0)


def test_dropped_amid_a_step(rng: np.random.Generator) -> None:
    """It is cancelled, keeps its memory until then, and does not hold up what comes after."""
    device = Device(rng)
    out = weakref.ref(device.out)
    pending = device.begin()
    device.answer(0)
    device.hand_over, device.out = None, None  # type: ignore[assignment]
    assert out() is not None
    with pytest.raises(EngineError, match="cancelled before layer 1"):
        pending.wait(60)
    del pending
    assert out() is None

    device = Device(rng)
    out = weakref.ref(device.out)
    device.begin(timeout_s=10**6)  # dropped at once
    del device
    other = Device(rng)
    for _ in range(2):  # the second call finds the dropped walk at its end
        pending = other.begin()
        other.answers()
        pending.wait(60)
    assert out() is None


SCRIPT = """
import os, sys
import numpy as np
from inlay import kernels
from inlay.core.errors import ArgumentError
experts = kernels.pack_experts(*(np.ones((1, 8, 8), "f4"),) * 3)
x, ids = np.ones((2, 1, 8), "f4"), np.zeros((2, 1, 1), "i4")
routing, out, words = np.ones((2, 1, 1), "f4"), np.zeros((2, 1, 8), "f4"), np.zeros((2, 2), "u4")
new = lambda: kernels.HandOver([experts] * 2, x, ids, routing, out, words)
hand_over = new()
pending = hand_over.begin(1, on_host_LE=np.ones((2, 1), "?"))
"""


def run_script(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT + code], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("code", ["", "del pending", "hand_over.ask(0)", "sys.exit('stop')"])
def test_exit_does_not_wait_for_a_step(code: str) -> None:
    result = run_script(code)
    assert result.stderr == ("stop\n" if "exit" in code else "")
    assert result.returncode == ("exit" in code)


def test_a_forked_child_has_its_own() -> None:
    code = """
child = os.fork()
if child == 0:
    refused = 0
    for call in (pending.wait, lambda: hand_over.begin(1, on_host_LE=np.ones((2, 1), "?"))):
        try:
            call()
        except ArgumentError:
            refused += 1
    words = words.copy()
    mine = new()
    step = mine.begin(1, on_host_LE=np.ones((2, 1), "?"))
    for layer in range(2):
        mine.ask(layer)
        mine.wait_answer(layer, 60)
    step.wait(60)
    os._exit(7 if refused == 2 else 1)
_, status = os.waitpid(child, 0)
for layer in range(2):
    hand_over.ask(layer)
    hand_over.wait_answer(layer, 60)
pending.wait(60)
print(os.waitstatus_to_exitcode(status))
"""
    result = run_script(code)
    assert (result.stdout, result.stderr) == ("7\n", "")
