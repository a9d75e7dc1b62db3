"""The public interface of each package is the list in exports.toml."""

import tomllib

import pytest

from tests.architecture.exports import TABLE, declared
from tests.support.tree import packages


@pytest.mark.parametrize("package", ["", *packages()])
def test_exports(package: str) -> None:
    title = f"inlay.{package}".rstrip(".")
    exported = declared(package)
    assert exported is not None, f"{title} needs a literal __all__ in its __init__"
    table = tomllib.loads(TABLE.read_text())
    listed = table.get(title, {}).get("all")
    assert listed == exported, (
        f"{title} exports something else than tests/architecture/exports.toml says; if that is "
        "meant, run: python -m tests.architecture.exports"
    )
