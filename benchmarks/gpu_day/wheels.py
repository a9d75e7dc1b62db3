"""Packages that a machine with a GPU lacks, as wheels for its Python.

Machines that are rented by the minute come with PyTorch, Triton and what goes with them, and often
without a package index. What Inlay and its tests import beside that is listed here.
"""

import re
import subprocess
import zipfile
from pathlib import Path

PYTHON = "3.12"

# Versions are those of constraints.txt. Left out, because the machine's transformers refuses it:
# huggingface_hub 2; only the hub and the pages of the server need it.
WHEELS = (
    # Inlay's own requirements, and theirs.
    "annotated-doc", "annotated-types", "bidict", "docutils", "fastapi", "gguf", "httptools",
    "ifaddr", "itsdangerous", "llguidance", "markdown2", "ml_dtypes", "msgspec", "nicegui",
    "orjson", "pydantic", "python-dotenv", "python-engineio", "python-multipart", "python-socketio",
    "pyzmq", "simple-websocket", "starlette", "typing-inspection", "uvicorn", "watchfiles",
    "websockets", "wsproto",
    # The tests'.
    "jsonschema", "jsonschema-specifications", "opentelemetry-api", "referencing", "rpds-py",
    "tinycss2", "webencodings",
)  # fmt: skip

# Which one its METADATA names exactly; constraints.txt has that of another Python.
EXACT = {"pydantic": "pydantic-core"}

# The machine's glibc is newer than all of them; pip matches each by its name.
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in (31, 28, 27, 26, 24, 17)),
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)


class WheelError(RuntimeError):
    """A wheel that cannot be had; the message names it."""


def pins(constraints: str) -> list[str]:
    """`name==version` of each wheel, by the text of constraints.txt.

    Raises:
        WheelError: constraints.txt has no version of one.
    """
    versions = dict(
        line.strip().lower().split("==") for line in constraints.splitlines() if "==" in line
    )
    if missing := [name for name in WHEELS if name not in versions]:
        raise WheelError(f"constraints.txt has no version of {', '.join(missing)}")
    return [f"{name}=={versions[name]}" for name in WHEELS]


def download(python: Path, constraints: Path, folder: Path) -> None:
    """Bring the wheels to a folder; those that are there already are kept, others leave it.

    Args:
        python: any that has pip.

    Raises:
        WheelError: pip found no wheel of one for the machine's Python.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = pins(constraints.read_text())
    _bring(python, wanted, folder)
    by_name = dict(zip(WHEELS, wanted, strict=True))
    exact = [required(_held(folder, by_name[name]), other) for name, other in EXACT.items()]
    _bring(python, exact, folder)
    kept = {_held(folder, pin) for pin in (*wanted, *exact)}
    for wheel in set(folder.glob("*.whl")) - kept:
        wheel.unlink()


def required(wheel: Path | None, name: str) -> str:
    """The requirement `name==version` in a wheel's METADATA.

    Raises:
        WheelError: the wheel names no exact version.
    """
    assert wheel is not None, f"the wheel that requires {name} was downloaded"
    with zipfile.ZipFile(wheel) as archive:
        (entry,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        text = archive.read(entry).decode()
    found = re.search(rf"^Requires-Dist: {re.escape(name)}==([\w.]+)", text, re.MULTILINE)
    if found is None:
        raise WheelError(f"{wheel.name} names no exact version of {name}")
    return f"{name}=={found[1]}"


def _held(folder: Path, pin: str) -> Path | None:
    """The wheel of `name==version`, if it is there."""
    name, _, version = pin.partition("==")
    found = list(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    return found[0] if found else None


def _bring(python: Path, pins: list[str], folder: Path) -> None:
    missing = [pin for pin in pins if _held(folder, pin) is None]
    if not missing:
        return
    platforms = [part for name in PLATFORMS for part in ("--platform", name)]
    command = [
        str(python), "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
        "--python-version", PYTHON, "--implementation", "cp", *platforms, "--dest", str(folder),
        *missing,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WheelError(f"pip found no wheels for Python {PYTHON}: {done.stderr[-2000:]}")
