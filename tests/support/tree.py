"""The source tree as the rule tests see it: files, packages and their imports, never imported."""

import ast
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "inlay"


class Module(NamedTuple):
    """One source file of the package."""

    name: str  # dotted, below `inlay`: "core.errors"; a package's __init__ is the package's name
    file: Path
    syntax: ast.Module

    @property
    def package(self) -> str:
        """The top-level package it belongs to; "" for `inlay/__init__.py` and its neighbours."""
        parts = self.file.relative_to(PACKAGE).parts
        return parts[0] if len(parts) > 1 else ""


def packages() -> list[str]:
    """The packages that exist today."""
    return sorted(init.parent.name for init in PACKAGE.glob("*/__init__.py"))


def modules(package: str | None = None) -> list[Module]:
    """All modules of one package ("" for those beside the packages), or of `inlay` as a whole."""
    return [module for module in _modules() if package in (None, module.package)]


@functools.cache
def _modules() -> list[Module]:
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = list(file.relative_to(PACKAGE).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        syntax = ast.parse(file.read_text(), filename=str(file))
        found.append(Module(".".join(parts), file, syntax))
    return found


def inlay_imports(module: Module) -> Iterator[str]:
    """What a module imports from `inlay`, dotted below it; imports inside functions count too."""
    base = module.name.split(".") if module.name else []
    if module.file.name != "__init__.py":
        base = base[:-1]
    for node in ast.walk(module.syntax):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                above = ["inlay", *base[: len(base) - node.level + 1]]
                source = ".".join([*above, source] if source else above)
            found = [f"{source}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.removeprefix("inlay.") for name in found if name.startswith("inlay."))


def tracked_files() -> list[Path]:
    """Files of the repository that git knows or would know; ignored ones are left out."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    files = (ROOT / name for name in listing.stdout.split("\0") if name)
    return [file for file in files if file.is_file()]
