"""Which packages load with neither torch nor the compiled extension present."""

import os
import subprocess
import sys

import pytest

from tests.support.tree import ROOT, modules, packages

LIGHT_PACKAGES = {
    "core", "kernels", "transfer", "store", "weights", "cache", "experts", "cluster", "sim",
    "connect",
}  # fmt: skip
# Of heavier packages, these modules: what clients, tokenizing and the command line stand on.
LIGHT_MODULES = {"models", "models.text", "engine", "engine.client", "serve", "serve.cli"}

# Interfaces of engines, which are there where these are used.
HOSTED_MODULES = {"connect.vllm.connector"}

BLOCKED_IMPORT = """
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch" or (name + ".").startswith("inlay._native."):
            raise ModuleNotFoundError(f"{name} is blocked by this test", name=name)

# The tree itself: the finder of an editable install knows the modules of its build alone.
sys.meta_path[:] = [one for one in sys.meta_path if "Redirecting" not in type(one).__name__]
sys.meta_path.insert(0, Blocker())
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def assert_loads(names: list[str]) -> None:
    command = [sys.executable, "-c", BLOCKED_IMPORT, *names]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}  # no install needed either
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("package", sorted(LIGHT_PACKAGES & set(packages())))
def test_package_loads_without_torch_and_extension(package: str) -> None:
    names = [
        f"inlay.{module.name}" for module in modules(package) if module.name not in HOSTED_MODULES
    ]
    assert_loads([name for name in names if not name.endswith(".__main__")])


@pytest.mark.parametrize("name", sorted(LIGHT_MODULES & {module.name for module in modules()}))
def test_module_loads_without_torch_and_extension(name: str) -> None:
    assert_loads([f"inlay.{name}"])
