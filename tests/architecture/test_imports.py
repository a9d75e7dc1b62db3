"""Who may import whom: the table of docs/architecture.md, enforced here and nowhere else."""

import ast

import pytest

from tests.support.tree import ROOT, Module, inlay_imports, modules, packages
from tools.checks.changed import imports, module_files

LAYERS = {
    "core": set(),
    "kernels": {"core"},
    "transfer": {"core"},
    "store": {"core", "transfer"},
    "weights": {"core", "transfer"},
    "cache": {"core", "store", "transfer"},
    "experts": {"core", "kernels"},
    "models": {"core", "kernels", "experts"},
    "engine": {"core", "kernels", "cache", "experts", "models"},
    "cluster": {"core", "store", "cache", "transfer"},
    "sim": {"core", "transfer", "store", "cache", "cluster"},
    "tune": {"core", "kernels", "experts", "models", "engine"},
    "serve": {
        "core", "kernels", "transfer", "store", "weights", "cache", "experts", "models", "engine",
        "cluster", "connect",
    },
    "connect": {"core", "store", "transfer", "cache"},
}  # fmt: skip

# Packages that only some modules may reach: (importing module's prefix, package).
DOORS = {("serve.commands", "tune"), ("serve.commands", "sim"), ("__main__", "serve")}

# Packages of which others may use a part only: (importer, package) -> modules.
PARTS = {
    ("cluster", "cache"): ("cache.index", "cache.prefix_index"),
    ("connect", "cache"): ("cache.index", "cache.prefix_index"),
}


def allowed(module: Module, imported: str) -> bool:
    target = imported.split(".")[0]
    if target == module.package or target not in LAYERS:  # itself; `inlay._native`, `__version__`
        return True
    if any(module.name.startswith(door) and target == room for door, room in DOORS):
        return True
    if parts := PARTS.get((module.package, target)):
        return imported.startswith(parts)
    return target in LAYERS.get(module.package, set())


def test_every_package_is_in_the_table() -> None:
    assert set(packages()) <= set(LAYERS)


def test_the_table_has_no_cycle() -> None:
    done: set[str] = set()
    while left := LAYERS.keys() - done:
        ready = {name for name in left if LAYERS[name] <= done}
        assert ready, f"these packages import each other: {sorted(left)}"
        done |= ready


@pytest.mark.parametrize("package", ["", *packages()])
def test_imports_follow_the_table(package: str) -> None:
    wrong = [
        f"{module.name or '__init__'} imports inlay.{imported}"
        for module in modules(package)
        for imported in inlay_imports(module)
        if not allowed(module, imported)
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_stable_imports_an_experiment() -> None:
    wrong = [
        f"{module.name} imports inlay.{imported}"
        for module in modules()
        if "experimental" not in module.name.split(".")
        for imported in inlay_imports(module)
        if "experimental" in imported.split(".")
    ]
    assert not wrong, "\n".join(wrong)


def test_imports_name_what_they_take() -> None:
    wrong = [
        f"{module.file}:{node.lineno}"
        for module in modules()
        for node in ast.walk(module.syntax)
        if isinstance(node, ast.ImportFrom)
        and (node.level > 1 or any(alias.name == "*" for alias in node.names))
    ]
    assert not wrong, "wildcard or parent-relative imports: " + ", ".join(wrong)


def test_no_drawers() -> None:
    drawers = {"utils", "util", "common", "helpers", "misc", "legacy", "v1", "v2"}
    wrong = [module.name for module in modules() if drawers & set(module.name.split("."))]
    assert not wrong, f"give these the name of their subject: {wrong}"


def test_what_is_imported_of_our_modules_exists() -> None:
    """Programs that no test imports, such as a soak, name modules that may have moved."""
    files = module_files(ROOT)
    missing = {
        f"{file.relative_to(ROOT)}: {imported}"
        for name, file in files.items()
        for imported in imports(name, file.read_text(), file.name == "__init__.py")
        if imported.startswith(("benchmarks.", "tests.", "tools."))
        and imported not in files
        and imported.rpartition(".")[0] not in files
    }
    assert not missing, sorted(missing)
