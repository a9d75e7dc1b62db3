"""`inlay convert` as a user calls it."""

import subprocess
import sys
from pathlib import Path

import pytest

from inlay.models.conversion.staging import STAGING
from inlay.models.packed_metadata import PACKED_FILE
from inlay.serve.cli import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_USAGE, run
from tests.support.conversions import noted_pieces
from tests.support.tiny_models import make_tiny_model

# Presses Ctrl-C when five pieces are noted, and makes no more until it is heard.
INTERRUPTED = """
import signal, sys, threading
from inlay.models.conversion import work
from inlay.models.conversion.journal import Journal
from inlay.serve.cli import main
work._FLUSH_S = 0.0
add, stop, heard = Journal.add, work._Makers.stop, threading.Event()
def interrupting(journal, pieces):
    add(journal, pieces)
    if len(journal.done) == 5:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert heard.wait(60)
def hearing(makers):
    stop(makers)
    heard.set()
Journal.add, work._Makers.stop = interrupting, hearing
main(sys.argv[1:])
"""


def test_a_model_is_converted_and_planned(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    source, target = make_tiny_model(tmp_path / "source"), tmp_path / "target"
    command = ["convert", str(source), str(target), "--experts", "int4", "--rest", "int8"]
    for _ in range(2):
        assert run(command) == 0
        assert capsys.readouterr().out == f"{target} is ready\n"
    assert (target / PACKED_FILE).is_file() and not (target / STAGING).exists()
    plan = ["plan", str(target), "--machine", "xeon-spr-2s"]
    assert run(plan) == 0
    assert "experts int4:g32, attention int8, MLPs int8" in capsys.readouterr().out
    assert run([*plan, "--weight-format", "int8"]) == EXIT_ERROR
    said = capsys.readouterr().err
    assert "holds weights as int4:g32+int8, and weight_format 'int8' was asked for" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--experts", "int3"], "--experts int3: must be one of auto, "),
        (["--rest", "int8+int4"], "--rest int8+int4: must be one of"),
        (["--rest", "auto"], "--rest auto is for both"),
        (["--to", "fp8"], "--to fp8: must be packed or bf16"),
        (["--to", "bf16", "--rest", "int8"], "leave --experts and --rest out"),
        (["--threads", "0"], "Input should be greater than or equal to 1"),
    ],
)
def test_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture, options: list[str], message: str
) -> None:
    source = make_tiny_model(tmp_path / "source")
    assert run(["convert", str(source), str(tmp_path / "target"), *options]) == EXIT_USAGE
    assert message in capsys.readouterr().err
    assert not (tmp_path / "target").exists()


def test_an_interrupted_one_says_how_to_go_on(tmp_path: Path) -> None:
    source, target = make_tiny_model(tmp_path / "source"), tmp_path / "target"
    command = ["convert", str(source), str(target), "--threads", "1"]
    first = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *command], capture_output=True, text=True, timeout=120
    )
    assert first.returncode == EXIT_INTERRUPTED, first.stderr
    assert first.stderr == "interrupted: the same command goes on where it was\n"
    assert noted_pieces(target) == 5
    again = subprocess.run(
        [sys.executable, "-m", "inlay", *command], capture_output=True, text=True, timeout=120
    )
    assert again.returncode == 0, again.stderr
    assert again.stderr.startswith("going on: 5 of ")
