"""Two vLLM servers with Inlay's connector, and what proves where their KV came from."""

import contextlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from benchmarks.serving.server import Server, wait_until_ready
from benchmarks.serving.vllm import START_TIMEOUT_S, serve_vllm

ROOT = Path(__file__).parents[2]
BLOCK_TOKENS = 32


@contextlib.contextmanager
def packed_inlay() -> Iterator[Path]:
    """A folder with this checkout's package as it would be installed, for another environment."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
        command += ["--no-build-isolation", "--wheel-dir", name, str(ROOT)]
        subprocess.run(command, check=True, cwd=ROOT, capture_output=True, timeout=600)
        (wheel,) = folder.glob("inlay-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "packages")
        yield folder / "packages"


def kv_transfer(**extra: object) -> dict[str, Any]:
    """`--kv-transfer-config` with the connector and its settings."""
    return {
        "kv_connector": "InlayConnector",
        "kv_connector_module_path": "inlay.connect.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }


@contextlib.contextmanager
def pair(
    environment: Path,
    model: Path,
    config: Mapping[str, Any],
    *,
    context_tokens: int,
    mooncake: Path | None = None,
) -> Iterator[tuple[Server, Server]]:
    """Two servers of one model, both ready. They start one after the other.

    Args:
        mooncake: a configuration file as Mooncake's clients read it; `import mooncake` then is
            Inlay's there.
    """
    with packed_inlay() as packages, contextlib.ExitStack() as stack:
        folders, environ = [packages], {}
        if mooncake is not None:
            folders.append(packages / "inlay" / "connect" / "mooncake" / "shim")
            environ["MOONCAKE_CONFIG_PATH"] = str(mooncake)
        servers = []
        for _ in range(2):
            server = serve_vllm(
                environment,
                model,
                context_tokens=context_tokens,
                kv_tokens=8 * context_tokens,
                streams=4,
                all_cores=True,
                block_tokens=BLOCK_TOKENS,
                kv_transfer=config,
                packages=folders,
                environ=environ,
            )
            servers.append(stack.enter_context(server))
            wait_until_ready(servers[-1], START_TIMEOUT_S)
        yield servers[0], servers[1]


def external_tokens(server: Server) -> int:
    """Prompt tokens whose KV came through the connector, since the server started."""
    text = httpx.get(f"{server.url}/metrics", timeout=30).text
    (line,) = [
        line
        for line in text.splitlines()
        if line.startswith("vllm:prompt_tokens_by_source_total{")
        and 'source="external_kv_transfer"' in line
    ]
    return int(float(line.split()[-1]))


class HandedOver(NamedTuple):
    """A prompt that was computed for another instance.

    Attributes:
        params: the `kv_transfer_params` for that one.
        first_token: of the output.
    """

    params: dict[str, Any]
    first_token: int


def hand_over(server: Server, prompt: list[int], salt: str) -> HandedOver:
    """Have a prompt computed for another instance."""
    body = {
        "prompt": prompt,
        "max_tokens": 1,
        "temperature": 0,
        "cache_salt": salt,
        "return_token_ids": True,
        "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
    }
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120)
    answer.raise_for_status()
    body = answer.json()
    return HandedOver(dict(body["kv_transfer_params"]), body["choices"][0]["token_ids"][0])
