"""Planted faults: the list is right, and each is judged and taken back."""

import contextlib
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.gate import LEFT, left_to_full
from tests.support.tree import ROOT, packages
from tools.checks.mutations import (
    BUILD,
    BUILD_TEST,
    NOT_BUILT,
    Mutation,
    MutationError,
    Planter,
    Run,
    Verdict,
    chosen,
    read_mutations,
    run_command,
    told,
)

MUTATIONS = read_mutations()
FILES = {one.file for one in MUTATIONS}
NATIVE = ROOT / "native"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_a_fault_can_be_planted(mutation: Mutation) -> None:
    text = (ROOT / mutation.file).read_text("utf-8")
    assert mutation.applied(text) != text
    assert mutation.name and mutation.proves


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_the_gate_runs_its_tests(mutation: Mutation) -> None:
    left = left_to_full(LEFT.read_text())
    text = (NATIVE / "tests/CMakeLists.txt").read_text()
    built = re.search(r"set\(for_nothing_else ([^)]*)\)", text)
    assert built and mutation.tests
    assert set(mutation.programs) <= set(built[1].split())
    for path in mutation.paths:
        assert path.startswith("tests/") and path not in left
        file = ROOT / path.partition("::")[0]
        files = [file] if file.is_file() else sorted(file.rglob("test_*.py"))
        assert any(one.relative_to(ROOT).as_posix() not in left for one in files), path


def test_names_differ() -> None:
    assert len({one.name for one in MUTATIONS}) == len(MUTATIONS)


def test_each_package_has_one() -> None:
    assert {Path(file).parts[2] for file in FILES if file.startswith("src/")} == set(packages())


def test_each_native_library_has_one() -> None:
    libraries = re.findall(
        r"add_library\((\w+) STATIC(?: EXCLUDE_FROM_ALL)?\s([^)$]*)\)",
        (NATIVE / "CMakeLists.txt").read_text(),
    )
    assert {"inlay_base", "inlay_core", "inlay_store"} <= {name for name, _ in libraries}
    for name, sources in libraries:
        assert not FILES.isdisjoint(f"native/{source}" for source in sources.split()), name
    for folder in ("bindings", "kernels/isa"):
        assert any(file.startswith(f"native/{folder}/") for file in FILES), folder


ENTRY = """
[[mutation]]
name = "one"
proves = "something"
file = "src/a.py"
find = "a"
replace = "b"
tests = ["tests/a.py", "ctest:b"]
"""


