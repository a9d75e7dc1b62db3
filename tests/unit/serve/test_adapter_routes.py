"""Adapters over HTTP: listed, chosen by model name, loaded, unloaded, and what is refused."""

from pathlib import Path

import pytest

from inlay.core.errors import ConfigError, RequestError
from inlay.serve.commands.serve import make_config
from tests.unit.serve.conftest import Api
from tests.unit.serve.stand_in import make_service
from tests.unit.serve.test_chat_api import CHAT, HI

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


async def test_life_of_an_adapter(api: Api) -> None:
    async with api() as (client, engine):
        assert (await client.post(CHAT, json={"messages": HI, "model": "voice"})).status_code == 404
        body = {"lora_name": "voice", "lora_path": "/adapters/voice"}
        answer = await client.post(LOAD, json=body)
        assert (answer.status_code, answer.json()["success"]) == (200, True)
        cards = {card["id"]: card for card in (await client.get("/v1/models")).json()["data"]}
        assert cards["tiny"]["parent"] is None
        assert (cards["voice"]["parent"], cards["voice"]["root"]) == ("tiny", "/adapters/voice")
        assert (await client.get("/v1/models/voice")).json() == cards["voice"]
        answer = await client.post(CHAT, json={"messages": HI, "model": "voice"})
        assert answer.json()["model"] == "voice"
        prompt = {"prompt": "Hello", "model": "voice"}
        assert (await client.post("/v1/completions", json=prompt)).json()["model"] == "voice"
        near = await client.post(CHAT, json={"messages": HI, "model": "voic"})
        card = await client.get("/v1/models/Voice")
        for refused in (near, card):
            assert refused.status_code == 404
            assert "did you mean voice?" in refused.json()["error"]["message"]
        await client.post(CHAT, json={"messages": HI, "model": "tiny"})
        await client.post(CHAT, json={"messages": HI})
        assert [request.adapter for request in engine.requests] == ["voice", "voice", "", ""]
        assert (await client.post(UNLOAD, json={"lora_name": "voice"})).status_code == 200
        refused = await client.post(CHAT, json={"messages": HI, "model": "voice"})
        assert refused.json()["error"]["code"] == "model_not_found"
        assert "serves 'tiny'" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "message"),
    [
        (LOAD, {"lora_name": "v", "lora_path": "missing"}, 404, "adapter_files_missing", "holds"),
        (LOAD, {"lora_name": "v", "lora_path": "other"}, 400, "invalid_adapter", "another model"),
        (LOAD, {"lora_name": "tiny", "lora_path": "x"}, 400, "invalid_request", "model's name"),
        (LOAD, {"lora_name": "v"}, 400, "invalid_request", "lora_path"),
        (LOAD, {"lora_name": 5, "lora_path": "x"}, 400, "invalid_request", "lora_name"),
        (UNLOAD, {"lora_name": "busy"}, 409, "adapter_in_use", "running requests"),
        (UNLOAD, {}, 400, "invalid_request", "lora_name"),
    ],
)
async def test_refusals(
    api: Api, path: str, body: dict[str, object], status: int, code: str, message: str
) -> None:
    async with api() as (client, _):
        answer = await client.post(path, json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (status, code)
        assert message in error["message"]
        assert len((await client.get("/v1/models")).json()["data"]) == 1


async def test_in_sglang_s_form(api: Api) -> None:
    load, unload = "/load_lora_adapter", "/unload_lora_adapter"
    async with api() as (client, engine):
        for name in ("voice", "law"):
            body = {"lora_name": name, "lora_path": f"/adapters/{name}", "pinned": True}
            answer = await client.post(load, json=body)
        both = {"voice": "/adapters/voice", "law": "/adapters/law"}
        assert answer.status_code == 200
        assert answer.json() == {"success": True, "error_message": None, "loaded_adapters": both}
        models = [card["id"] for card in (await client.get("/v1/models")).json()["data"]]
        assert models == ["tiny", "voice", "law"]
        for path in ("voice", "", None):
            await client.post("/generate", json={"text": "a", "lora_path": path})
        batch = {"text": ["a", "b", "c"], "lora_path": ["law", None, "voice"]}
        assert len((await client.post("/generate", json=batch)).json()) == 3
        await client.post("/generate", json={"text": ["a", "b"], "lora_path": "law"})
        alone, batched, same = engine.requests[:3], engine.requests[3:6], engine.requests[6:]
        assert [request.adapter for request in alone] == ["voice", "", ""]
        assert [request.adapter for request in batched] == ["law", "", "voice"]
        assert [request.adapter for request in same] == ["law", "law"]
        for path, status, message in (
            ("voic", 404, "did you mean voice?"),
            (["law"], 400, "lora_path names 1 for 2 prompts"),
            (5, 400, "lora_path"),
        ):
            refused = await client.post("/generate", json={"text": ["a", "b"], "lora_path": path})
            assert refused.status_code == status
            assert message in refused.json()["error"]["message"]
        for path, body, message in (
            (load, {"lora_name": "v", "lora_path": "missing"}, "holds no adapter_config.json"),
            (load, {"lora_name": "v", "lora_path": "other"}, "another model"),
            (unload, {"lora_name": "busy"}, "running requests"),
        ):
            answer = await client.post(path, json=body)
            assert answer.status_code == 400
            assert not answer.json()["success"] and message in answer.json()["error_message"]
        assert answer.json()["loaded_adapters"] == both
        answer = await client.post(unload, json={"lora_name": "voice"})
        assert answer.json()["loaded_adapters"] == {"law": "/adapters/law"}
        refused = await client.post("/generate", json={"text": "a", "lora_path": "voice"})
        assert refused.json()["error"]["code"] == "adapter_not_found"


def _config(*adapters: str) -> object:
    return make_config(
        model=None,
        host="127.0.0.1",
        port=0,
        served_model_name=None,
        api_key=None,
        chat_template=None,
        tool_parser=None,
        adapter=list(adapters),
        device="auto",
        weight_format="auto",
        context=None,
        kv_memory=None,
        threads=None,
        assignments=None,
    )


def test_the_option() -> None:
    assert _config("a=/x", "b=/y/z=1").engine.adapter_paths == {"a": "/x", "b": "/y/z=1"}  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="name=directory"):
        _config("/x")


def test_an_adapter_with_the_model_s_name(tokenizer_directory: Path) -> None:
    config = _config("tiny=/x")
    with pytest.raises(RequestError, match="model's name"):
        make_service(tokenizer_directory, config)  # type: ignore[arg-type]
