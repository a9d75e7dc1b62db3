"""Choosing a kernel variant, and the thread pool."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from inlay import kernels
from inlay.core.errors import ArgumentError
from inlay.kernels.isa import isa_variants
from tests.native.cases import floats
from tests.native.conftest import VARIANTS

AMX = ("amx_tile", "amx_int8", "amx_bf16")


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def test_the_best_available_variant_is_selected() -> None:
    assert kernels.selected_isa() == kernels.available_isas()[-1]
    assert set(kernels.available_isas()) <= set(kernels.compiled_isas())
    assert "scalar" in kernels.available_isas()
    assert "amx_emulated" in kernels.available_isas()[:-1]


def test_the_forced_variant_is_the_one_that_runs(isa: str) -> None:
    assert kernels.selected_isa() == isa


def test_environment_forces_a_variant() -> None:
    result = run_python("import inlay.kernels as k; print(k.selected_isa())", INLAY_ISA="scalar")
    assert result.stdout == "scalar\n"


@pytest.mark.parametrize("isa", VARIANTS)
def test_a_variant_beyond_this_processor_is_refused_with_what_is_missing(isa: str) -> None:
    variant = next(variant for variant in isa_variants() if variant.name == isa)
    result = run_python("import inlay.kernels as k; k.selected_isa()", INLAY_ISA=isa)
    if variant.problem:
        assert result.returncode == 1
        assert f"INLAY_ISA: '{isa}' cannot run here: {variant.problem}" in result.stderr
    else:
        assert result.returncode == 0, result.stderr
    missing = [name for name in AMX if name not in kernels.cpu_features()]
    assert isa != "amx" or all(name in variant.problem for name in missing)


@pytest.mark.parametrize(
    "code",
    [
        "k.selected_isa()",
        "k.rms_norm(x, x[0].copy(), 1e-6, x)",
        "k.pack_linear(x, 'float32')",
        "k.pack_linear(numpy.ones((1024, 256), 'f4'), 'int8')",
        "k.pack_experts(*[numpy.ones((1, 256, 256), 'f4')] * 3, 'int4:g32')",
        "k.quantize(numpy.ones((1024, 256), 'f4'), 'int4:g32')",
    ],
)
def test_an_unknown_variant_is_refused_at_first_use(code: str) -> None:
    code = f"import numpy, inlay.kernels as k; x = numpy.ones((1, 4), 'f4'); {code}"
    result = run_python(code, INLAY_ISA="avx9")
    assert result.returncode == 1
    assert "ArgumentError: INLAY_ISA: 'avx9' is not a kernel variant" in result.stderr
    assert "scalar" in result.stderr


def test_native_can_be_switched_off() -> None:
    code = "import inlay.kernels as k; print(k.selected_isa(), k.native_problem())"
    assert run_python(code, INLAY_NATIVE="0").stdout == "numpy switched off by INLAY_NATIVE=0\n"


def test_force_isa_restores_and_refuses() -> None:
    before = kernels.selected_isa()
    with pytest.raises(ArgumentError, match="no-such"), kernels.force_isa("no-such"):
        pass
    assert kernels.selected_isa() == before


def test_number_of_threads(threads: None) -> None:
    assert 1 <= kernels.usable_processors() <= (os.cpu_count() or 1)
    for count in (1, 4, 2):
        kernels.set_num_threads(count)
        assert kernels.num_threads() == count
    for bad in (0, -1, 2000):
        with pytest.raises(ArgumentError, match="num_threads"):
            kernels.set_num_threads(bad)
    with pytest.raises(ArgumentError, match="spin_us"):
        kernels.set_spin_us(-1)


FEW_THREADS = """
import os, resource, numpy as np
from inlay import kernels as k
from inlay._native import kernels as native
from inlay.core.errors import ResourceError
x, out = np.ones((4, 64), "f4"), np.zeros((4, 256), "f4")
weight = np.ones((256, 64), "f4")
limit = lambda mib: resource.setrlimit(
    resource.RLIMIT_AS,
    (int(open("/proc/self/statm").read().split()[0]) * 4096 + (mib << 20), resource.RLIM_INFINITY))
def refused(call):
    try:
        call()
    except ResourceError as error:
        assert "refuses another thread" in str(error)
        return True
"""


def test_threads_that_the_system_refuses() -> None:
    code = """
k.set_num_threads(3)
threads = len(os.listdir("/proc/self/task"))
limit(200)
assert refused(lambda: k.set_num_threads(500))
assert refused(lambda: native.MemoryProbe(500))
assert k.num_threads() == 3
assert len(os.listdir("/proc/self/task")) == threads
k.set_num_threads(2)
k.linear(x, k.pack_linear(weight), out)
print((out == 64).all(), k.num_threads())
"""
    result = run_python(FEW_THREADS + code)
    assert (result.stdout, result.stderr) == ("True 2\n", "")


def test_a_pool_that_the_system_refuses() -> None:
    code = """
limit(4)
for call in (k.num_threads, lambda: native.ExpertWeights(1, 64, 64), lambda: k.pack_linear(weight)):
    assert refused(call)
