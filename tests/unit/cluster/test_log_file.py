"""Logs of processes are bounded, and their end is known."""

from pathlib import Path

from inlay.cluster.launch.log_file import TAIL_LINES, LogFile


def test_a_large_log_is_moved_aside(tmp_path: Path) -> None:
    file = tmp_path / "p.log"
    log = LogFile(file, max_bytes=100)
    for number in range(20):
        log.write(b"line %03d, some text\n" % number)
    log.close()
    assert file.stat().st_size <= 100
    assert file.with_name("p.log.1").stat().st_size <= 100
    whole = file.with_name("p.log.1").read_bytes() + file.read_bytes()
    assert whole.endswith(b"line 018, some text\nline 019, some text\n")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["p.log", "p.log.1"]


def test_a_log_goes_on_over_restarts(tmp_path: Path) -> None:
    for text in (b"first\n", b"second\n"):
        log = LogFile(tmp_path / "p.log")
        log.write(text)
        log.close()
    assert (tmp_path / "p.log").read_bytes() == b"first\nsecond\n"


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "p.log")
    log.write(b"one\n\ntw")
    log.write("o ä\nthr".encode())
    assert list(log.tail) == ["one", "two ä", "thr"]
    log.write(b"x" * 100_000 + b"\n" * 50)
    log.write(b"".join(b"%d\n" % n for n in range(100)))
    assert list(log.tail) == [str(n) for n in range(100 - TAIL_LINES, 100)]
    log.close()
