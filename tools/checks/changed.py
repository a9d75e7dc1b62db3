"""Which tests look at what changed since main: by imports, and by names of modules in strings.

Tests start programs by name (`python -m inlay.engine.worker`, or lines of Python in a string), so a
module whose name stands in a string counts as imported. What no import shows is told by `BESIDE`.
"""

import re
import subprocess
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

SOURCES = ("src", "tests", "benchmarks", "examples", "tools")

# Files that no import leads to, by prefix, and what looks at them: a module, or tests.
BESIDE = {
    "native/kernels/": ("inlay.kernels", "tests/native"),
    "native/core/": ("inlay.transfer", "tests/native"),
    "native/net/": ("inlay.transfer",),
    "native/transfer/": ("inlay.transfer", "tests/native"),
    "native/store/": ("inlay.store", "tests/native"),
    "native/cluster/": ("inlay.cluster.state", "tests/native"),
    "native/sim/": ("inlay.sim", "tests/native"),
    "native/bindings/": ("tests/native",),
    "native/include/": ("tests/native",),
    "README.md": ("tests/architecture",),
    "docs/": ("tests/architecture",),
    "benchmarks/": ("tests/architecture", "tests/unit/benchmarks"),
    "pyproject.toml": ("tests/architecture",),
    "constraints.txt": ("tests/architecture",),
}
# Rules for the whole tree take seconds.
ALWAYS = "tests/architecture"
LAYERS = ("tests/unit", ALWAYS, "tests/native", "tests/e2e", "tests/integration")

_FROM = re.compile(
    r"^[ \t]*from[ \t]+(?P<source>[.\w]+)[ \t]+import[ \t]+(?P<names>\([^)]*\)|[^\n]*)",
    re.MULTILINE,
)
_IMPORT = re.compile(r"^[ \t]*import[ \t]+(?P<names>[^\n]*)", re.MULTILINE)
_BESIDE_NAMES = re.compile(r"#[^\n]*|\bas[ \t]+\w+")
_NAME = re.compile(r"\b[A-Za-z_]\w*")
_DOTTED = re.compile(r"[A-Za-z_][\w.]*")
_IN_STRING = re.compile(r"""["']((?:inlay|tests|benchmarks|tools)(?:\.\w+)+)["']""")


def changed_tests(root: Path) -> list[str]:
    """Test files and folders that look at what changed, quick layers and near ones first.

    What changed is what differs from main, or from the last commit where main is checked out:
    commits, the working tree, and files that git does not know yet.
    """
    return find_tests(changed_files(root), module_files(root), root)


def changed_files(root: Path) -> list[str]:
    """Files that differ from where this branch left main, relative to the root."""
    try:
        base = _git(root, "merge-base", "HEAD", "main").strip()
    except subprocess.CalledProcessError:  # no branch of that name in this clone
        base = "HEAD"
    named = _git(root, "diff", "--name-only", "-z", base)
    new = _git(root, "ls-files", "-z", "--others", "--exclude-standard")
    return sorted({name for name in (named + new).split("\0") if name})


def find_tests(changed: Iterable[str], files: Mapping[str, Path], root: Path) -> list[str]:
    """Tests that import what changed, directly or over other modules.

    Args:
        changed: files, relative to the root.
        files: all modules by dotted name.
        root: of the repository.
    """
    modules = {str(file.relative_to(root)): name for name, file in files.items()}
    importers = _importers(files)
    found: dict[str, None] = {}
    start = list[str]()
    for name in changed:
        if name in modules:
            start.append(modules[name])
        for prefix, targets in BESIDE.items():
            if name.startswith(prefix):
                start += [target for target in targets if target in files]
                found |= dict.fromkeys(target for target in targets if target not in files)
    seen = dict.fromkeys(start)
    waiting = deque(start)
    while waiting:
        module = waiting.popleft()
        file = files[module]
        if file.name.startswith("test_"):
            found.setdefault(str(file.relative_to(root)))
        elif file.name == "conftest.py":  # holds for all tests of its folder
            found.setdefault(str(file.parent.relative_to(root)))
        for importer in importers[module]:
            if importer not in seen:
                seen[importer] = None
                waiting.append(importer)
    if not found:
        return []
    found.setdefault(ALWAYS)
    existing = [name for name in found if (root / name).exists()]
    existing.sort(key=_layer)
    # A file of a folder that is there runs with it.
    return [
        name
        for name in existing
        if not any(other != name and Path(name).is_relative_to(other) for other in existing)
    ]


def _layer(test: str) -> int:
    """Quick ones first, so that the first failure comes soon."""
    return next((i for i, layer in enumerate(LAYERS) if test.startswith(layer)), len(LAYERS))


def module_files(root: Path) -> dict[str, Path]:
    """All Python files by the dotted names under which they are imported."""
    found = {}
    for source in SOURCES:
        for file in sorted((root / source).rglob("*.py")):
            parts = list(file.relative_to(root / "src" if source == "src" else root).parts)
            parts[-1] = file.stem
            if parts[-1] == "__init__":
                parts.pop()
            found[".".join(parts)] = file
    return found


def _importers(files: Mapping[str, Path]) -> dict[str, list[str]]:
    """Who imports a module; importing it from a package that offers it counts as importing both."""
    importers = defaultdict[str, list[str]](list)
    for name, file in files.items():
        text = file.read_text()
        found = [*imports(name, text, file.name == "__init__.py"), *_IN_STRING.findall(text)]
        for imported in dict.fromkeys(found):
            while imported:
                if imported in files and imported != name:
                    importers[imported].append(name)
                    break
                imported = imported.rpartition(".")[0]
    return importers


def imports(name: str, text: str, is_package: bool) -> Iterator[str]:
    """What a module's text imports, dotted; of `from a import b` it is `a.b`.

    Read by patterns: syntax trees of the whole repository take twenty times as long. Programs in
    strings count, docstrings' mentions do not.
    """
    package = name.split(".") if is_package else name.split(".")[:-1]
    for match in _FROM.finditer(text):
        source = match["source"]
        if level := len(source) - len(source.lstrip(".")):
            above = package[: len(package) - level + 1]
            source = ".".join([*above, source[level:]]).rstrip(".")
        names = _BESIDE_NAMES.sub("", match["names"])
        yield from (f"{source}.{taken}" for taken in _NAME.findall(names))
    for match in _IMPORT.finditer(text):
        yield from _DOTTED.findall(match["names"])


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout
