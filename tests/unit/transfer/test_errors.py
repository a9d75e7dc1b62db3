"""The table of statuses and the tree of errors name the same classes."""

import re

from inlay.core import errors
from tests.support.tree import ROOT


def test_every_status_has_its_class() -> None:
    table = (ROOT / "native/core/status.def").read_text()
    rows = re.findall(r"^INLAY_STATUS\((\d+), (k\w+), \"(\w*)\"\)", table, re.MULTILINE)
    codes = [int(code) for code, _, _ in rows]
    assert codes == sorted(set(codes)) and rows[0] == ("0", "kOk", "")
    for _, _, name in rows[1:]:
        assert issubclass(getattr(errors, name), errors.InlayError)
