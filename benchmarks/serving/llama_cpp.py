"""llama.cpp's server as a peer: llama-cpp-python's, how it is started, and with what."""

import os
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.serving.server import Server, run_server

ENVIRONMENT = "llama-cpp-python"
READY = "/v1/models"


def label(environment: Path) -> str:
    """What the peer is called in records, with the version that is installed."""
    (found,) = environment.glob("lib/python*/site-packages/llama_cpp_python-*.dist-info")
    version = found.name.removeprefix("llama_cpp_python-").removesuffix(".dist-info")
    return f"llama.cpp (llama-cpp-python {version})"


def serve_llama_cpp(
    environment: Path, file: Path, *, context_tokens: int
) -> AbstractContextManager[Server]:
    """Run `llama_cpp.server` on all cores until the block ends, which may be before it is ready."""
    python = environment / "bin" / "python"
    threads = str(len(os.sched_getaffinity(0)))
    return run_server([
        str(python), "-m", "llama_cpp.server", "--model", str(file), "--host", "127.0.0.1",
        "--n_ctx", str(context_tokens), "--n_threads", threads, "--n_threads_batch", threads,
    ])  # fmt: skip
