"""Try an installed Inlay where no compiler can be found: serve the demo model, ask one question.

Run by ./tools/check with the Python of a bare environment that holds the wheel and what it
requires, and with the wheel as the argument. Standard library only.
"""

import importlib.metadata
import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

HERE = Path(sys.prefix)
TIMEOUT_S = 120
MAX_WHEEL_BYTES = 15_000_000  # without the demo model


def main() -> None:
    """Check where the package comes from, then serve and chat."""
    for compiler in ("cc", "c++", "gcc", "g++", "clang", "clang++", "nvcc"):
        assert not shutil.which(compiler), f"{compiler} is on PATH: this would prove nothing"
    for name in ("inlay", "inlay._native"):
        spec = importlib.util.find_spec(name)
        assert spec and spec.origin, f"the wheel has no {name}"
        assert Path(spec.origin).is_relative_to(HERE), f"{name} comes from {spec.origin}"
    files = {str(file) for file in importlib.metadata.files("inlay") or ()}
    assert "inlay/py.typed" in files
    assert any(file.startswith("inlay/models/demo/") for file in files), "no demo model"
    assert not any(file.startswith(("tests/", "benchmarks/")) for file in files)

    size = wheel_bytes(Path(sys.argv[1]))
    print(f"the wheel has {size / 1e6:.1f} MB without the demo model")
    assert size < MAX_WHEEL_BYTES, f"the wheel may have {MAX_WHEEL_BYTES / 1e6:.0f} MB"

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [str(HERE / "bin" / "inlay"), "serve", "--port", str(port)]
    start = time.monotonic()
    server = subprocess.Popen(command)
    try:
        answer = ask(f"http://127.0.0.1:{port}", server)
    finally:
        server.terminate()
        server.wait(timeout=30)
    print(f"first answer after {time.monotonic() - start:.1f} s: {answer!r}")
    assert len(answer.split()) >= 2, "the demo model answers in words"


def wheel_bytes(wheel: Path) -> int:
    """Compressed size of everything but the demo model."""
    with zipfile.ZipFile(wheel) as archive:
        return sum(
            file.compress_size
            for file in archive.infolist()
            if not file.filename.startswith("inlay/models/demo/")
        )


def ask(url: str, server: "subprocess.Popen[bytes]") -> str:
    """The demo model's answer to one chat message, once the server is up."""
    question = {"role": "user", "content": "What does lantern mean?"}
    body = {"messages": [question], "temperature": 0, "max_tokens": 40}
    start = time.monotonic()
    while time.monotonic() - start < TIMEOUT_S:
        assert server.poll() is None, f"the server ended with status {server.returncode}"
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:
                body["model"] = json.load(answer)["data"][0]["id"]
            break
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


if __name__ == "__main__":
    main()
