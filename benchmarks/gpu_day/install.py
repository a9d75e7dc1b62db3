"""Makes a kit usable on the machine: its packages, its core, and the environment of processes."""

import json
import lzma
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_day import core
from benchmarks.gpu_day.kit import Manifest


class InstallError(RuntimeError):
    """A kit that does not work here; the message says why."""


def install(kit: Path, manifest: Manifest, tree: Path, work: Path) -> dict[str, Any]:
    """Install once; a later call of the same kit finds it done.

    The core goes into the package's folder, where git ignores it. One that does not load here, by
    another C library say, is built here.

    Raises:
        InstallError: this is another Python than the kit is for, or pip failed.
        CoreError: the core neither loads nor can be built.
    """
    here = ".".join(map(str, sys.version_info[:2]))
    if here != manifest.python:
        raise InstallError(
            f"the kit is for Python {manifest.python}, and this is {here}: start tools/gpu_day "
            f"with python{manifest.python}"
        )
    begin_s = time.monotonic()
    done = work / "installed.json"
    wanted = {"parts": [part.sha256 for part in manifest.parts], "tree": str(tree)}
    if done.exists() and json.loads(done.read_text())["wanted"] == wanted:
        return {"seconds": 0.0, "core": "as before"}
    wheels = sorted(map(str, (kit / "wheels").glob("*.whl")))
    _pip([*wheels], work / "site")
    for packed in (kit / "core").glob("*.so.xz"):
        target = tree / "src" / "inlay" / packed.stem
        target.write_bytes(lzma.decompress(packed.read_bytes()))
    carried = _loads(tree, work)
    if not carried:
        core.build(
            tree, Path(sys.executable), tree / "src" / "inlay", work / "core.log", tools=False
        )
        if not _loads(tree, work):
            raise InstallError(f"the core that was built here does not load: see {work}/core.log")
    done.write_text(json.dumps({"wanted": wanted}))
    seconds = round(time.monotonic() - begin_s, 1)
    return {"seconds": seconds, "core": "carried" if carried else "built here"}


def environment(tree: Path, work: Path) -> dict[str, str]:
    """Of all processes: the tree and the kit's packages, and nothing written outside `work`."""
    before = os.environ.get("PYTHONPATH")
    paths = [str(tree / "src"), str(tree), str(work / "site"), *([before] if before else [])]
    home = work / "home"
    home.mkdir(parents=True, exist_ok=True)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONDONTWRITEBYTECODE": "",
        "HOME": str(home),
        "TRITON_CACHE_DIR": str(work / "triton"),
        "INLAY_PEERS": str(work / "peers"),
        "HF_HUB_OFFLINE": "1",
    }


def _pip(wheels: list[str], site: Path) -> None:
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
        "--no-compile", "--no-cache-dir", "--upgrade", "--target", str(site), *wheels,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstallError(f"pip could not install the kit's wheels: {done.stderr[-2000:]}")


def _loads(tree: Path, work: Path) -> bool:
    command = [sys.executable, "-c", "import inlay._native"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment(tree, work), cwd=tree
    )
    if done.returncode:
        print(f"the core that was brought does not load: {done.stderr[-500:]}", flush=True)
    return not done.returncode
