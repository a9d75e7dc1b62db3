"""The doors without the compiled extension: the references serve, and say so."""

import os
import subprocess
import sys

CODE = """
import numpy as np
from inlay import kernels as k
from inlay.core.errors import ArgumentError
from inlay.core.kv_format import gqa_format

assert k.native_problem() == "switched off by INLAY_NATIVE=0"
assert (k.selected_isa(), k.available_isas(), k.num_threads()) == ("numpy", [], 1)
k.set_num_threads(4)
x, out = np.ones((2, 4), np.float32), np.empty((2, 3), np.float32)
k.linear(x, k.pack_linear(np.ones((3, 4), np.float32)), out, bias_N=np.ones(3, np.float32))
assert (out == 5).all()
experts = k.pack_experts(*(np.ones((2, 4, 4), np.float32),) * 3)
mixed = np.empty((2, 4), np.float32)
ids, weights = np.empty((2, 1), np.int32), np.empty((2, 1), np.float32)
k.router_topk(x, 1, True, ids, weights)
k.moe(x, experts, ids % 2, weights, mixed)
two = (np.ones((2, 2, 4), np.float32), np.zeros((2, 2, 1), np.int32), np.ones((2, 2, 1), "f4"))
sums, words = np.zeros((2, 2, 4), np.float32), np.zeros((2, 2), np.uint32)
hand_over = k.HandOver([experts] * 2, *two, sums, words)
step = hand_over.begin(2, on_host_LE=np.ones((2, 2), np.bool_))
assert not step.done
for layer in range(2):
    hand_over.ask(layer)
    hand_over.wait_answer(layer, 60)
step.wait()
assert (sums == mixed).all() and hand_over.busy_s > 0
k.rms_norm(mixed, np.ones(4, np.float32), 1e-6, mixed)
assert np.allclose(mixed, 1)
geometry = k.kv_geometry(gqa_format(layers=1, kv_heads=1, head_dim=4, dtype="float32"), 4)
assert geometry.page_bytes == 2 * 16 * 4 * 4
pool = np.zeros((1, geometry.page_bytes), np.uint8)
qkv, table = np.ones((2, 12), np.float32), np.ones((2, 2), np.float32)
k.rope_and_store(
    qkv, np.arange(2, dtype=np.int32), table, table, pool, geometry, 0, np.arange(2)
)
attended = np.empty((2, 1, 4), np.float32)
k.paged_attention(
    qkv[:, :4].reshape(2, 1, 4), pool, geometry, 0, np.zeros((1, 1), np.int32),
    np.array([0, 2], np.int32), np.array([2], np.int32), 0.5, attended,
)
assert (attended == 1).all()
assert len(k.block_hash_chain(b"key", bytes(16), list(range(33)))) == 32
forms = [list(range(33)), tuple(range(33)), range(33), np.arange(33, dtype="<u4").tobytes()]
assert len({k.block_hash_chain(b"key", bytes(16), form) for form in forms}) == 1
try:
    k.linear(x, k.pack_linear(np.ones((3, 5), np.float32)), out)
except ArgumentError as error:
    print(error)
"""


def test_references_serve_without_the_extension() -> None:
    result = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "INLAY_NATIVE": "0"},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("x_TK: has shape (2, 4)")
