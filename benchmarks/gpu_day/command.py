"""The command line of `tools/gpu_day`."""

import argparse
import functools
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gpu_day import archives, kit
from benchmarks.gpu_day.core import CoreError
from benchmarks.gpu_day.install import InstallError, environment, install
from benchmarks.gpu_day.kit import KitError, mib
from benchmarks.gpu_day.rehearsal import rehearse
from benchmarks.gpu_day.results import Results, ResultsError
from benchmarks.gpu_day.runner import Plan, Runner, stage_command
from benchmarks.gpu_day.stage_list import BY_NAME, JOBS, STAGES, Stage
from benchmarks.gpu_day.wheels import WheelError

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_BUDGET_S = 540.0
OUT = Path("gpu_day_out")
RESULTS, LOGS, TRACES = "results.json", "logs.tar.gz", "traces.tar.gz"


class UsageError(ValueError):
    """What was asked for cannot be done; the message says what can."""


def main() -> None:
    """Run a verb; errors end it with one line."""
    options = _parser().parse_args()
    try:
        sys.exit(options.do(options))
    except (
        CoreError, InstallError, KitError, ResultsError, UsageError, WheelError,
    ) as error:  # fmt: skip
        sys.exit(f"error: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/gpu_day", description="Spend the minutes of a bare machine with a GPU well."
    )
    verbs = parser.add_subparsers(dest="verb", required=True)

    prepare = verbs.add_parser("prepare", help="make the kit that the machine needs")
    _add_kit(prepare)
    prepare.add_argument("--python", metavar="PROGRAM", help="builds the core; default: looked for")
    prepare.add_argument("--core", type=Path, metavar="FILE", help="the core, built already")
    prepare.add_argument(
        "--llama-cpp", type=Path, metavar="ARCHIVE", help="llama.cpp's CUDA build, as tar.xz"
    )
    prepare.add_argument(
        "--rehearse", action="store_true", help="then run it all here, without a GPU"
    )
    prepare.set_defaults(do=_prepare)

    rehearsal = verbs.add_parser("rehearse", help="run the kit here, without a GPU")
    _add_kit(rehearsal)
    rehearsal.add_argument("--python", metavar="PROGRAM", help="makes the environment")
    _add_out(rehearsal)
    _add_stages(rehearsal)
    rehearsal.set_defaults(do=_rehearse)

    run = verbs.add_parser("run", help="run stages on the machine")
    _add_kit(run)
    run.add_argument("--budget", type=float, default=DEFAULT_BUDGET_S, metavar="SECONDS")
    run.add_argument("--resume", type=Path, metavar="FILE", help="results of an earlier call")
    run.add_argument(
        "--work",
        type=Path,
        metavar="DIR",
        help="models and logs; default: shared memory, or TMPDIR",
    )
    run.add_argument(
        "--stand-ins",
        type=Path,
        metavar="DIR",
        help="without a GPU, as `rehearse` does; DIR has packages for Triton's interpreter",
    )
    _add_out(run)
    _add_stages(run)
    run.set_defaults(do=_run)

    read = verbs.add_parser("read", help="print what results say, and write records")
    read.add_argument("results", type=Path)
    read.add_argument("--no-records", action="store_true", help="leave benchmarks/results as it is")
    read.set_defaults(do=_read)
    return parser


def _add_kit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kit", type=Path, default=ROOT / kit.FOLDER, metavar="DIR")


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR")


def _add_stages(parser: argparse.ArgumentParser) -> None:
    lines = "\n".join(f"  {stage.name:10} {stage.about}" for stage in STAGES)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"stages, in this order:\n{lines}"
    parser.add_argument("stages", nargs="*", metavar="STAGE")


def _prepare(options: argparse.Namespace) -> int:
    manifest = kit.prepare(
        ROOT,
        options.kit,
        python=options.python,
        built_core=options.core,
        llama_cpp=options.llama_cpp,
    )
    for part in manifest.parts:
        print(f"{mib(part.nbytes):>10}  {part.path}")
    print(f"{mib(manifest.nbytes):>10}  in all, of {manifest.commit}")
    print(
        f"\nOn the machine, with {options.kit.name} in the folder that commands start in:\n"
        f"  tar xf {options.kit.name}/{kit.TREE} -C /tmp\n"
        f"  /tmp/{kit.TREE_NAME}/tools/gpu_day run --kit {options.kit.name} --budget 540 --out OUT"
    )
    return rehearse(ROOT, options.kit, options.python, OUT, []) if options.rehearse else 0


