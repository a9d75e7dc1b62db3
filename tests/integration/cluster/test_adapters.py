"""A deployment that computes prompts in one instance and decodes in another, with an adapter."""

import random
from pathlib import Path

import httpx

from inlay.core.messages import SamplingParams
from inlay.engine.config import EngineConfig
from inlay.engine.engine import Engine
from tests.integration.cluster.same_text import paths
from tests.support.deployments import running_deployment, wait_until
from tests.support.tiny_models import make_tiny_model
from tests.support.tuning import make_adapter

# The decoding instance has two processes: prompts go to another degree.
FILE = """
name = "adapters"
model = "{model}"
[engine]
device = "cpu"
threads = 1
max_context_tokens = 512
cache.memory = "8MiB"
adapters = ["voice={adapter}"]
[instances.prefill]
role = "prefill"
[instances.decode]
role = "decode"
[instances.decode.engine]
placement.tensor_parallel = 2
[dispatcher]
port = 0
policy = "round_robin"
"""
TOKENS = 12


def test_the_text_of_one_instance(tmp_path: Path) -> None:
    """Of the model and of the adapter, on the same prompts: neither finds the other's blocks."""
    model = make_tiny_model(tmp_path / "model", "qwen3_moe")
    adapter = make_adapter(model, tmp_path / "voice")
    draw = random.Random(1)
    prompts = [draw.choices(range(300, 500), k=size) for size in (80, 200)]
    engine = Engine(
        EngineConfig(
            model=str(model), device="cpu", threads=1, adapters=(f"voice={adapter}",), seed=0
        )
    )
    wanted = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    expected = {
        name: [one.choices[0].text for one in engine.generate(prompts, wanted, adapter=name)]
        for name in ("", "voice")
    }
    engine.close()
    assert expected[""] != expected["voice"]
    with running_deployment(tmp_path, FILE.format(model=model, adapter=adapter)) as deployment:

        def ask(prompt: list[int], name: str) -> httpx.Response:
            body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
            named = body | ({"model": name} if name else {})
            return httpx.post(f"{deployment.url}/v1/completions", json=named, timeout=60)

        for name in ("", "voice"):
            answers = [ask(prompt, name).json() for prompt in prompts]
            assert [one["choices"][0]["text"] for one in answers] == expected[name]
            cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in answers]
            assert cached == [0, 0], "each name's prompts are new"
        sent = "prompts_over_exchange"
        wait_until(lambda: paths(deployment.url)[sent] == 4, 10, "all were sent")
        counted = paths(deployment.url)
        assert (counted["divided_requests"], counted["lost"]) == (4, 0)
        again = ask(prompts[1], "voice").json()
        assert again["choices"][0]["text"] == expected["voice"][1]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 192
        refused = ask(prompts[0], "voices")
        assert refused.status_code == 404
        assert "did you mean voice?" in refused.json()["error"]["message"]
