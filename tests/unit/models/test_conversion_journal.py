"""The journal of a conversion, where its disk does not take a whole line."""

import resource
from pathlib import Path

import pytest

from inlay.models.conversion.journal import Journal


def test_a_line_of_the_journal_that_a_full_disk_cuts(tmp_path: Path) -> None:
    """What is noted before and afterwards counts."""
    file = tmp_path / "journal"
    journal = Journal(file)
    journal.begin({"target": "packed"})
    journal.add({0: "first"})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 5, before[1]))
    try:
        with pytest.raises(OSError, match="No space left"):
            journal.add({1: "second"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    journal.add({2: "third"})
    journal.close()
    again = Journal(file)
    assert again.identity == {"target": "packed"} and again.done == {0: "first", 2: "third"}
    again.close()
