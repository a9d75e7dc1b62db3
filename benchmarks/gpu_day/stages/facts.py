"""The machine: what it is, and the ceilings of what Inlay does there."""

import shutil
import subprocess
import sys

import torch

from benchmarks.gpu_day.stage import Context
from benchmarks.kernels.gpu_limits import copy_to_gpu_gbs, copy_to_host_gbs, measure_limits
from inlay import kernels

COMMANDS = (
    "nvidia-smi",
    "nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.gen.max,"
    "pcie.link.width.current,clocks.sm,clocks.max.sm,power.limit --format=csv",
    "nvidia-smi topo -m",
    "lscpu",
    "free -g",
    "df -h /dev/shm /tmp",
    "uname -r",
    "ldd --version",
    "numactl -H",
    f"{sys.executable} -m pip list",
)
MOST_TEXT = 4000
COPIED_BYTES = 256 << 20


def run(context: Context) -> None:
    """Facts alone; what fails is said and stops nothing else."""
    context.machine("triton", "transformers")
    for command in COMMANDS:
        if shutil.which(command.split()[0]) is None:
            context.left_out(command, "there is no such program")
            continue
        done = subprocess.run(command.split(), capture_output=True, text=True, timeout=20)
        context.fact(command, (done.stdout + done.stderr).strip()[:MOST_TEXT])
    with context.checking("the GPU's ceilings"):
        device = torch.device(context.device)
        limits = measure_limits(device)
        context.fact("copy in the GPU's memory, read and written, GB/s", limits.copy_gbs)
        context.fact("products in bf16, TFLOP/s", limits.products_tflops)
        cuda = device.type == "cuda"
        data = torch.zeros(COPIED_BYTES if cuda else 1 << 20, dtype=torch.uint8, device=device)
        for page_locked in (True, False) if cuda else (False,):
            memory = "page-locked" if page_locked else "pageable"
            to_gpu = copy_to_gpu_gbs(data, page_locked=page_locked)
            to_host = copy_to_host_gbs(data, page_locked=page_locked)
            context.fact(f"{memory} memory to the GPU, GB/s", to_gpu)
            context.fact(f"the GPU to {memory} memory, GB/s", to_host)
    with context.checking("the processors' instructions"):
        context.fact("instruction set", kernels.selected_isa())
        context.fact("instruction sets with kernels", list(kernels.available_isas()))
        context.fact("threads", kernels.num_threads())
