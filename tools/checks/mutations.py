"""Whether tests of the gate find planted faults.

    python -m tools.checks.mutations [NAME ...] [--json FILE]

Each fault of mutations.toml is written into its file, the tests that ought to find it run, and the
file is put back as it was. Use a clone in which `./tools/check set-up` has passed and that nobody
else works in: its sources are wrong meanwhile. Whole output is in build/logs/mutation-NAME.log.
"""

import argparse
import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("mutations.toml")
MOST_MISSED = 0.1  # of all, for status 0

PYTEST = (".venv/bin/python", "-m", "pytest", "-q", "-m", "not netns")
BUILD = ("bash", "-c", "set -euo pipefail; source tools/setup.sh; set_up dev")
# As tools/stages.sh does: in the folder of the package, whose next build does without them.
BUILD_TEST = ("bash", "-c", """set -euo pipefail
source tools/setup.sh
tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
folder=(build/"$tag-$tag"-*)
trap '.venv/bin/cmake -DINLAY_TESTS=OFF "${folder[0]}" >/dev/null' EXIT
.venv/bin/cmake -S . -B "${folder[0]}" -G Ninja -DCMAKE_MAKE_PROGRAM="$root/.venv/bin/ninja" \\
  -DINLAY_TESTS=ON -DINLAY_TESTS_FULL=OFF
.venv/bin/cmake --build "${folder[0]}" --parallel 2 --target "$1" || exit 3
.venv/bin/ctest --test-dir "${folder[0]}" --output-on-failure --no-tests=error --timeout "$2" \\
  -R "^$1\\$"
""", "mutations")  # fmt: skip
NOT_BUILT = 3

LIMIT_S = 600.0  # of the tests of a fault
BUILD_LIMIT_S = 3600.0
ENDING_S = 10.0  # between SIGTERM and SIGKILL

# As tests/conftest.py says it at once, else as pytest does at the end.
_FAILED = re.compile(
    r"^(?:FAILED (?P<now>.+) \((?:setup|call|teardown)\)|(?:FAILED|ERROR) (?P<end>.+?)(?: - .*)?)$",
    re.MULTILINE,
)

Run = Callable[[Sequence[str], Path, float], int | None]
"""Runs a command, adds its output to a log: its exit status, or None where it takes too long."""


class MutationError(Exception):
    """Faults cannot be planted; says why."""


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """A planted fault.

    Attributes:
        name: for the command line.
        proves: what goes wrong where nobody finds it.
        file: where it is planted, relative to the root.
        find: text that stands there exactly once.
        replace: what takes its place.
        tests: paths for pytest, and `ctest:PROGRAM`; those that ought to find it.
    """

    name: str
    proves: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]

    @property
    def is_native(self) -> bool:
        """Whether it is compiled."""
        return self.file.startswith("native/")

    @property
    def paths(self) -> list[str]:
        """Its tests in Python."""
        return [test for test in self.tests if not test.startswith("ctest:")]

    @property
    def programs(self) -> list[str]:
        """Its tests in C++."""
        return [test.removeprefix("ctest:") for test in self.tests if test.startswith("ctest:")]

    def applied(self, text: str) -> str:
        """The file's text with the fault.

        Raises:
            MutationError: what it replaces is not there, or more than once.
        """
        if (count := text.count(self.find)) != 1:
            raise MutationError(
                f"{self.name}: {self.file} holds its `find` {count} times: change {LIST.name} so "
                "that it stands there once"
            )
        return text.replace(self.find, self.replace)


@dataclass(frozen=True)
class Verdict:
    """What came of a fault.

    Attributes:
        by: what found it; None: it was missed.
    """

    mutation: Mutation
    by: str | None
    seconds: float


def read_mutations(file: Path = LIST) -> list[Mutation]:
    """The faults of a list.

    Raises:
        MutationError: a key is missing, or unknown.
    """
    with file.open("rb") as opened:
        found = tomllib.load(opened)
    if unknown := sorted(found.keys() - {"mutation"}):
        raise MutationError(f"{file.name} has the unknown key {unknown[0]!r}")
    return [
        _mutation(entry, f"{file.name}, entry {entry.get('name', number)},")
        for number, entry in enumerate(found.get("mutation", ()), 1)
    ]


def _mutation(entry: dict[str, Any], where: str) -> Mutation:
    known = {field.name for field in fields(Mutation)}
    if unknown := sorted(entry.keys() - known):
        raise MutationError(f"{where} has the unknown key {unknown[0]!r}")
    if missing := sorted(known - entry.keys()):
        raise MutationError(f"{where} lacks the key {missing[0]!r}")
    return Mutation(**entry | {"tests": tuple(entry["tests"])})


def chosen(mutations: Sequence[Mutation], names: Sequence[str]) -> list[Mutation]:
    """Those of these names, or all; what is compiled comes last, so that one build ends it.

    Raises:
        MutationError: there is none of a name.
    """
    if unknown := sorted(set(names) - {one.name for one in mutations}):
        raise MutationError(f"{LIST.name} has no {unknown[0]!r}")
    some = [one for one in mutations if not names or one.name in names]
    return sorted(some, key=lambda one: one.is_native)


