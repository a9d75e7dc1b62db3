"""SGLang's server on a CPU as a peer: how it is started, and with what."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.serving.server import Server, run_server

START_TIMEOUT_S = 400.0
RUN_TIMEOUT_S = 3600
PAGE_TOKENS = 16
LAUNCHER = Path(__file__).with_name("sglang_on_cpu.py")


def site_packages(environments: Path) -> Path | None:
    """The folder with SGLang's package; None: it is not there, or lacks what its server imports."""
    found = next(environments.glob("sglang/lib/python3*/site-packages/sglang"), None)
    ready = found is not None and (found.parent / "orjson").is_dir()
    return found.parent if ready and found is not None else None


@contextlib.contextmanager
def serve_sglang(
    environments: Path,
    model: Path,
    *,
    kv_tokens: int,
    streams: int,
    hicache: Mapping[str, Any] | None = None,
    kv_events: Mapping[str, Any] | None = None,
    arguments: Sequence[str] = (),
    packages: Sequence[Path] = (),
    environ: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run `sglang.launch_server` in bf16 until the block ends, which may be before it is ready.

    Args:
        environments: folder with the environments `sglang`, for its package, and `vllm`, whose
            interpreter has torch for CPUs and transformers.
        kv_tokens: what its KV cache holds.
        hicache: `--hicache-storage-backend-extra-config` of a dynamic backend; None: no HiCache.
        kv_events: its `--kv-events-config`.
        arguments: more of its command line.
        packages: folders of packages for it, before those of its environment.
        environ: more environment variables.
    """
    site = site_packages(environments)
    assert site is not None
    command = [
        # Should this process be killed, the peer's many processes end all the same.
        "timeout", "--kill-after=10", str(RUN_TIMEOUT_S),
        # Without -P the launcher's folder, with this module, would come before the package.
        str(environments / "vllm" / "bin" / "python"), "-P", str(LAUNCHER),
        "--model-path", str(model), "--served-model-name", "default",
        "--host", "127.0.0.1", "--dtype", "bfloat16",
        "--device", "cpu", "--attention-backend", "torch_native", "--disable-overlap-schedule",
        "--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled",
        "--page-size", str(PAGE_TOKENS), "--max-total-tokens", str(kv_tokens),
        "--max-running-requests", str(streams), "--enable-metrics", "--enable-cache-report",
        *arguments,
    ]  # fmt: skip
    if hicache is not None:
        command += [
            "--enable-hierarchical-cache", "--hicache-ratio", "2",
            "--hicache-mem-layout", "page_first_direct", "--hicache-io-backend", "direct",
            "--hicache-storage-prefetch-policy", "wait_complete",
            "--hicache-storage-backend", "dynamic",
            "--hicache-storage-backend-extra-config", json.dumps(hicache),
        ]  # fmt: skip
    if kv_events is not None:
        command += ["--kv-events-config", json.dumps(kv_events)]
    variables = {
        "PYTHONPATH": os.pathsep.join(map(str, packages)),
        "SGLANG_SITE": str(site),
        "HF_HUB_OFFLINE": "1",
        **(environ or {}),
    }
    with run_server(command, variables) as server:
        yield server
