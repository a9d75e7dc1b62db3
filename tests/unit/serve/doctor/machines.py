"""Made-up machines: facts that advice is tested with."""

from dataclasses import replace
from typing import Any

from inlay.kernels.isa import IsaVariant
from inlay.serve.doctor.advice import Facts
from inlay.serve.doctor.bandwidth import Bandwidth
from inlay.serve.doctor.cpu import Cpu
from inlay.serve.doctor.disk import Disk
from inlay.serve.doctor.gpu import Gpu, Gpus
from inlay.serve.doctor.kernels import Kernels
from inlay.serve.doctor.memory import Memory, NumaNode
from inlay.serve.doctor.software import OPTIONAL, REQUIRED, Software
from inlay.serve.doctor.store import StoreRoom
from inlay.serve.doctor.transports import TransportState

GIB = 2**30

HEALTHY = Facts(
    cpu=Cpu(
        model="Example 9000",
        architecture="x86_64",
        features=("avx2", "avx512f"),
        cores_online=8,
        affinity="0-7",
        affinity_cores=8,
        physical_cores=8,
        quota_cores=None,
        usable_cores=8,
        l2_bytes=2**20,
        l3_bytes=32 * 2**20,
        governor=None,
        hypervisor=True,
        load_1m=0.1,
    ),
    memory=Memory(
        total_bytes=64 * GIB,
        available_bytes=50 * GIB,
        limit_bytes=None,
        swap_bytes=0,
        transparent_huge_pages="madvise",
        huge_pages_total=0,
        huge_pages_free=0,
        huge_page_bytes=2 * 2**20,
        numa_nodes=(
            NumaNode(
                node=0, cpus="0-7", total_bytes=64 * GIB, free_bytes=50 * GIB, distances=(10,)
            ),
        ),
    ),
    bandwidth=Bandwidth(
        read_gbs=40.0,
        read_one_core_gbs=12.0,
        threads=8,
        buffer_bytes=2**29,
        method="made up",
    ),
    disk=Disk(
        cache_dir="/cache",
        filesystem="ext4",
        total_bytes=500 * GIB,
        free_bytes=300 * GIB,
        write_gbs=1.0,
        read_gbs=2.0,
        measured_bytes=2**28,
        method="made up",
        problem=None,
    ),
    gpus=Gpus(devices=(), problem=None),
    software=Software(
        inlay="0.1.0",
        python="3.11",
        kernel="Linux 6",
        libc="glibc 2.36",
        packages={name: "1.0" for name in (*REQUIRED, *OPTIONAL)},
        torch_cuda=None,
        compiler="g++",
    ),
    kernels=Kernels(
        native=True,
        why_not=None,
        selected="avx512",
        available=("scalar", "avx2", "avx512"),
        compiled=("scalar", "avx2", "avx512", "amx"),
        variants=(
            IsaVariant("scalar", "", "plain", "plain", "plain"),
            IsaVariant("avx2", "", "vpmaddubsw", "fma", "fma"),
            IsaVariant("avx512", "", "vpmaddubsw", "fma", "fma"),
            IsaVariant("amx", "this processor does not offer amx_tile", "tiles", "tiles", "fma"),
        ),
        features=("avx2", "avx512f"),
        threads=8,
        nodes=1,
        forced=None,
        problem=None,
        switched_off=False,
    ),
    transports=(
        TransportState(name="fabric", problem="there is no RDMA device", ports=("tcp lo",)),
        TransportState(name="shm", problem=None, lacks="registered memory goes over tcp"),
        TransportState(name="tcp", problem=None),
    ),
    store=StoreRoom(
        directory="/dev/shm/inlay-1000/store",
        free_bytes=32 * GIB,
        total_bytes=32 * GIB,
        left_bytes=0,
        huge_pages="advise",
    ),
)

GPU = Gpu(
    name="Example GPU",
    memory_total_bytes=80 * GIB,
    memory_free_bytes=79 * GIB,
    driver="570.1",
    compute_capability="9.0",
)


def machine(**changes: dict[str, Any]) -> Facts:
    """The healthy machine with some fields of some parts changed."""
    parts = {part: replace(getattr(HEALTHY, part), **fields) for part, fields in changes.items()}
    return replace(HEALTHY, **parts)
