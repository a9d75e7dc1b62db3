"""The table of the store's statuses and the tree of errors name the same classes."""

import re

from inlay.core import errors
from tests.support.tree import ROOT


def test_every_status_has_its_class() -> None:
    table = (ROOT / "native/store/status.def").read_text()
    rows = re.findall(r"^INLAY_STORE_STATUS\((\d+), (k\w+), \"(\w*)\"\)", table, re.MULTILINE)
    codes = [int(code) for code, _, _ in rows]
    assert codes == sorted(set(codes)) and rows[0] == ("0", "kOk", "")
    named = {getattr(errors, name) for _, _, name in rows[1:]}
    assert named == {
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, errors.StoreError)
    } - {errors.StoreError}
