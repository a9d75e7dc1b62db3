"""Asking another system's layer for single calls, with a script that plays the other system."""

import json
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.kernels import peer_layers
from benchmarks.kernels.layers import LayerShape, expected_touched, routings
from benchmarks.kernels.peer_layers import PeerFailed, PeerKind, PeerLayer

SHAPE = LayerShape(hidden=8, intermediate=4, experts=16, top_k=3)

SCRIPT = """
import json, sys, types
import moe_layer
print("chatter")
arguments = dict(zip(sys.argv[2::2], sys.argv[3::2]))
assert sys.argv[0].endswith("/moe_peer.py"), sys.argv
assert arguments == {"--shape": "8/4/16/3", "--threads": "2"}, arguments
if sys.argv[1] == "broken":
    sys.exit("no such variant")
log = open(__file__ + ".calls", "w")

def call(index, inputs):
    log.write(json.dumps([index, inputs]) + "\\n")
    log.flush()

def prepare(ids, weights):
    return [ids.tolist(), [round(float(w), 4) for row in weights for w in row]]

if hasattr(moe_layer, "check_inputs"):
    import torch
    shape = types.SimpleNamespace(hidden=8, intermediate=4, experts=16, top_k=3)
    gate_up = moe_layer.random_weights(shape, 8, 8)
    down = moe_layer.random_weights(shape, 8, 4)
    x, ids, weights = moe_layer.check_inputs(shape, lambda i, w: (torch.randn(2, 8), i, w))
    result = x * gate_up[0, 4, 0] + down[15, 7, 3] + ids[1, 2] + weights[1, 2]
    moe_layer.relative_error(shape, x, ids, weights, result, gate_up, down)
recorder = types.SimpleNamespace(peer="peer", version="1.2")
moe_layer.measure(recorder, None, sys.argv[1], None, prepare, call, bytes_per_weight=1,
                  operand="int8")
raise AssertionError("measure returns only when the questions end")
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Scripts, and an environment whose Python is this one."""
    (tmp_path / "moe_layer.py").write_text("def measure(*a, **k): raise AssertionError\n")
    (tmp_path / "moe_peer.py").write_text(textwrap.dedent(SCRIPT))
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(peer_layers, "ENVIRONMENTS", tmp_path)
    return tmp_path


def kind(**fields: Any) -> PeerKind:
    about = {"script": "moe_peer.py", "variant": "fast", "environment": "environment"}
    return PeerKind(**{**about, "idle_s": 0.0, **fields})


def test_calls_get_the_routing_they_are_asked_with(folder: Path) -> None:
    drawn = routings(SHAPE, tokens=2, calls=2, seed=0)
    asked = [next(drawn), next(drawn)]
    with PeerLayer(folder, kind(), SHAPE.sizes, 2) as peer:
        assert peer.label == "peer 1.2 fast"
        for ids, weights in asked:
            taken = peer.milliseconds(ids, weights)
            assert len(taken) == 2 and min(taken) > 0
    calls = [json.loads(line) for line in (folder / "moe_peer.py.calls").read_text().splitlines()]
    assert [index for index, _ in calls] == [0, 1, 2, 3]
    expected = [ids_TK.tolist() for ids, _ in asked for ids_TK in ids]
    assert [inputs[0] for _, inputs in calls] == expected
    assert calls[0][1][1] == [round(float(w), 4) for w in asked[0][1][0].flat]


def test_a_check_uses_our_weights_and_inputs(folder: Path) -> None:
    rng = np.random.default_rng(0)
    check = folder / "check"
    check.mkdir()
    # Whole numbers: exact in bf16.
    arrays = {
        name: rng.integers(0, 9, size).astype(np.float32)
        for name, size in {
            "gate": (16, 4, 8), "up": (16, 4, 8), "down": (16, 8, 4), "x": (2, 8), "weights": (2, 3)
        }.items()
    }  # fmt: skip
    for name, array in arrays.items():
        array.tofile(check / name)
    np.arange(6, dtype=np.int64).tofile(check / "ids")
    with PeerLayer(folder, kind(), SHAPE.sizes, 2, check):
        out = np.fromfile(check / "out", np.float32).reshape(2, 8)
    up, down, weight = arrays["up"][0, 0, 0], arrays["down"][15, 7, 3], arrays["weights"][1, 2]
    assert np.array_equal(out, arrays["x"] * up + down + 5 + weight)


def test_a_peer_that_cannot_run_says_why(folder: Path) -> None:
    with pytest.raises(PeerFailed, match="moe_peer.py broken: (.|\n)*no such variant"):
        PeerLayer(folder, kind(variant="broken"), SHAPE.sizes, 2)
    with pytest.raises(PeerFailed, match="elsewhere/bin/python is missing"):
        PeerLayer(folder, kind(environment="elsewhere"), SHAPE.sizes, 2)
    with pytest.raises(PeerFailed, match="no libggml.so"):
        PeerLayer(folder, kind(script="moe_ggml.cpp"), SHAPE.sizes, 2)


def test_routings_are_distinct_experts_the_same_for_every_side() -> None:
    first, again = (routings(SHAPE, tokens=5, calls=2, seed=1) for _ in range(2))
    for _ in range(3):
        (ids, weights), (ids_again, weights_again) = next(first), next(again)
        assert ids.shape == weights.shape == (2, 5, 3)
        assert all(len(set(chosen)) == 3 for chosen in ids.reshape(-1, 3).tolist())
        assert np.array_equal(ids, ids_again) and np.array_equal(weights, weights_again)
    assert not np.array_equal(ids, next(first)[0])


def test_expected_number_of_touched_experts() -> None:
    assert expected_touched(SHAPE, 1) == 3
    drawn = routings(SHAPE, tokens=4, calls=2000, seed=1)
    mean = np.mean([len(np.unique(ids_TK)) for ids_TK in next(drawn)[0]])
    assert abs(mean - expected_touched(SHAPE, 4)) < 0.15


def test_only_the_declared_peers_of_a_point_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.kernels import moe

    monkeypatch.setattr(moe, "PeerLayer", lambda *about: SimpleNamespace(about=about))
    declared = {"script": "s", "variant": "v", "environment": "e", "tokens": [1]}
    run: Any = SimpleNamespace(
        peers=Path("."),
        workload={
            "peers": [
                {**declared, "bits": 8},
                {**declared, "bits": 4},
                {**declared, "bits": 8, "hidden": [9]},
                {**declared, "bits": 8, "hidden": [8], "tokens": [4]},
            ]
        },
    )
    stack: Any = SimpleNamespace(enter_context=lambda peer: peer)
    assert [tokens for _, tokens in moe.start_peers(run, stack, SHAPE, 8)] == [[1], [4]]
    run.peers = None
    assert moe.start_peers(run, stack, SHAPE, 8) == []
