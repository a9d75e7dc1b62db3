"""Wrong usage of the command line: one line that says what to do, never a traceback."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-c", "from inlay.serve.cli import main; main()"]


def inlay(
    *arguments: str, stdin: str = "", timeout_s: float = 60, **environment: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*PROGRAM, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **environment},
    )


def assert_one_line(result: "subprocess.CompletedProcess[str]", code: int, message: str) -> None:
    assert result.returncode == code, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("inlay: error: ")]
    assert len(lines) == 1, result.stderr
    assert message in lines[0]
    assert "Traceback" not in result.stderr + result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serv"], "No such command 'serv'. Did you mean 'serve'?"),
        (["serve", "--prot", "1"], "No such option: --prot"),
        (["serve", "--port", "x"], "--port"),
        (["serve", "--port", "70000"], "--port"),
        (["serve", "--set", "nonsense"], "--set nonsense: write path.to.field=value"),
        (["serve", "--set", "engine.schedular.max_running=4"], "Did you mean engine.scheduler?"),
        (["serve", "--set", "max_running=4"], "Did you mean engine.scheduler.max_running?"),
        (["serve", "--set", "engine.scheduler.max_running=many"], "must be a whole number"),
        (["serve", "--set", "engine.scheduler.max_running=0"], "max_running must be >= 1, got 0"),
        (["serve", "--device", "tpu"], "'tpu'"),
        (["serve", "--weight-format", "int3"], "'int3'"),
        (["serve", "--set", "experts.deferral=many"], "a whole number, or one of auto"),
        (["serve", "--set", "experts.deferral=70"], "must be auto or 0 to 64, got 70"),
        (["serve", "--set", "placement.gpu_memory=many"], "'many' is not a size"),
        (["migrate", "nginx -g x"], "'nginx -g x' starts no program that inlay migrate knows"),
        (["chat", "--set", "engine.cache.pages=0"], "cache.pages must be at least 1, got 0"),
        (["generate", "--prompts", "/not/there"], "--prompts /not/there: No such file"),
        (["generate", "--prompts", "/dev/null", "--output", "/not/there/x"], "--output"),
        (["bench", "serve", "--dataset", "/not/there"], "cannot reach"),
        (["bench", "serve", "--url", "localhost:8000"], "write for example http://"),
        (["bench", "serve", "--request-rate", "fast"], "--request-rate fast"),
        (["bench", "serve", "--slo", "ttft"], "--slo ttft: write"),
        (["bench", "serve", "--endpoint", "grpc"], "auto, chat or completions"),
    ],
)
def test_usage(arguments: list[str], message: str) -> None:
    where = ["--url", "http://127.0.0.1:1"] if "--dataset" in arguments else []
    result = inlay(*arguments, *where)
    assert_one_line(result, 1 if where or "localhost:8000" in arguments else 2, message)


def test_an_unknown_log_level_has_a_hint() -> None:
    assert_one_line(inlay("doctor", INLAY_LOG="debugs"), 2, "Did you mean debug?")


def test_debug_shows_where() -> None:
    result = inlay("serve", "--set", "x=1", INLAY_LOG="debug")
    assert result.returncode == 2
    assert "Traceback" in result.stderr and "inlay: error: --set x:" in result.stderr


def test_help_names_the_commands_and_version_is_known() -> None:
    result = inlay("--help")
    assert result.returncode == 0
    for command in ("serve", "chat", "generate", "doctor", "bench"):
        assert command in result.stdout
    assert inlay("--version").stdout.startswith("inlay ")
    assert inlay().returncode == 2


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom inlay.serve.cli import run\ncode = run(['--help'])\n"
        "heavy = {'torch', 'numpy', 'fastapi', 'nicegui', 'zmq', 'uvicorn', 'tokenizers'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stderr.strip() == "[]"


@pytest.mark.parametrize("command", ["serve", "chat", "generate"])
def test_a_model_that_is_not_there(command: str, tmp_path: Path) -> None:
    port = ["--port", "0"] if command == "serve" else []
    result = inlay(command, str(tmp_path / "missing"), *port)
    assert_one_line(result, 1, "missing")


def test_a_directory_without_a_model(tmp_path: Path) -> None:
    assert_one_line(inlay("serve", str(tmp_path), "--port", "0"), 1, str(tmp_path))


def test_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = inlay("serve", "--port", str(port))
    assert_one_line(result, 1, f"port {port} on 127.0.0.1 is in use")


def test_doctor_as_json() -> None:
    result = inlay("doctor", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["schema"] == 2
    assert report["bandwidth"]["read_gbs"] > 0
    assert report["plan"]["threads"] >= 1


def test_doctor_for_people() -> None:
    result = inlay("doctor")
    assert result.returncode == 0, result.stderr
    for word in ("Machine", "bandwidth", "Inlay will use", "Findings"):
        assert word in result.stdout


def test_doctor_draws_the_topology() -> None:
    result = inlay("doctor", "--topology")
    assert result.returncode == 0, result.stderr
    assert "node 0" in result.stdout and "cpu:0" in result.stdout
    report = json.loads(inlay("doctor", "--topology", "--json").stdout)
    assert len(report["topology"]["tiers"]["cpu:0"]) == 3
    assert_one_line(inlay("doctor", "--topology", "models/x"), 2, "leave DIRECTORY and --save out")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("placement.gpu_memory=20GiB", "says what goes to a GPU, and the device is cpu"),
        ("placement.rules=/not/there.yaml", "rules /not/there.yaml: No such file"),
        ("placement.rules=RULES", "prefill_device is cuda:7, and this machine has cpu"),
    ],
)
def test_placements_that_this_machine_does_not_have(
    setting: str, message: str, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "- match: {name: experts$}\n"
        "  replace:\n"
        "    class: ktransformers.operators.experts.KTransformersExperts\n"
        '    kwargs: {prefill_device: "cuda:7", generate_device: cpu}\n'
    )
    setting = setting.replace("RULES", str(rules))
    result = inlay("generate", "--device", "cpu", "--set", setting, stdin="Define lantern.\n")
    assert_one_line(result, 2, message)
