from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.peers import rows

SCRIPT = """
import json, sys
print("a peer's own chatter")
print(json.dumps({"case": sys.argv[1], "median": 2.0, "unit": "ms"}))
print(json.dumps({"case": "broken", "error": "out of memory"}))
"""


def test_rows_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "peer.py").write_text(SCRIPT)
    assert rows(tmp_path, "peer.py", "read") == [{"case": "read", "median": 2.0, "unit": "ms"}]


def test_absent_peers_have_no_rows(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise SystemExit('environment is missing')")
    assert rows(None, "peer.py") == []
    assert rows(tmp_path, "absent.py") == []
    assert rows(tmp_path, "broken.py") == []


def test_environments_need_peers_and_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path)
    (tmp_path / "built").mkdir()
    assert peers.environment(tmp_path, "built") == tmp_path / "built"
    assert peers.environment(tmp_path, "absent") is None
    assert peers.environment(None, "built") is None
