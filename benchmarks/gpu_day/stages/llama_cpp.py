"""llama.cpp's CUDA build on the file that the stage `models` loads, where the kit has the build."""

import os
import subprocess
import sysconfig
import tarfile
from pathlib import Path

from benchmarks.experts.on_gpu import PEER, model_of, peer_rates, points_by_way
from benchmarks.gpu_day.kit import LLAMA_CPP
from benchmarks.gpu_day.stage import CannotRunError, Context
from benchmarks.gpu_day.write_model import SHAPE, SMALL_LAYERS, model_folder, the_run
from benchmarks.models.rates import LLAMA_BENCH

LAYERS = 48
LEAST_S = 35.0  # to load the file and serve its batches


def run(context: Context) -> None:
    """A share of experts on the GPU after the other, each in a process of the peer's."""
    archive = Path(os.environ["GPU_DAY_KIT"]) / LLAMA_CPP
    if not archive.exists():
        raise CannotRunError(f"the kit has no {LLAMA_CPP}: prepare it with --llama-cpp ARCHIVE")
    program = unpack(archive, context.folder("peers") / PEER)
    os.environ["LD_LIBRARY_PATH"] = ":".join([str(program.parent), *library_folders()])
    of_case = the_run(context.rehearsal, peers=context.work)
    layers = SMALL_LAYERS if context.rehearsal else LAYERS
    shape = model_of(of_case, SHAPE, layers).shape
    folder = model_folder(context.work, LAYERS)
    shares = [way.gpu_share for way in points_by_way(of_case) if way.layers == layers]
    for share in dict.fromkeys(shares):
        context.need(5 if context.rehearsal else LEAST_S, f"{share:.0%} of the experts on the GPU")
        with context.checking(f"{share:.0%} of the experts on the GPU"):
            ((label, rates),) = peer_rates(of_case, shape, folder, [share]).values()
            context.peer(label=label, layers=layers, gpu_share=share, rates=rates)


def unpack(archive: Path, environment: Path) -> Path:
    """Put the build where peers are looked for."""
    program = environment / LLAMA_BENCH
    program.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        tar.extractall(program.parent, filter="data")
    version = subprocess.run([str(program), "--version"], capture_output=True, text=True)
    said = (version.stdout + version.stderr).strip().splitlines()
    (environment / "version").write_text(said[0] if said else archive.name)
    return program


def library_folders() -> list[str]:
    """Where PyTorch's packages have CUDA's libraries, and where the toolkit does."""
    packages = Path(sysconfig.get_path("purelib"))
    found = {str(file.parent) for file in packages.glob("nvidia/**/libcublas.so*")}
    return [*sorted(found), "/usr/local/cuda/lib64"]
