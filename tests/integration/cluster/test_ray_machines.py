"""A deployment on two machines of a Ray cluster: two network namespaces, of which one fails."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.integration.cluster.test_ray import PROMPT, SHARED, parent
from tests.support.deployments import RunningDeployment, wait_until
from tests.support.netns import ShapedLinks, netns_problem
from tests.support.ray_head import ray_head, ray_machine

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.skipif(netns_problem() is not None, reason=str(netns_problem())),
]

BACK_S = 90.0
ASK = """
import json, sys, urllib.request
url, body = sys.argv[1:]
request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""


def text_of(links: ShapedLinks, url: str) -> str:
    body = json.dumps({"prompt": PROMPT, "max_tokens": 12, "temperature": 0})
    asking = links.start(
        "left",
        [sys.executable, "-c", ASK, f"{url}/v1/completions", body],
        stdout=subprocess.PIPE,
        text=True,
    )
    found, _ = asking.communicate(timeout=70)
    text: str = json.loads(found)["choices"][0]["text"]
    return text


def test_a_machine_that_is_lost_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ShapedLinks([None]) as links:
        left, right = links[0].left, links[0].right
        on_left, on_right = partial(links.start, "left"), partial(links.start, "right")
        file = f"""
            name = "two"
            launcher = "ray"
            {SHARED}
            [store]
            host = "{left}"
            [store.nodes.n0]
            memory = "8MiB"
            host = "{right}"
            [instances.prefill]
            role = "prefill"
            host = "{left}"
            [instances.decode]
            role = "decode"
            host = "{right}"
        """
        with ray_head(2, f"--node-ip-address={left}", popen=on_left) as address:
            monkeypatch.setenv("RAY_ADDRESS", address)
            second = (f"--address={address}", f"--node-ip-address={right}")
            with ray_machine(2, *second, popen=on_right):
                deployment = RunningDeployment(tmp_path, file, popen=on_left).wait_ready()
                found = deployment.processes()
                assert found["decode-0"].address.startswith(f"tcp://{right}:")
                assert {found[name].where for name in ("decode-0", "node-n0")} == {right}
                before = text_of(links, deployment.url)
                os.kill(parent(parent(found["decode-0"].pid)), signal.SIGKILL)

                def gone() -> bool:
                    return deployment.processes()["decode-0"].state == "starting"

                wait_until(gone, 30, "its machine is missed")
            with ray_machine(2, *second, popen=on_right):

                def back() -> bool:
                    now = deployment.processes()
                    return all(
                        (now[name].state, now[name].run) == ("ready", 2)
                        for name in ("decode-0", "node-n0")
                    )

                wait_until(back, BACK_S, "all is back")
                assert text_of(links, deployment.url) == before
                assert deployment.command("down") == "stopped\n"
                assert deployment.wait() == 0
