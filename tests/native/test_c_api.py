"""libinlay_transfer as C and Rust programs use it: built, installed, linked, run.

What its calls do with every bad argument is in native/tests/c_api_test.cpp, which runs in sanitizer
builds, too.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from inlay.transfer import Access, TransferEngine
from tests.support.tree import ROOT

EXAMPLES = ROOT / "examples/transfer"
HEADER = ROOT / "native/include/inlay/transfer.h"
# Where the package was built, or else kept between runs: only what changed is compiled.
BUILD = next(ROOT.glob("build/cp*-cp*"), ROOT / "build/c_api")


def run(*command: str | Path) -> str:
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=170)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the library is installed as docs/transfer.md says."""
    programs = str(Path(sys.executable).parent)
    cmake = shutil.which("cmake", path=programs) or shutil.which("cmake")
    ninja = shutil.which("ninja", path=programs) or shutil.which("ninja")
    if cmake is None or ninja is None:
        pytest.skip("needs cmake and ninja")
    prefix = tmp_path_factory.mktemp("prefix")
    if not (BUILD / "CMakeCache.txt").exists():
        options = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", "-DINLAY_PYTHON=OFF"]
        run(cmake, "-S", ROOT, "-B", BUILD, *options)
    run(cmake, "--build", BUILD, "--target", "inlay_transfer_c")
    run(cmake, "--install", BUILD, "--component", "c", "--prefix", prefix)
    return prefix


@pytest.fixture(scope="module")
def programs(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The examples of the languages whose compilers are here."""
    folder = tmp_path_factory.mktemp("programs")
    search, path = f"-L{prefix}/lib", f"-Wl,-rpath,{prefix}/lib"
    made = {}
    if cc := shutil.which("cc"):
        made["C"] = folder / "hello_c"
        strict = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
        source = EXAMPLES / "hello.c"
        run(cc, *strict, source, f"-I{prefix}/include", search, path, "-linlay_transfer",
            "-o", made["C"])  # fmt: skip
    if rustc := shutil.which("rustc"):
        made["Rust"] = folder / "hello_rust"
        strict = ("-O", "-D", "warnings", "--edition", "2021")
        run(rustc, *strict, EXAMPLES / "hello.rs", search, "-C", f"link-arg={path}",
            "-o", made["Rust"])  # fmt: skip
    return made


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_bytes(bytes(range(32)))
    return file


def offer(program: Path, token: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [program, token], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@pytest.mark.parametrize(
    ("offering", "visiting"), [("C", "Rust"), ("Rust", "C"), ("C", "C"), ("Rust", "Rust")]
)
def test_examples(programs: dict[str, Path], token: Path, offering: str, visiting: str) -> None:
    if missing := {offering, visiting} - programs.keys():
        pytest.skip(f"needs a compiler of {' and '.join(missing)}")
    process, address = offer(programs[offering], token)
    try:
        assert run(programs[visiting], token, address) == f"hello from {offering}\n"
        rest, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (rest, process.returncode) == (f"{visiting} was here\n", 0)


@pytest.mark.parametrize("language", ["C", "Rust"])
def test_a_program_and_python(programs: dict[str, Path], token: Path, language: str) -> None:
    if language not in programs:
        pytest.skip(f"needs a compiler of {language}")
    process, address = offer(programs[language], token)
    with TransferEngine(token=token.read_bytes()) as engine:
        greeting = np.zeros(64, np.uint8)
        inbox = engine.allocate(64, name="inbox", remote=Access.WRITE)
        line = engine.register(b"Python was here".ljust(64, b"\0"), name="greeting")
        try:
            peer = engine.connect(address)
            engine.read(engine.register(greeting), peer["greeting"])
            engine.write(line, peer["inbox"])
            rest, _ = process.communicate(timeout=30)
        finally:
            process.kill()
        assert greeting.tobytes().rstrip(b"\0").decode() == f"hello from {language}"
        assert rest == "Python was here\n"
        assert run(programs[language], token, engine.address) == "Python was here\n"
        assert bytes(memoryview(inbox)).rstrip(b"\0").decode() == f"{language} was here"


@pytest.mark.parametrize("language", ["C", "Rust"])
def test_a_program_says_what_is_wrong(
    programs: dict[str, Path], tmp_path: Path, language: str
) -> None:
    if language not in programs:
        pytest.skip(f"needs a compiler of {language}")
    short = tmp_path / "short"
    short.write_bytes(b"short")
    result = subprocess.run([programs[language], short], capture_output=True, text=True, timeout=30)
    assert result.returncode == 1 and "16..64" in result.stderr


def test_exports(prefix: Path) -> None:
    """The library exports what the header declares, under one version, and nothing else."""
    listed = run("nm", "-D", "--defined-only", prefix / "lib/libinlay_transfer.so.1")
    exported = {line.split()[-1] for line in listed.splitlines()} - {"INLAY_TRANSFER_1"}
    declared = re.findall(r"^INLAY_API [\w* ]+?(inlay_\w+)\(", HEADER.read_text(), re.MULTILINE)
    assert exported == {f"{name}@@INLAY_TRANSFER_1" for name in declared} and len(declared) > 20


def test_codes_are_those_of_the_table() -> None:
    table = (ROOT / "native/core/status.def").read_text()
    rows = re.findall(r"^INLAY_STATUS\((\d+), k(\w+),", table, re.MULTILINE)
    ours = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper(): code for code, name in rows}
    header = re.findall(r"^  INLAY_(\w+) = (\d+),?", HEADER.read_text(), re.MULTILINE)
    codes = {name: code for name, code in header if int(code) < 200}
    assert codes == ours