class Planter:
    """Plants faults in a working tree, one after the other.

    Args:
        root: of the tree.
        tell: prints a line.
    """

    def __init__(
        self, root: Path, run: Run | None = None, tell: Callable[[str], None] = print
    ) -> None:
        self._root, self._tell = root, tell
        self._run = functools.partial(run_command, root) if run is None else run
        self._logs = root / "build" / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)

    def check(self, mutations: Sequence[Mutation]) -> None:
        """Whether they can be planted, and their tests are found without them.

        Raises:
            MutationError: says what is to be done first.
        """
        status = ["git", "-C", str(self._root), "status", "--porcelain", "--", "src", "native"]
        if changed := subprocess.run(status, capture_output=True, check=True, text=True).stdout:
            raise MutationError(
                f"src or native has changes, which a fault could spoil: commit them, or use a "
                f"fresh clone\n{changed.rstrip()}"
            )
        for one in mutations:
            one.applied((self._root / one.file).read_text("utf-8"))
        # Whatever goes wrong later comes of a fault.
        log = self._log("check")
        if any(one.is_native for one in mutations) and self._run(BUILD, log, BUILD_LIMIT_S) != 0:
            raise MutationError(f"the core cannot be built as it is: see {log}")
        paths = list(dict.fromkeys(path for one in mutations for path in one.paths))
        if paths and self._run([*PYTEST, "--collect-only", *paths], log, LIMIT_S) != 0:
            raise MutationError(f"their tests cannot be collected as they are: see {log}")

    def try_all(self, mutations: Sequence[Mutation]) -> list[Verdict]:
        """What comes of each; at the end all files, and the core, are what they were."""
        verdicts = list[Verdict]()
        built = False
        try:
            for one in mutations:
                start = time.monotonic()
                with self._planted(one):
                    built |= one.is_native
                    by = self._found_by(one)
                verdict = Verdict(one, by, time.monotonic() - start)
                verdicts.append(verdict)
                self._tell(told(verdict))
        finally:
            log = self._log("check")
            if built and self._run(BUILD, log, BUILD_LIMIT_S) != 0:
                self._tell(f"the core holds a fault yet, and cannot be built: see {log}")
        return verdicts

    @contextlib.contextmanager
    def _planted(self, mutation: Mutation) -> Iterator[None]:
        file = self._root / mutation.file
        before = file.read_bytes()
        after = mutation.applied(before.decode()).encode()
        try:
            _write(file, after)
            yield
        finally:
            _write(file, before)

    def _found_by(self, mutation: Mutation) -> str | None:
        """The first test that fails, or what else says that something is wrong; None: nothing."""
        log = self._log(mutation.name)
        log.unlink(missing_ok=True)
        if mutation.is_native and self._run(BUILD, log, BUILD_LIMIT_S) != 0:
            return "the build"
        if mutation.paths:
            status = self._run([*PYTEST, "-x", *mutation.paths], log, LIMIT_S)
            if status is None:
                return "a time-out of pytest"
            if status != 0:
                return _first_failed(log) or f"status {status} of pytest"
        for program in mutation.programs:
            # That of ctest ends sooner than that of both.
            command = [*BUILD_TEST, program, f"{LIMIT_S:.0f}"]
            status = self._run(command, log, BUILD_LIMIT_S + LIMIT_S)
            if status is None:
                return f"a time-out of {program}"
            if status != 0:
                return f"the build of {program}" if status == NOT_BUILT else program
        return None

    def _log(self, name: str) -> Path:
        return self._logs / f"mutation-{name}.log"


def told(verdict: Verdict) -> str:
    """A line of the summary."""
    what = "MISSED" if verdict.by is None else f"caught by {verdict.by}"
    return f"{verdict.mutation.name}: {what} ({verdict.seconds:.0f} s)"


def run_command(root: Path, command: Sequence[str], log: Path, limit_s: float) -> int | None:
    """See `Run`. The command and all that it starts are ended where this is interrupted."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):  # also what it left running
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(ENDING_S)


def _write(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    # Python takes what it compiled for the file's own where the second and the size are the same.
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)


def _first_failed(log: Path) -> str | None:
    match = _FAILED.search(log.read_text("utf-8", errors="replace"))
    return None if match is None else match["now"] or match["end"]


def write_record(file: Path, verdicts: Sequence[Verdict]) -> None:
    """Write what came of each fault."""
    # Beside the other records' words for commit, date and processor; it needs no package.
    from benchmarks import machine

    record = {
        "commit": machine.commit(),
        "date": machine.now(),
        "processor": machine.machine()["cpu"],
        "mutations": [
            {
                "name": one.mutation.name,
                "file": one.mutation.file,
                "caught": one.by is not None,
                "by": one.by,
                "seconds": round(one.seconds),
            }
            for one in verdicts
        ],
    }
    file.write_text(json.dumps(record, indent=2) + "\n")


def main() -> None:
    """Plant what is asked for; status 0 means that at most a tenth was missed."""
    signal.signal(signal.SIGTERM, _stop)
    parser = argparse.ArgumentParser(
        prog="python -m tools.checks.mutations",
        description="Plant faults one after the other, and see which the gate's tests find.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {LIST.name}; all by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a record")
    options = parser.parse_args()
    planter = Planter(ROOT, tell=functools.partial(print, flush=True))
    try:
        mutations = chosen(read_mutations(), options.names)
        planter.check(mutations)
        verdicts = planter.try_all(mutations)
    except MutationError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    if options.json:
        write_record(options.json, verdicts)
    missed = sum(one.by is None for one in verdicts)
    print(f"{len(verdicts) - missed} of {len(verdicts)} caught")
    sys.exit(missed > MOST_MISSED * len(verdicts))


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