limit(4000)
k.linear(x, k.pack_linear(weight), out)
print((out == 64).all(), k.num_threads() == k.usable_processors())
"""
    if kernels.usable_processors() < 2:
        pytest.skip("a pool of one thread starts none")
    result = run_python(FEW_THREADS + code, OPENBLAS_NUM_THREADS="1")
    assert (result.stdout, result.stderr) == ("True True\n", "")


def test_a_queue_that_the_system_refuses() -> None:
    code = """
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # a pool of one thread, which starts none
experts = native.ExpertWeights(1, 64, 64)
ids, routing, y = np.zeros((4, 1), "i4"), np.ones((4, 1), "f4"), np.ones((4, 64), "f4")
submit = lambda: k.submit_moe(x, experts, ids, routing, y)
limit(4)
assert refused(submit)
limit(4000)
submit().wait()
print(y.any())
"""
    result = run_python(FEW_THREADS + code, OPENBLAS_NUM_THREADS="1")
    assert (result.stdout, result.stderr) == ("False\n", "")


def test_nodes_are_the_machines_at_first() -> None:
    processors = [processor for node in kernels.topology() for processor in node]
    assert sorted(processors) == sorted(set(processors))
    assert set(processors) <= os.sched_getaffinity(0)
    assert 1 <= kernels.usable_processors() <= len(processors)


def test_chosen_nodes(threads: None) -> None:
    machine, cores = kernels.topology(), kernels.usable_processors()
    everywhere = sorted(os.sched_getaffinity(0))
    kernels.set_topology([everywhere[:1]])
    assert kernels.topology() == [everywhere[:1]]
    assert kernels.usable_processors() == kernels.num_threads() == 1
    kernels.set_topology([everywhere] * 3)
    assert kernels.topology() == [everywhere] * 3
    assert kernels.usable_processors() == kernels.num_threads() == cores
    kernels.set_num_threads(5)
    assert kernels.num_threads() == 5
    kernels.set_topology(None)
    assert kernels.topology() == machine
    assert kernels.num_threads() == cores


@pytest.mark.parametrize("nodes", [[], [[]], [[0], []], [[0]] * 65, [[-1]], [[100000]]])
def test_nodes_that_cannot_be(nodes: list[list[int]]) -> None:
    before = kernels.topology()
    with pytest.raises(ArgumentError, match="nodes: "):
        kernels.set_topology(nodes)
    assert kernels.topology() == before


def test_results_do_not_depend_on_nodes(rng: np.random.Generator, threads: None) -> None:
    processors = sorted(os.sched_getaffinity(0))
    x = floats(rng, 37, 256)
    kernels.set_num_threads(1)
    weight = kernels.pack_linear(floats(rng, 1000, 256))
    expected = np.empty((37, 1000), np.float32)
    kernels.linear(x, weight, expected)
    for nodes in ([processors[:1], processors[-1:]], [processors] * 3):
        kernels.set_topology(nodes)
        for count in (1, 2, 7):
            kernels.set_num_threads(count)
            out = np.empty_like(expected)
            kernels.linear(x, weight, out)
            np.testing.assert_array_equal(out, expected)


def test_experts_packed_on_other_nodes(rng: np.random.Generator, threads: None) -> None:
    processors = sorted(os.sched_getaffinity(0))
    sizes = (3, 200, 130), (3, 200, 130), (3, 130, 200)
    gate, up, down = (floats(rng, *size) for size in sizes)
    x, ids = floats(rng, 37, 130), rng.integers(0, 3, (37, 2)).astype(np.int32)
    routing = np.ones((37, 2), np.float32)
    results = []
    for packed_on in (1, 2, 3):
        kernels.set_topology([processors] * packed_on)
        experts = kernels.pack_experts(gate, up, down)
        outs = []
        for nodes in (1, 2, 3, 5):
            kernels.set_topology([processors] * nodes)
            for count in (1, 2, 7):
                kernels.set_num_threads(count)
                outs.append(np.empty_like(x))
                kernels.moe(x, experts, ids, routing, outs[-1])
        for out in outs[1:]:
            np.testing.assert_array_equal(out, outs[0])
        results.append(outs[0])
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-4, atol=1e-4 * results[0].std())


def test_affinity_limits_the_threads() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "import inlay.kernels as k; print(k.num_threads())"
    )
    assert run_python(code).stdout == "1\n"


def test_several_python_threads_at_once(rng: np.random.Generator, threads: None) -> None:
    kernels.set_num_threads(3)
    x = floats(rng, 64, 256)
    weight = kernels.pack_linear(floats(rng, 512, 256))
    expected = np.empty((64, 512), np.float32)
    kernels.linear(x, weight, expected)
    wrong: list[int] = []

    def work(index: int) -> None:
        out = np.empty_like(expected)
        for _ in range(50):
            out[:] = 0
            kernels.linear(x, weight, out)
            if not np.array_equal(out, expected):
                wrong.append(index)

    callers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_a_forked_child_computes() -> None:
    code = """
import os, numpy as np, inlay.kernels as k
k.set_num_threads(3)
x, w = np.ones((64, 256), "f4"), k.pack_linear(np.ones((512, 256), "f4"))
out = np.empty((64, 512), "f4")
k.linear(x, w, out)
child = os.fork()
out[:] = 0
k.linear(x, w, out)
good = (out == 256).all()
if child == 0:
    os._exit(0 if good else 1)
_, status = os.waitpid(child, 0)
print(good, os.waitstatus_to_exitcode(status))
"""
    assert run_python(code).stdout == "True 0\n"


def test_sleeping_workers_use_no_time(threads: None) -> None:
    code = """
import time, numpy as np, inlay.kernels as k
k.set_num_threads(2)
x, w = np.ones((64, 256), "f4"), k.pack_linear(np.ones((512, 256), "f4"))
out = np.empty((64, 512), "f4")
k.linear(x, w, out)
begin = time.process_time()
time.sleep(0.3)
print(time.process_time() - begin < 0.05)
"""
    assert run_python(code).stdout == "True\n"
