"""Environment variables are read in one module, and there are four of them."""

import ast
import re
from collections.abc import Iterator

from tests.support.tree import ROOT, Module, modules

READER = "core.settings"
VARIABLES = {"INLAY_LOG", "INLAY_ISA", "INLAY_CACHE_DIR", "INLAY_NATIVE"}
# Names that foreign software defines (MOONCAKE_*, Ray, etcd) are read where it is met.
FOREIGN = ("connect", "cluster.launch")


def is_environ(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "environ"


def reads(module: Module) -> Iterator[int]:
    """Lines that look up a variable; handing the whole environment to a child is no look-up."""
    for node in ast.walk(module.syntax):
        match node:
            case ast.Attribute(attr="getenv"):
                yield node.lineno
            case ast.Attribute(value=owner, attr="get" | "pop" | "setdefault" | "items"):
                if is_environ(owner):
                    yield node.lineno
            case ast.Subscript(value=owner, ctx=ast.Load()) if is_environ(owner):
                yield node.lineno
            case ast.Compare(comparators=[right]) if is_environ(right):
                yield node.lineno
            case ast.ImportFrom(module="os", names=names):
                if {"environ", "getenv"} & {alias.name for alias in names}:
                    yield node.lineno


def test_one_module_reads_the_environment() -> None:
    wrong = [
        f"{module.name}:{line}"
        for module in modules()
        if module.name != READER and not module.name.startswith(FOREIGN)
        for line in reads(module)
    ]
    assert not wrong, f"take these from inlay.{READER}: {wrong}"


def test_no_other_variables() -> None:
    found = {
        node.value
        for module in modules()
        for node in ast.walk(module.syntax)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch("INLAY_[A-Z_]+", node.value)
    }
    assert found <= VARIABLES


def test_native_code_reads_no_environment() -> None:
    sources = [*ROOT.glob("native/**/*.cpp"), *ROOT.glob("native/**/*.h")]
    wrong = [
        str(file.relative_to(ROOT))
        for file in sources
        if "tests" not in file.parts and re.search(r"\bgetenv\s*\(", file.read_text())
    ]
    assert not wrong, f"hand the setting over from Python: {wrong}"
