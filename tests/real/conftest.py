"""Models that others have trained and published, each served by one `inlay serve` for all tests."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from benchmarks.serving.server import Server, serve, wait_until_ready
from tests.real.files import FILES
from tests.support.real_models import RealModel, real_model


@dataclass(frozen=True)
class Served:
    """A model that a server serves, and the unmodified OpenAI client."""

    model: RealModel
    server: Server
    client: openai.OpenAI

    def answer(self, question: str) -> str:
        """The same for the same question: without chance."""
        chat = self.client.chat.completions.create(
            model=self.model.file.name,
            messages=[{"role": "user", "content": question}],
            max_completion_tokens=30,
            temperature=0,
        )
        return chat.choices[0].message.content or ""


@pytest.fixture(scope="session", params=FILES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RealModel:
    return real_model(request.param, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def served(model: RealModel) -> Iterator[Served]:
    """By the command as users give it, with the whole context and the file's own formats."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            serve(
                str(model.file), "--device", "cpu", "--served-model-name", model.file.name,
                environment=model.environment,
            )
        )  # fmt: skip
        wait_until_ready(server, 300)
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="-", max_retries=0, timeout=300)
        yield Served(model, server, stack.enter_context(client))


@pytest.fixture
def damaged(model: RealModel, tmp_path: Path) -> Path:
    """A copy whose second half is missing, as of a download that broke off."""
    copy = tmp_path / model.file.name
    with model.file.open("rb") as source, copy.open("wb") as made:
        made.write(source.read(model.file.stat().st_size // 2))
    return copy
