from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.support.server import RunningServer, running_server
from tests.support.tiny_models import make_tiny_model

CONTEXT = 16384  # tokens
PAGES = CONTEXT // 16 + 400
ENDLESS = CONTEXT - 200  # of an answer that no test waits for


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with Qwen's chat template, which shows tools.

    An answer as long as the context takes it many seconds, so that tests can interrupt it, however
    late they come.
    """
    return make_tiny_model(
        tmp_path_factory.mktemp("models") / "tiny",
        max_position_embeddings=CONTEXT,
        num_hidden_layers=6,
        hidden_size=192,
        intermediate_size=256,
        moe_intermediate_size=64,
        initializer_range=0.1,
    )


@pytest.fixture(scope="session")
def tiny_server(tiny_model: Path) -> Iterator[RunningServer]:
    """One server for all tests; each leaves it idle."""
    engine = {"device": "cpu", "cache": {"pages": PAGES}, "scheduler": {"max_waiting": 300}}
    with running_server(tiny_model, served_model_name="tiny,alias", engine=engine) as server:
        yield server
        server.wait_idle()


@pytest.fixture(scope="session")
def client(tiny_server: RunningServer) -> Iterator[openai.OpenAI]:
    """The unmodified OpenAI client; without retries, so that errors show."""
    made = openai.OpenAI(base_url=tiny_server.url + "/v1", api_key="-", max_retries=0, timeout=60)
    with made:
        yield made


@pytest.fixture(scope="session")
def raw(tiny_server: RunningServer) -> Iterator[httpx.Client]:
    """Plain HTTP, for what the OpenAI client cannot send."""
    with httpx.Client(base_url=tiny_server.url, timeout=60) as made:
        yield made
