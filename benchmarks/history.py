"""How many commits touched some paths since a record was taken, from one walk over git's log."""

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

from benchmarks.machine import ROOT

CHANGES = "+changes"
_COMMIT = "\x1e"


class NoHistoryError(RuntimeError):
    """Commits cannot be counted in this copy of the repository; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One commit.

    Attributes:
        date: when it was made here, which a rebase changes.
        paths: of the files that it touched; none for merges, whose changes came with the others.
    """

    name: str
    parents: tuple[str, ...]
    date: datetime
    paths: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Age:
    """How old a record is.

    Attributes:
        commits: that touched the paths of its case since.
        note: what makes the number less certain; "" where nothing does.
    """

    commits: int
    note: str = ""


class History:
    """What led to the checked-out commit, by name."""

    def __init__(self, commits: Iterable[Commit]) -> None:
        self._commits: Mapping[str, Commit] = {commit.name: commit for commit in commits}
        self._before = cache(self._ancestors)

    def age(self, record: Mapping[str, str], paths: Sequence[str]) -> Age:
        """How many commits touched one of the paths (files or folders) since a record.

        Args:
            record: `commit` and `date` as records have them. Where the history has no such commit,
                as after a rebase, those count that are younger than the date.
        """
        name, _, changed = record["commit"].partition("+")
        notes = [f"measured with changes beside {name[:8]}"] if changed else []
        if name in self._commits:
            known = self._before(name)
            since = [commit for commit in self._commits.values() if commit.name not in known]
        else:
            notes = [f"its commit {name[:8]} is not in this history, counted from its date"]
            date = datetime.fromisoformat(record["date"])
            since = [commit for commit in self._commits.values() if commit.date > date]
        count = sum(any(_is_in(touched, paths) for touched in commit.paths) for commit in since)
        return Age(commits=count, note="; ".join(notes))

    def _ancestors(self, name: str) -> frozenset[str]:
        """The commit and all before it."""
        found: set[str] = set()
        ahead = [name]
        while ahead:
            if (one := ahead.pop()) not in found:
                found.add(one)
                ahead += self._commits[one].parents
        return frozenset(found)


def read_history(root: Path = ROOT) -> History:
    """The history of a repository's checked-out commit.

    Raises:
        NoHistoryError: the folder is no clone, or git knows only its last commits.
    """
    if _git(root, "rev-parse", "--is-shallow-repository").strip() == "true":
        raise NoHistoryError(
            "this clone has its last commits only; `git fetch --unshallow` brings the others"
        )
    form = f"--format={_COMMIT}%H%x09%P%x09%cI"
    log = _git(root, "-c", "core.quotePath=off", "log", "--name-only", form, "HEAD")
    return History(_commit(text) for text in log.split(_COMMIT) if text.strip())


def _commit(text: str) -> Commit:
    head, *paths = text.splitlines()
    name, parents, date = head.split("\t")
    return Commit(
        name=name,
        parents=tuple(parents.split()),
        date=datetime.fromisoformat(date),
        paths=tuple(filter(None, paths)),
    )


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout
    except FileNotFoundError as error:
        raise NoHistoryError("git is not installed") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines()
        raise NoHistoryError(f"git says: {said[0] if said else error.returncode}") from error


def _is_in(touched: str, paths: Sequence[str]) -> bool:
    return any(touched == path or touched.startswith(f"{path}/") for path in paths)
