import pytest

from tests.integration.engine.engines import ENDLESS, Loaded, model_directory


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory):
    return model_directory("tiny-float32", tmp_path_factory)


@pytest.fixture(scope="session")
def patient_directory(tmp_path_factory):
    """The same weights with a context that takes many seconds to fill."""
    return model_directory("tiny-float32", tmp_path_factory, ENDLESS + 100)


@pytest.fixture(scope="session")
def tiny(tiny_directory):
    return Loaded(tiny_directory)


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"