def test_a_list_is_read(tmp_path: Path) -> None:
    file = tmp_path / "list.toml"
    file.write_text(ENTRY)
    (one,) = read_mutations(file)
    assert (one.paths, one.programs, one.is_native) == (["tests/a.py"], ["b"], False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ENTRY + "why = 1\n", "list.toml, entry one, has the unknown key 'why'"),
        (ENTRY.replace('find = "a"\n', ""), "list.toml, entry one, lacks the key 'find'"),
        (ENTRY.replace('name = "one"\n', ""), "list.toml, entry 1, lacks the key 'name'"),
        ("[[mutations]]\n", "list.toml has the unknown key 'mutations'"),
    ],
)
def test_keys_that_are_unknown_or_missing_are_named(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "list.toml"
    file.write_text(text)
    with pytest.raises(MutationError, match=message):
        read_mutations(file)


def fault(name: str, file: str = "src/a.py", find: str = "x = 1", *tests: str) -> Mutation:
    return Mutation(
        name=name, proves="something", file=file, find=find, replace="x = 2", tests=tests or ("t",)
    )


def test_names_choose_and_what_is_compiled_comes_last() -> None:
    native, python = fault("native", "native/a.cpp"), fault("python")
    assert chosen([native, python], []) == [python, native]
    assert chosen([native, python], ["native"]) == [native]
    with pytest.raises(MutationError, match="no 'other'"):
        chosen([native, python], ["other"])


class Fake:
    """Plays commands: looks at the tree while each runs, and answers as it is told."""

    def __init__(self, root: Path, **answers: int | None) -> None:
        self.root, self.answers = root, answers
        self.commands: list[str] = []
        self.seen: list[tuple[str, str]] = []
        self.says = ""

    def __call__(self, command: Sequence[str], log: Path, limit_s: float) -> int | None:
        kind = "pytest"
        if tuple(command) == BUILD:
            kind = "build"
        elif tuple(command[: len(BUILD_TEST)]) == BUILD_TEST:
            kind = "ctest"
        elif "--collect-only" in command:
            kind = "collect"
        self.commands.append(kind)
        self.seen.append(tuple((self.root / name).read_text() for name in TREE))
        log.write_text(self.says)
        answer = self.answers.get(kind, 0)
        if answer == -1:
            raise KeyboardInterrupt
        return answer


TREE = ("src/a.py", "native/a.cpp")
WHOLE, BROKEN = "x = 1\n", "x = 2\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a file of each kind."""
    for name in TREE:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(WHOLE)
    (tmp_path / ".gitignore").write_text("build/\n__pycache__/\n")
    for arguments in ("init", "add .", "commit -m all"):
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        command = ["git", *identity, *arguments.split()]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


def judged(root: Path, run: Run, mutation: Mutation) -> Verdict:
    planter = Planter(root, run, tell=lambda line: None)
    planter.check([mutation])
    (verdict,) = planter.try_all([mutation])
    assert [(root / name).read_text() for name in TREE] == [WHOLE, WHOLE]
    return verdict


SAYS = """
FAILED tests/t.py::test_a[x y] (call)
FAILED tests/t.py::test_b - AssertionError
"""


@pytest.mark.parametrize(
    ("status", "says", "by"),
    [
        (0, "1 passed\n", None),
        (1, SAYS, "tests/t.py::test_a[x y]"),
        (2, "ERROR tests/t.py - ImportError: x\n", "tests/t.py"),
        (1, "", "status 1 of pytest"),
        (-11, "", "status -11 of pytest"),
        (None, SAYS, "a time-out of pytest"),
    ],
)
def test_a_fault_is_caught_or_missed_and_taken_back(
    root: Path, status: int | None, says: str, by: str | None
) -> None:
    compiled = root / "src/__pycache__/a.cpython-311.pyc"
    compiled.parent.mkdir()
    compiled.touch()
    fake = Fake(root, pytest=status)
    fake.says = says
    verdict = judged(root, fake, fault("one"))
    assert verdict.by == by
    assert fake.commands == ["collect", "pytest"]
    assert fake.seen == [(WHOLE, WHOLE), (BROKEN, WHOLE)]
    assert not compiled.exists()
    assert told(verdict).startswith(f"one: {'MISSED' if by is None else f'caught by {by}'} (")


@pytest.mark.parametrize(
    ("answers", "by", "commands"),
    [
        ({}, None, ["build", "collect", "build", "pytest", "ctest", "build"]),
        ({"ctest": 8}, "p", ["build", "collect", "build", "pytest", "ctest", "build"]),
        ({"ctest": None}, "a time-out of p",
         ["build", "collect", "build", "pytest", "ctest", "build"]),
        ({"ctest": NOT_BUILT}, "the build of p",
         ["build", "collect", "build", "pytest", "ctest", "build"]),
        ({"pytest": 1}, "status 1 of pytest", ["build", "collect", "build", "pytest", "build"]),
    ],
)  # fmt: skip
def test_the_core_is_built_with_the_fault_and_without(
    root: Path, answers: dict[str, int | None], by: str | None, commands: list[str]
) -> None:
    fake = Fake(root, **answers)
    one = fault("one", "native/a.cpp", "x = 1", "t", "ctest:p")
    assert judged(root, fake, one).by == by
    assert fake.commands == commands
    assert {native for _, native in fake.seen[2:-1]} == {BROKEN}
    assert fake.seen[-1] == (WHOLE, WHOLE)


def test_a_fault_that_does_not_compile_is_caught(root: Path) -> None:
    fake = Fake(root)

    def run(command: Sequence[str], log: Path, limit_s: float) -> int | None:
        fake(command, log, limit_s)
        return int(BROKEN in fake.seen[-1])

    assert judged(root, run, fault("one", "native/a.cpp")).by == "the build"
    assert fake.commands == ["build", "collect", "build", "build"]


def test_an_interrupted_run_takes_its_fault_back(root: Path) -> None:
    fake = Fake(root, pytest=-1)
    with pytest.raises(KeyboardInterrupt):
        Planter(root, fake).try_all([fault("one", "native/a.cpp")])
    assert fake.commands == ["build", "pytest", "build"]
    assert fake.seen == [(WHOLE, BROKEN), (WHOLE, BROKEN), (WHOLE, WHOLE)]


def test_changes_are_not_overwritten(root: Path) -> None:
    planter, one = Planter(root, Fake(root)), fault("one")
    (root / "README.md").touch()
    planter.check([one])
    (root / "src/new.py").touch()
    with pytest.raises(MutationError, match=r"commit them, or use a fresh clone\n.* src/new.py$"):
        planter.check([one])


def test_what_fails_without_a_fault_finds_none(root: Path) -> None:
    one = fault("one", "native/a.cpp")
    for kind, message in (("build", "cannot be built"), ("collect", "cannot be collected")):
        with pytest.raises(MutationError, match=message):
            Planter(root, Fake(root, **{kind: 1})).check([one])


def test_a_text_that_is_not_there_once_is_refused(root: Path) -> None:
    for find, count in (("y", 0), (" ", 2)):
        with pytest.raises(MutationError, match=f"one: src/a.py holds its `find` {count} times"):
            Planter(root, Fake(root)).check([fault("one", find=find)])


def test_commands_end_in_time_with_what_they_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run_command(tmp_path, ["bash", "-c", "pwd; exit 3"], log, 60) == 3
    assert log.read_text().split() == [str(tmp_path)]
    for limit_s in (0.3, 3, 30):  # until it got as far as to start another
        log.unlink()
        assert (
            run_command(tmp_path, ["bash", "-c", "sleep 600 & echo $!; wait"], log, limit_s) is None
        )
        if said := log.read_text().split():
            break
    stat = Path(f"/proc/{said[0]}/stat")
    until = time.monotonic() + 30
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while stat.read_text().rpartition(")")[2].split()[0] not in "ZX":
            assert time.monotonic() < until, "what it started runs on"
            time.sleep(0.01)
