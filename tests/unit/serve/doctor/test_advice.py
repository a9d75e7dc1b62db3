import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from inlay.serve.doctor.advice import Facts, find, make_plan
from inlay.serve.doctor.report import as_dict, print_report
from inlay.serve.doctor.weights import Weights
from tests.unit.serve.doctor.machines import GIB, GPU, HEALTHY, machine


def test_a_healthy_machine_has_notes_only() -> None:
    assert [(finding.level, finding.topic) for finding in find(HEALTHY)] == [("note", "GPU")]


@pytest.mark.parametrize(
    ("facts", "level", "message", "fix"),
    [
        (machine(cpu={"quota_cores": 2.0, "usable_cores": 2}), "warning", "quota of 2", "--cpus"),
        (
            machine(cpu={"cores_online": 16, "affinity": "0-7"}),
            "note",
            "8 of 16 processors (0-7)",
            "taskset -c 0-15",
        ),
        (machine(cpu={"physical_cores": 4}), "note", "on 4 cores", "--threads 4"),
        (
            machine(cpu={"governor": "powersave", "hypervisor": False}),
            "note",
            "powersave",
            "cpupower",
        ),
        (machine(cpu={"load_1m": 9.0}), "note", "load 9.0 on 8 cores", None),
        (machine(memory={"limit_bytes": 8 * GIB}), "note", "limit of 8.0 GiB", None),
        (machine(memory={"available_bytes": GIB}), "warning", "only 1.0 GiB", None),
        (
            machine(memory={"transparent_huge_pages": "never"}),
            "warning",
            "huge pages are off",
            "echo madvise | sudo tee",
        ),
        (
            machine(memory={"numa_nodes": HEALTHY.memory.numa_nodes * 2}),
            "note",
            "2 memory nodes",
            "numactl",
        ),
        (machine(disk={"free_bytes": 10**9}), "warning", "free under /cache", "INLAY_CACHE_DIR"),
        (machine(disk={"problem": "cannot write there"}), "warning", "cannot write", "INLAY"),
        (
            machine(kernels={"native": False, "selected": "numpy", "why_not": "not built"}),
            "warning",
            "not built",
            "pip install",
        ),
        (machine(kernels={"forced": "scalar"}), "note", "forces scalar", "unset INLAY_ISA"),
        (machine(kernels={"selected": "scalar"}), "warning", "none of AVX2", None),
        (
            machine(kernels={"selected": None, "problem": "no variant named avx9"}),
            "problem",
            "avx9",
            None,
        ),
        (
            machine(software={"packages": HEALTHY.software.packages | {"torch": None}}),
            "problem",
            "not installed: torch",
            "pip install torch",
        ),
        (machine(gpus={"devices": (GPU,)}), "warning", "torch is a CPU build", "torch==1.0"),
        (machine(store={"free_bytes": 64 * 2**20}), "warning", "only 64.0 MiB", "--shm-size"),
        (machine(store={"problem": "/dev/shm: gone"}), "warning", "/dev/shm: gone", "tmpfs"),
        (machine(store={"huge_pages": "never"}), "note", "small pages", "echo advise | sudo tee"),
        (machine(gpus={"problem": "nvidia-smi failed: no"}), "warning", "failed: no", "driver"),
    ],
)
def test_what_holds_a_machine_back(facts: Facts, level: str, message: str, fix: str | None) -> None:
    (finding,) = [finding for finding in find(facts) if message in finding.message]
    assert finding.level == level
    assert (finding.fix is None) == (fix is None)
    assert fix is None or fix in (finding.fix or "")


def test_the_gravest_comes_first() -> None:
    facts = machine(
        kernels={"problem": "broken"}, cpu={"physical_cores": 4}, disk={"free_bytes": 1}
    )
    levels = [finding.level for finding in find(facts)]
    assert levels == sorted(levels, key=["problem", "warning", "note"].index)


def test_plan_on_the_cpu() -> None:
    plan = make_plan(HEALTHY)
    assert (plan.device, plan.kernels, plan.threads) == ("cpu", "avx512", 8)
    assert plan.largest_bf16_parameters == int(50 * GIB * 0.8 / 2)
    assert plan.decode_ceiling_tps == 20.0


def test_plan_with_a_gpu_that_torch_can_use() -> None:
    facts = machine(gpus={"devices": (GPU,)}, software={"torch_cuda": "12.8"})
    plan = make_plan(facts)
    assert (plan.device, plan.device_name) == ("cuda", "Example GPU")
    assert plan.memory_bytes == 79 * GIB and plan.decode_ceiling_tps is None
    assert not [finding for finding in find(facts) if finding.topic == "GPU"]


def test_damaged_weights_are_a_problem() -> None:
    weights = Weights(file="m", size_bytes=1, seconds=0.1, problem="m: is damaged")
    (finding, *_) = find(replace(HEALTHY, weights=weights))
    assert (finding.level, finding.topic, finding.message) == (
        "problem",
        "weights",
        "m: is damaged",
    )


def test_both_forms_of_the_report() -> None:
    facts = machine(gpus={"devices": (GPU,)}, cpu={"quota_cores": 2.0}, kernels={"nodes": 2})
    weights = Weights(file="m/weights.inlay", size_bytes=3 * GIB, seconds=1.5, problem=None)
    facts = replace(facts, weights=weights)
    plan, findings = make_plan(facts), find(facts)
    out = io.StringIO()
    print_report(Console(file=out, width=100), facts, plan, findings)
    text = out.getvalue()
    for expected in (
        "Example 9000",
        "Example GPU",
        "fix: ",
        "quota 2",
        "8, spread over 2 NUMA",
        "read 40.0 GB/s with 8 threads, 12.0 GB/s with one",
        "vpmaddubsw",
        "selected",
        "does not offer amx_tile",
        "there is no RDMA device (found: tcp lo)",
        "works, but registered memory goes over tcp",
        "32.0 GiB free of 32.0 GiB for nodes at /dev/shm/inlay-1000/store; huge pages",
        "m/weights.inlay fits its checksums (3.0 GiB read in 1.5 s)",
    ):
        assert expected in text
    document = json.loads(json.dumps(as_dict(facts, plan, findings)))
    assert document["schema"] == 2
    assert list(document) == [
        "schema", "software", "cpu", "kernels", "memory", "bandwidth", "gpu", "disk",
        "transports", "store", "weights", "plan", "findings",
    ]  # fmt: skip
    assert document["gpu"]["devices"][0]["memory_total_bytes"] == 80 * GIB
