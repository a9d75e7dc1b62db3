"""The repository as a whole: packaging agrees with itself, nothing names one machine."""

import ast
import importlib.metadata
import re
import sys
import tomllib

from tests.support.tree import ROOT, modules, packages, tracked_files

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def requirement_name(line: str) -> str:
    name = re.match(r"[A-Za-z0-9._-]+", line)
    assert name, line
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def top_imports(syntax: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(syntax):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {requirement_name(name): version for name, version in pairs}


def test_constraints_pin_every_direct_requirement() -> None:
    groups = PROJECT["dependency-groups"].values()
    extras = PROJECT["project"]["optional-dependencies"].values()
    wanted = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    wanted += [line for lines in (*groups, *extras) for line in lines if isinstance(line, str)]
    missing = {requirement_name(line) for line in wanted} - constraints().keys()
    assert not missing, f"run ./tools/constraints: {sorted(missing)}"


def test_torch_is_one_exact_version() -> None:
    (torch,) = [line for line in PROJECT["project"]["dependencies"] if line.startswith("torch")]
    assert torch == f"torch=={constraints()['torch']}"


def test_the_build_group_holds_the_build_requirements() -> None:
    assert set(PROJECT["build-system"]["requires"]) <= set(PROJECT["dependency-groups"]["build"])


def test_the_package_imports_only_what_it_requires() -> None:
    extras = PROJECT["project"]["optional-dependencies"].values()
    required = [*PROJECT["project"]["dependencies"], *(line for lines in extras for line in lines)]
    owners = importlib.metadata.packages_distributions()
    # The engines that `connect` adapts import it; they are there when it is used.
    known = sys.stdlib_module_names | {"inlay", "vllm"}
    imported = {name for module in modules() for name in top_imports(module.syntax)} - known
    allowed = {requirement_name(line) for line in required}
    # A package that is not installed goes by its own name.
    missing = {
        name
        for name in imported
        if not {requirement_name(o) for o in owners.get(name, [name])} & allowed
    }
    assert not missing, f"add these to the dependencies: {sorted(missing)}"


def test_pytest_is_strict() -> None:
    options = PROJECT["tool"]["pytest"]["ini_options"]
    assert {"--strict-markers", "--strict-config"} <= set(options["addopts"])
    assert options["xfail_strict"] is True
    assert options["filterwarnings"][0] == "error"


def test_unit_tests_carry_the_names_of_packages() -> None:
    folders = {folder.name for folder in (ROOT / "tests" / "unit").glob("*/") if folder.is_dir()}
    assert folders - {"__pycache__"} <= {*packages(), "benchmarks", "tools"}


def test_nothing_names_one_machine() -> None:
    # Written so that the patterns do not match themselves. /home/user and the like are examples.
    places = re.compile(r"(?<![\w.])/(?:home/(?!user\b|you\b)\w+|roo[t]/|Users/\w+|wor[k]/\w+)")
    wrong = []
    for file in tracked_files():
        if file.suffix in {".gz", ".png", ".jpg", ".safetensors"}:
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        wrong += [f"{file.relative_to(ROOT)}: {found[0]}" for found in places.finditer(text)]
    assert not wrong, "\n".join(wrong)
