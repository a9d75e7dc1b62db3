"""Ages of records, on small repositories, and which figures of README are too old."""

import subprocess
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from benchmarks import stale
from benchmarks.history import Age, Commit, History, NoHistoryError, read_history
from benchmarks.printed import printed_numbers
from benchmarks.stale import RecordAge, print_stale, too_old

Git = Callable[..., str]
LONG_AGO, TAKEN = "2020-01-01T00:00:00+00:00", "2026-11-20T12:00:00+00:00"


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """A new repository's git."""

    def run(*arguments: str) -> str:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgSign=false")
        command = ["git", "-C", str(tmp_path / "there"), *who, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr
        return done.stdout.strip()

    (tmp_path / "there").mkdir()
    run("init", "-q", "-b", "main")
    return run


def commit(git: Git, tmp_path: Path, *paths: str) -> str:
    """Change files; the commit's name."""
    for path in paths:
        file = tmp_path / "there" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{file.read_text() if file.exists() else ''}.")
    git("add", "-A")
    git("commit", "-q", "-m", "change")
    return git("rev-parse", "HEAD")


def age(history: History, name: str, *paths: str, date: str = LONG_AGO) -> Age:
    return history.age({"commit": name, "date": date}, paths)


def test_commits_since_are_those_that_touched_the_paths(git: Git, tmp_path: Path) -> None:
    commit(git, tmp_path, "net/a.cpp")
    taken = commit(git, tmp_path, "net/a.cpp")
    commit(git, tmp_path, "net/a.cpp", "net/b.cpp", "store/c.cpp")
    commit(git, tmp_path, "network/d.cpp")
    commit(git, tmp_path, "net/über x.cpp")
    history = read_history(tmp_path / "there")
    assert age(history, taken, "net") == Age(commits=2)
    assert age(history, taken, "net/b.cpp", "network") == Age(commits=2)
    assert age(history, taken, "net/über x.cpp") == Age(commits=1)
    assert age(history, taken, "docs") == Age(commits=0)
    assert age(history, git("rev-parse", "HEAD"), "net") == Age(commits=0)


def test_both_sides_of_a_merge_count_once(git: Git, tmp_path: Path) -> None:
    commit(git, tmp_path, "net/a.cpp")
    git("checkout", "-q", "-b", "side")
    commit(git, tmp_path, "net/b.cpp")
    git("checkout", "-q", "main")
    taken = commit(git, tmp_path, "net/c.cpp")
    git("merge", "-q", "side", "-m", "join")
    history = read_history(tmp_path / "there")
    assert age(history, taken, "net") == Age(commits=1)  # that of the side; the merge adds nothing


def test_changes_beside_a_commit_are_said(git: Git, tmp_path: Path) -> None:
    taken = commit(git, tmp_path, "net/a.cpp")
    found = age(read_history(tmp_path / "there"), f"{taken}+changes", "net")
    assert found == Age(commits=0, note=f"measured with changes beside {taken[:8]}")


def test_after_a_rebase_commits_count_from_the_date() -> None:
    def made(name: str, date: str) -> Commit:
        return Commit(
            name=name, parents=(), date=datetime.fromisoformat(date), paths=("net/a.cpp",)
        )

    history = History(
        [made("c", "2026-11-21T00:00:00+00:00"), made("b", "2026-11-20T13:30:00+02:00")]
    )
    found = age(history, "0123456789abcdef", "net", date=TAKEN)
    note = "its commit 01234567 is not in this history, counted from its date"
    assert found == Age(commits=1, note=note)


def test_a_clone_without_history_says_so(git: Git, tmp_path: Path) -> None:
    for _ in range(3):
        commit(git, tmp_path, "net/a.cpp")
    shallow = tmp_path / "shallow"
    source = (tmp_path / "there").as_uri()
    subprocess.run(["git", "clone", "-q", "--depth", "1", source, str(shallow)], check=True)
    with pytest.raises(NoHistoryError, match="unshallow"):
        read_history(shallow)
    (tmp_path / "bare").mkdir()
    with pytest.raises(NoHistoryError, match="not a git repository"):
        read_history(tmp_path / "bare")


def test_without_history_nothing_is_called_old(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_history() -> History:
        raise NoHistoryError("this clone is shallow")

    monkeypatch.setattr(stale, "read_history", no_history)
    assert print_stale(readme_only=False) == 0
    printed = capsys.readouterr().out
    assert "commits are not counted here: this clone is shallow" in printed
    assert "      ?  " in printed and "are younger" not in printed


MARKER = "12 MiB <!-- record: serving/startup/{kind} rss_mib -->"
AGES = [
    RecordAge(name="serving/startup/amx", date="2026-11-20", age=Age(commits=150, note="guessed")),
    RecordAge(name="serving/startup/avx2", date="2026-11-28", age=Age(commits=149)),
]


@pytest.mark.parametrize(
    ("text", "is_old"),
    [
        (MARKER.format(kind="avx2"), False),
        (MARKER.format(kind="amx"), True),
        (f"| {MARKER.format(kind='amx')} | measured 2026-11-20 |", False),
        (f"| {MARKER.format(kind='amx')} | measured 2026-11-21 |", True),
        (f"| {MARKER.format(kind='amx')} |\n| measured 2026-11-20 |", True),
        (f"As of 2026-11-20 it takes\n{MARKER.format(kind='amx')}.", False),
    ],
)
def test_old_figures_carry_their_date(text: str, is_old: bool) -> None:
    lines = too_old(printed_numbers("README.md", text), AGES)
    assert len(lines) == is_old
    for line in lines:
        assert "README.md:" in line and "serving/startup/amx  150 commits since  (guessed)" in line


def test_a_row_that_quotes_a_record_twice_is_told_once() -> None:
    row = f"| {MARKER.format(kind='amx')} | {MARKER.format(kind='amx')} |"
    assert len(too_old(printed_numbers("README.md", row), AGES)) == 1


def test_figures_of_no_record_are_told() -> None:
    lines = too_old(printed_numbers("README.md", MARKER.format(kind="avx512")), AGES)
    assert lines == ["README.md:1  serving/startup/avx512  there is no such record"]


@pytest.mark.parametrize("readme_only", [True, False])
def test_the_status_tells_of_readme(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], readme_only: bool
) -> None:
    text = MARKER.format(kind="amx")
    monkeypatch.setattr(stale, "read_history", lambda: History([]))
    monkeypatch.setattr(stale, "record_ages", lambda history: AGES)
    monkeypatch.setattr(stale, "readme_numbers", lambda: list(printed_numbers("README.md", text)))
    assert print_stale(readme_only) == 1
    printed = capsys.readouterr().out
    assert ("149  2026-11-28  serving/startup/avx2" in printed) is not readme_only
    assert "README.md:1  serving/startup/amx" in printed
    monkeypatch.setattr(stale, "readme_numbers", list)
    assert print_stale(readme_only) == 0
    assert "younger than 150 commits" in capsys.readouterr().out


def test_records_are_listed_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [
        {"case": "selftest/copy", "kind": kind, "commit": "c", "date": TAKEN}
        for kind in ("amx", "avx2", "avx512")
    ]
    counts = iter([3, 40, 7])
    monkeypatch.setattr(stale, "accepted_records", lambda: records)
    history = History([])
    monkeypatch.setattr(history, "age", lambda record, paths: Age(commits=next(counts)))
    names = [one.name.rpartition("/")[2] for one in stale.record_ages(history)]
    assert names == ["avx2", "avx512", "amx"]
