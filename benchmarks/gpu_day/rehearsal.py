"""Runs a kit here, in an environment like the machine's, with stand-ins for a GPU.

What goes wrong on the machine then is CUDA's doing alone. The environment is kept under
`build/gpu_day`: PyTorch for CUDA is gigabytes.
"""

import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_day import core
from benchmarks.gpu_day.kit import TREE, TREE_NAME, KitError, read_manifest

BUDGET_S = 415.0

# What the machine's image has of what stages import, in its versions where those have mattered.
THERE = (
    "torch==2.11.0", "triton==3.6.0", "numpy==2.5.2", "transformers==5.17.0",
    "huggingface_hub==1.33.0", "tokenizers==0.23.2", "safetensors==0.8.0", "accelerate", "aiohttp",
    "anyio", "cmake", "httpx", "hypothesis", "jinja2", "markdown-it-py", "nanobind", "ninja",
    "peft", "prometheus-client", "psutil", "pyarrow", "pygments", "pytest", "pytest-benchmark",
    "pytest-timeout", "pytest-xdist", "pyyaml", "requests", "rich", "scikit-build-core", "tqdm",
    "typer", "uvloop", "xxhash",
)  # fmt: skip

# Triton 3.6 has a GPU's kernels interpreted with NumPy up to 2.3 alone; compiled ones need none.
INTERPRETER = ("numpy==2.3.5",)


def rehearse(root: Path, kit: Path, python: str | None, out: Path, stages: Sequence[str]) -> int:
    """Unpack the kit's tree and run it there.

    Args:
        python: makes the environment; see `core.find_python`.
        out: as of `run`.
        stages: by name; none for all.

    Returns:
        The status of `run`: 0 if each stage passed or said why it could not run.
    """
    read_manifest(kit)
    if not (kit / TREE).exists():
        raise KitError(f"{kit / TREE} is missing: a rehearsal runs what the kit holds")
    here, stand_ins = environments(root / "build" / "gpu_day", core.find_python(python))
    with tempfile.TemporaryDirectory(prefix="gpu-day-") as name:
        with tarfile.open(kit / TREE) as tar:
            tar.extractall(name, filter="data")
        command = [
            str(here), f"{name}/{TREE_NAME}/tools/gpu_day", "run", "--kit", str(kit.resolve()),
            "--budget", str(BUDGET_S), "--work", f"{name}/work", "--out", str(out.resolve()),
            "--stand-ins", str(stand_ins), *stages,
        ]  # fmt: skip
        begin_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        status = subprocess.run(command, check=False).returncode
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"rehearsed in {time.monotonic() - begin_s:.0f} s, {cpu_s:.0f} s of processors; see {out}"
    )
    return status


def environments(folder: Path, python: Path) -> tuple[Path, Path]:
    """The Python of an environment like the machine's, and a folder of what lies over it for
    Triton's interpreter. Made once: gigabytes are downloaded.

    Raises:
        KitError: pip failed.
    """
    environment, stand_ins = folder / "environment", folder / "interpreter"
    there = environment / "bin" / "python"
    if not _done(environment, THERE):
        print(f"making {environment}: PyTorch for CUDA is gigabytes", flush=True)
        _call([str(python), "-m", "venv", "--clear", str(environment)])
        _call([str(there), "-m", "pip", "install", "--quiet", "--no-compile", *THERE])
        _stamp(environment, THERE)
    if not _done(stand_ins, INTERPRETER):
        target = ["--no-deps", "--upgrade", "--target", str(stand_ins)]
        _call([str(there), "-m", "pip", "install", "--quiet", *target, *INTERPRETER])
        _stamp(stand_ins, INTERPRETER)
    return there, stand_ins


def _done(folder: Path, packages: Sequence[str]) -> bool:
    stamp = folder / "packages.txt"
    return stamp.exists() and stamp.read_text() == "\n".join(packages)


def _stamp(folder: Path, packages: Sequence[str]) -> None:
    (folder / "packages.txt").write_text("\n".join(packages))


def _call(command: list[str]) -> None:
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise KitError(f"{' '.join(command)} failed")
