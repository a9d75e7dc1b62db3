import pytest

from tests.integration.engine.engines import Loaded, model_directory


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory):
    return model_directory("tiny-float32", tmp_path_factory)


@pytest.fixture(scope="session")
def tiny(tiny_directory):
    return Loaded(tiny_directory)


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"
