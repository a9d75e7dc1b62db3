"""Tests with another build of the extension: `pytest -p tests.support.native_build --native FILE`.

A plugin, because the extension is chosen when `inlay.kernels` is imported, which conftest files do.
"""

import importlib.util
import sys

import pytest

import inlay


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--native", metavar="FILE", required=True, help="of inlay._native")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    file = early_config.known_args_namespace.native
    spec = importlib.util.spec_from_file_location("inlay._native", file)
    assert spec is not None and spec.loader is not None, f"{file} is no extension module"
    assert "inlay.kernels" not in sys.modules, "too late: the extension is loaded"
    module = importlib.util.module_from_spec(spec)
    sys.modules["inlay._native"] = inlay._native = module  # type: ignore[attr-defined]
    spec.loader.exec_module(module)
