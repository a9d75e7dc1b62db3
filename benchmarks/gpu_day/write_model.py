"""Writes a random model that stages load, as a program of its own: LAYERS FOLDER [--small].

The shape is Qwen3-30B-A3B's, with so many layers, in the forms that experts/on_gpu declares.
"""

import argparse
import shutil
from pathlib import Path

from benchmarks.case import Run, load_case
from benchmarks.experts.on_gpu import model_of, write_model

SHAPE = "qwen3-30b-a3b"
SMALL_LAYERS = 2
CASE = "experts/on_gpu"


def the_run(small: bool, peers: Path | None = None) -> Run:
    """The case, in a rehearsal with its quick sizes."""
    return Run(case=load_case(CASE), quick=small, peers=peers)


def model_folder(work: Path, layers: int) -> Path:
    """Where the model of so many layers is, once its job is over; in a rehearsal a small one."""
    return work / "models" / f"model-{layers}" / "model"


def main() -> None:
    """Write it, unless an earlier call did."""
    parser = argparse.ArgumentParser()
    parser.add_argument("layers", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    whole = options.folder / "whole"
    if whole.exists():
        return
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    run = the_run(options.small)
    layers = SMALL_LAYERS if options.small else options.layers
    write_model(run, model_of(run, SHAPE, layers), options.folder)
    whole.touch()


if __name__ == "__main__":
    main()
