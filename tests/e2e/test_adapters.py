"""A server whose adapters come and go while requests run."""

import threading
from pathlib import Path

import httpx
import openai
import pytest

from tests.e2e.conftest import ENDLESS, PAGES
from tests.support.server import RunningServer, running_server
from tests.support.tuning import make_adapter

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture(scope="module")
def adapters(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: make_adapter(tiny_model, folder / name, seed=n) for n, name in enumerate(("a", "b"))
    }


def test_adapters_come_and_go_under_load(tiny_model: Path, adapters: dict[str, Path]) -> None:
    """Others' requests neither fail nor change; one that runs keeps its adapter."""
    engine = {"device": "cpu", "cache": {"pages": PAGES}, "adapters": [f"a={adapters['a']}"]}
    with (
        running_server(tiny_model, served_model_name="base", engine=engine) as server,
        openai.OpenAI(
            base_url=server.url + "/v1", api_key="-", max_retries=0, timeout=60
        ) as client,
        httpx.Client(base_url=server.url, timeout=60) as raw,
    ):
        models = {model.id: model for model in client.models.list().data}
        assert list(models) == ["base", "a"]
        assert models["a"].parent == "base"  # type: ignore[attr-defined]

        def ask(model: str, tokens: int = 12) -> str:
            answer = client.completions.create(
                model=model,
                prompt="To be",
                max_tokens=tokens,
                temperature=0,
                extra_body={"ignore_eos": True},
            )
            return answer.choices[0].text

        before = {name: ask(name) for name in models}
        assert before["base"] != before["a"]
        sampling = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
        batch = {"text": ["To be"] * 2, "lora_path": [None, "a"], "sampling_params": sampling}
        answers = raw.post("/generate", json=batch).json()
        assert [one["text"] for one in answers] == [before["base"], before["a"]]
        over = threading.Event()
        texts: dict[str, set[str]] = {name: set() for name in models}
        failures: list[Exception] = []

        def keep_asking(name: str) -> None:
            try:
                while not over.is_set():
                    texts[name].add(ask(name))
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=keep_asking, args=(name,)) for name in models]
        for thread in threads:
            thread.start()
        try:
            for _ in range(3):
                body = {"lora_name": "b", "lora_path": str(adapters["b"])}
                assert raw.post(LOAD, json=body).status_code == 200
                assert raw.post(LOAD, json=body).status_code == 400
                assert ask("b") not in before.values()
                answer = raw.post("/unload_lora_adapter", json={"lora_name": "b"})
                assert (answer.status_code, list(answer.json()["loaded_adapters"])) == (200, ["a"])
                with pytest.raises(openai.NotFoundError, match="'b' does not exist"):
                    ask("b")
            with client.completions.create(
                model="a",
                prompt="So",
                max_tokens=ENDLESS,
                stream=True,
                extra_body={"ignore_eos": True},
            ) as stream:
                next(stream)
                answer = raw.post(UNLOAD, json={"lora_name": "a"})
                assert (answer.status_code, answer.json()["error"]["code"]) == (
                    409,
                    "adapter_in_use",
                )
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert not failures
        assert texts == {name: {text} for name, text in before.items()}
        body = {"lora_name": "c", "lora_path": str(tiny_model)}
        answer = raw.post(LOAD, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "lora_path")


def test_with_processes_that_share_layers(tiny_model: Path, adapters: dict[str, Path]) -> None:
    """They load and forget their parts at run time; what one cannot load, none has."""
    engine = {"device": "cpu", "threads": 2, "cache": {"pages": 100}}
    texts = []
    for degree in (1, 2):
        shared = {**engine, "placement": {"tensor_parallel": degree}}
        with (
            running_server(tiny_model, served_model_name="base", engine=shared) as server,
            httpx.Client(base_url=server.url, timeout=60) as raw,
        ):

            def ask(model: str, client: httpx.Client = raw) -> str:
                body = {"model": model, "prompt": "To be", "max_tokens": 12, "temperature": 0}
                answer = client.post("/v1/completions", json=body | {"ignore_eos": True})
                assert answer.status_code == 200, answer.text
                text: str = answer.json()["choices"][0]["text"]
                return text

            for name, path in adapters.items():
                body = {"lora_name": name, "lora_path": str(path)}
                assert raw.post(LOAD, json=body).status_code == 200
            body = {"lora_name": "c", "lora_path": str(tiny_model)}
            assert raw.post(LOAD, json=body).status_code == 404
            texts.append([ask(name) for name in ("base", "a", "b")])
            assert raw.post(UNLOAD, json={"lora_name": "a"}).status_code == 200
            body = {"lora_name": "a", "lora_path": str(adapters["b"])}
            assert raw.post(LOAD, json=body).status_code == 200
            assert ask("a") == texts[-1][2]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3


def test_an_adapter_that_is_not_there(tiny_model: Path, tmp_path: Path) -> None:
    engine = {"device": "cpu", "adapters": [f"a={tmp_path / 'nothing'}"]}
    server = RunningServer(tiny_model, engine=engine)
    assert server.wait(60) == 1
    assert "model_not_found" in server.log and "adapter_config.json" in server.log
    assert "Traceback" not in server.log
