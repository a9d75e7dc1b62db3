"""A deployment whose instances have different degrees of tensor parallelism."""

import random
from pathlib import Path

import httpx

from inlay.core.messages import SamplingParams
from inlay.engine.config import EngineConfig
from inlay.engine.engine import Engine
from tests.integration.cluster.same_text import paths
from tests.support.deployments import running_deployment, wait_until

FILE = """
name = "ranks"
[engine]
device = "cpu"
threads = 1
max_context_tokens = 2048
cache.memory = "8MiB"
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


def test_prompts_go_to_an_instance_of_another_degree(tmp_path: Path) -> None:
    draw = random.Random(1)
    prompts = [draw.choices(range(300, 4000), k=size) for size in (100, 333)]
    with running_deployment(tmp_path, FILE) as deployment:
        found = [
            httpx.post(
                f"{deployment.url}/v1/completions",
                json={"prompt": prompt, "max_tokens": 8, "temperature": 0},
                timeout=60,
            ).json()["choices"][0]["text"]
            for prompt in prompts
        ]
        # Instances report what they have counted a moment later.
        sent = "prompts_over_exchange"
        wait_until(lambda: paths(deployment.url)[sent] == len(prompts), 10, "both were sent")
        lost = paths(deployment.url)["lost"]
    engine = Engine(EngineConfig(device="cpu", threads=1))
    expected = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=8))
    engine.close()
    assert found == [completion.choices[0].text for completion in expected]
    assert not lost
