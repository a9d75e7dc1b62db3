"""`./tools/check --changed`: the tests that look at a changed file."""

import subprocess
from pathlib import Path

import pytest

from tools.checks.changed import changed_files, changed_tests, find_tests, module_files

TREE = {
    "src/inlay/__init__.py": "",
    "src/inlay/core/__init__.py": "",
    "src/inlay/core/units.py": "",
    "src/inlay/store/__init__.py": "from inlay.store.client import Client\n",
    "src/inlay/store/client.py": "from inlay.core.units import (\n    GIB,\n    MIB,\n)\n",
    "src/inlay/engine/worker.py": "import inlay.core.units\n",
    "src/inlay/alone.py": '"""Has to do with inlay.core.units, and imports nothing."""\n',
    "tests/__init__.py": "",
    "tests/architecture/test_rules.py": "",
    "tests/support/process.py": 'MODULE = "inlay.engine.worker"\n',
    "tests/support/program.py": 'PROGRAM = """\nfrom inlay.store import Client\n"""\n',
    "tests/unit/core/test_units.py": "from inlay.core.units import GIB\n",
    "tests/unit/store/test_client.py": "def test() -> None:\n    from inlay.store import Client\n",
    "tests/unit/test_alone.py": "import inlay.alone\n",
    "tests/integration/test_worker.py": "from tests.support.process import MODULE\n",
    "tests/e2e/conftest.py": "from tests.support import program\n",
    "tests/e2e/test_page.py": "",
    "tests/native/test_kernels.py": "",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def looked_at(tree: Path, *changed: str) -> list[str]:
    return find_tests(changed, module_files(tree), tree)


def test_importers_of_importers_quick_layers_first(tree: Path) -> None:
    assert looked_at(tree, "src/inlay/core/units.py") == [
        "tests/unit/core/test_units.py",
        "tests/unit/store/test_client.py",
        "tests/architecture",
        "tests/e2e",
        "tests/integration/test_worker.py",
    ]


def test_a_module_that_a_string_names_is_imported(tree: Path) -> None:
    assert looked_at(tree, "src/inlay/engine/worker.py") == [
        "tests/architecture",
        "tests/integration/test_worker.py",
    ]


def test_what_a_docstring_mentions_is_not_imported(tree: Path) -> None:
    assert looked_at(tree, "src/inlay/alone.py") == [
        "tests/unit/test_alone.py",
        "tests/architecture",
    ]


def test_a_conftest_stands_for_its_folder(tree: Path) -> None:
    assert looked_at(tree, "tests/support/program.py") == ["tests/architecture", "tests/e2e"]


def test_a_test_looks_at_itself(tree: Path) -> None:
    assert "tests/e2e/test_page.py" in looked_at(tree, "tests/e2e/test_page.py")


def test_native_files_have_tests_and_a_module_beside_them(tree: Path) -> None:
    found = looked_at(tree, "native/store/index.cpp")
    assert {"tests/native", "tests/unit/store/test_client.py", "tests/e2e"} <= set(found)
    assert "tests/unit/core/test_units.py" not in found


def test_nothing_looks_at_a_picture(tree: Path) -> None:
    assert looked_at(tree, "CODE_OF_CONDUCT") == []


def test_changes_since_main_committed_or_not(tree: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=tree, check=True, capture_output=True)

    git("init", "-b", "main")
    git("add", ".")
    git("commit", "-m", "all")
    assert changed_files(tree) == [] == changed_tests(tree)
    git("checkout", "-b", "other")
    (tree / "src/inlay/alone.py").write_text("x = 1\n")
    git("commit", "-am", "one")
    (tree / "tests/e2e/test_page.py").write_text("x = 1\n")
    (tree / "new file").touch()
    assert changed_files(tree) == ["new file", "src/inlay/alone.py", "tests/e2e/test_page.py"]
    assert changed_tests(tree)[0] == "tests/unit/test_alone.py"
