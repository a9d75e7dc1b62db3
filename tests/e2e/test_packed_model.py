"""`inlay serve DIR` where DIR holds packed weights."""

import json
from pathlib import Path

import httpx

from inlay.models import convert
from inlay.models.source import resolve_model
from tests.support.server import running_server

PROMPTS = Path(__file__).parents[2] / "examples/demo_model/eval_prompts.json"


def test_a_packed_model_answers(tmp_path: Path) -> None:
    known = [row for row in json.loads(PROMPTS.read_text()) if row["kind"] == "known"][:8]
    convert(resolve_model(None).directory, tmp_path / "demo-int4", weight_format="int4")
    with running_server(tmp_path / "demo-int4", engine={"device": "cpu"}) as server:
        assert "int4:g32" in server.log
        right = 0
        for row in known:
            body = {
                "messages": [{"role": "user", "content": row["prompt"]}],
                "temperature": 0,
                "max_tokens": 160,
            }
            response = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=60)
            answer = response.raise_for_status().json()["choices"][0]["message"]["content"]
            right += answer == row["expected"]
    assert right >= 6
