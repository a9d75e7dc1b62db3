"""The stage of llama.cpp, whose program is played by a script."""

import json
import tarfile
from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.gpu_day.stage import CannotRunError, Context
from benchmarks.gpu_day.stages import llama_cpp

PROGRAM = r"""#!/bin/sh
if [ "$1" = --version ]; then echo "version: 1 (abc)"; exit; fi
echo "$@" >>"$(dirname "$0")/calls"
for n in 1 4 16; do
  echo "{\"pp\": 512, \"tg\": 8, \"pl\": $n, \"speed_pp\": 900.0, \"speed_tg\": $n.5}"
done
"""


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setenv("GPU_DAY_KIT", str(tmp_path / "kit"))
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path / "work" / "peers")
    (tmp_path / "kit").mkdir()
    return Context(tmp_path / "rows", 60.0, "cpu", tmp_path / "work")


def test_each_share_is_a_run_of_the_program(context: Context, tmp_path: Path) -> None:
    script = tmp_path / "llama-batched-bench"
    script.write_text(PROGRAM)
    script.chmod(0o755)
    with tarfile.open(tmp_path / "kit" / "llama_cpp.tar.xz", "w:xz") as tar:
        tar.add(script, "./llama-batched-bench")
    llama_cpp.run(context)
    assert not context.failed
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    found = [row["peer"] for row in rows if "peer" in row]
    assert [row["gpu_share"] for row in found] == [1.0, 0.5]
    assert found[0]["label"] == "llama.cpp-cuda (version: 1 (abc)) Q4_0 experts, Q8_0 rest"
    assert found[0]["rates"]["4"] == {"prefill_tokens_per_s": 900.0, "decode_tokens_per_s": 4.5}
    (calls,) = (tmp_path / "work").rglob("calls")
    model = tmp_path / "work" / "models" / "model-48" / "weights.gguf"
    for call, on_host in zip(calls.read_text().splitlines(), ("0", "1"), strict=True):
        assert f"-m {model} " in call and "-npl 1,4,16" in call
        assert call.endswith(f"-fa on -ngl 999 --n-cpu-moe {on_host}")


def test_without_the_build_it_cannot_run(context: Context) -> None:
    with pytest.raises(CannotRunError, match="prepare it with --llama-cpp ARCHIVE"):
        llama_cpp.run(context)
