"""The command line: what it refuses, and what it needs to start."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_day import command
from benchmarks.gpu_day.results import Results
from tests.support.tree import ROOT


def call(*arguments: str, start: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *start, str(ROOT / "tools" / "gpu_day"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_starts_with_the_standard_library_alone() -> None:
    """A bare machine has no package of ours before `run` has installed them."""
    done = call("run", "fact", start=("-S", "-E"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: no stage fact; there are: facts, smoke, tests, ")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["run", "--kit", "nowhere"], "there is no kit in nowhere: run tools/gpu_day prepare"),
        (["rehearse", "facts", "kernel"], "no stage kernel; there are: "),
        (["read", "nowhere.json"], "nowhere.json holds no results"),
        (["prepare", "--python", "nopython"], "no Python 3.12 with headers among nopython"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    arguments: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--kit", "nowhere"] if arguments[0] == "prepare" else []
    monkeypatch.setattr(sys, "argv", ["gpu_day", *arguments, *options])
    with pytest.raises(SystemExit, match=f"error: {problem}"):
        command.main()


def test_unknown_options_are_refused() -> None:
    done = call("run", "--bugdet", "500")
    assert done.returncode == 2 and "unrecognized arguments: --bugdet" in done.stderr


def test_results_of_a_rehearsal_are_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "results.json"
    Results(rehearsal=True, budget_s=1.0).save(file)
    monkeypatch.setattr(command.kit, "read_manifest", lambda kit: None)
    monkeypatch.setattr(sys, "argv", ["gpu_day", "run", "--resume", str(file)])
    with pytest.raises(SystemExit, match="is of a rehearsal: it says nothing of this machine"):
        command.main()


def test_stages_run_in_the_order_of_the_list() -> None:
    chosen = command._chosen(["kernels", "facts"], with_llama_cpp=False)
    assert [stage.name for stage in chosen] == ["facts", "kernels"]


@pytest.mark.parametrize("brought", [False, True])
def test_llama_cpp_runs_where_it_was_brought(brought: bool) -> None:
    names = [stage.name for stage in command._chosen([], with_llama_cpp=brought)]
    assert ("llama_cpp" in names) is brought and "facts" in names