def _rehearse(options: argparse.Namespace) -> int:
    _chosen(options.stages, with_llama_cpp=False)  # refused before gigabytes are downloaded
    return rehearse(ROOT, options.kit, options.python, options.out, options.stages)


def _run(options: argparse.Namespace) -> int:
    has_peer = (options.kit / kit.LLAMA_CPP).exists()
    stages = _chosen(options.stages, with_llama_cpp=has_peer)
    manifest = kit.read_manifest(options.kit)
    rehearsal = options.stand_ins is not None
    earlier = Results.load(options.resume) if options.resume else None
    if earlier and earlier.rehearsal != rehearsal:
        raise UsageError(f"{options.resume} is of a rehearsal: it says nothing of this machine")
    work = (options.work or work_folder()).resolve()
    for folder in (work, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    # What a limit of whoever started this ends has written what is known then.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = Results(rehearsal=rehearsal, budget_s=options.budget)
    results.save(options.out / RESULTS)
    begin_s = time.monotonic()
    results.install = install(options.kit.resolve(), manifest, ROOT, work)
    print(f"installed: {results.install}", flush=True)
    plan = Plan(
        stages=stages,
        device="cpu" if rehearsal else "cuda:0",
        commit=kit.commit_of(ROOT) if (ROOT / ".git").exists() else manifest.commit,
        tree=ROOT,
        work=work,
        environment=environment(ROOT, work) | {"GPU_DAY_KIT": str(options.kit.resolve())},
        interpreter=interpreter_environment(ROOT, work, options.stand_ins) if rehearsal else {},
        command=stage_command,
        job_command=functools.partial(job_command, work, rehearsal),
    )
    deadline_s = begin_s + options.budget
    pack = functools.partial(pack_archives, plan, options.out)
    Runner(plan, results, options.out / RESULTS, deadline_s, earlier, pack).run()
    fine = {"passed", "could not run"} if rehearsal else {"passed"}
    return 0 if {result.status for result in results.stages.values()} <= fine else 1


def pack_archives(plan: Plan, out: Path) -> None:
    """What is brought back beside the results."""
    archives.pack_logs(plan.logs, out / LOGS)
    traces = plan.work / "traces"
    files = sorted(traces.iterdir()) if traces.exists() else []
    if left_out := archives.pack(files, out / TRACES):
        print(f"too large to bring back: {', '.join(left_out)}", flush=True)


def job_command(work: Path, rehearsal: bool, name: str) -> list[str]:
    """The process that writes a random model."""
    options = ["--small"] if rehearsal else []
    module = "benchmarks.gpu_day.write_model"
    return [sys.executable, "-m", module, str(JOBS[name]), str(work / "models" / name), *options]


def interpreter_environment(tree: Path, work: Path, stand_ins: Path) -> dict[str, str]:
    """For kernels in Triton's interpreter, with packages that it can be run with in front."""
    before = environment(tree, work)["PYTHONPATH"]
    return {"TRITON_INTERPRET": "1", "PYTHONPATH": f"{stand_ins}:{before}"}


def work_folder() -> Path:
    """Where models are as quick to read as from memory: shared memory with room, or TMPDIR."""
    shared = Path("/dev/shm")
    if shared.is_dir() and shutil.disk_usage(shared).free > 30 << 30:
        return shared / "gpu_day"
    return Path(tempfile.gettempdir()) / "gpu_day"


def _chosen(names: list[str], *, with_llama_cpp: bool) -> list[Stage]:
    """The stages that were asked for, in the order of the list.

    Raises:
        UsageError: there is no such stage.
    """
    if unknown := [name for name in names if name not in BY_NAME]:
        raise UsageError(f"no stage {', '.join(unknown)}; there are: {', '.join(BY_NAME)}")
    if names:
        return [stage for stage in STAGES if stage.name in names]
    return [stage for stage in STAGES if with_llama_cpp or not stage.asked_for]


def _read(options: argparse.Namespace) -> int:
    try:
        from benchmarks.gpu_day import reading
    except ImportError as error:
        raise UsageError(
            f"reading needs the project's environment ({error}): "
            ".venv/bin/python tools/gpu_day read"
        ) from error
    results = Results.load(options.results)
    print(reading.report(results))
    if not options.no_records:
        for line in reading.write_records(results):
            print(line)
    return 0
