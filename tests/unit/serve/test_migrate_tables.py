"""The tables of flags as a whole: the order of flags, and every row."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.core.errors import ConfigError
from inlay.serve.migrate.program import Program
from inlay.serve.migrate.programs import PROGRAMS
from inlay.serve.migrate.rows import Fate, Takes
from inlay.serve.migrate.translate import translate
from tests.unit.serve.migrate_line import assert_accepted

# Flags that bear on each other, in any order and in part.
FLAGS = {
    "python -m sglang.launch_server": (
        "--model-path org/name",
        "--revision v1",
        "--kt-weight-path W",
        "--kt-method AMXINT8",
        "--kt-cpuinfer 64",
        "--kt-num-gpu-experts 1",
        "--kt-max-deferred-experts-per-token 2",
        "--quantization fp8",
        "--dtype bfloat16",
        "--device cuda",
        "--chunked-prefill-size 4096",
        "--max-running-requests 3000",
        "--max-total-tokens 500",
        "--context-length 9000",
        "--page-size 32",
        "--disable-radix-cache",
        "--hicache-size 4",
        "--enable-mixed-chunk",
        "--unknown",
    ),
    "vllm serve org/name": (
        "--port 9000",
        "--max-num-seqs 2000",
        "--max-num-batched-tokens 1500",
        "--long-prefill-token-threshold 700",
        "--num-gpu-blocks-override 9",
        "--kv-cache-memory-bytes 8G",
        "--block-size 32",
        "--max-model-len 4k",
        "--served-model-name a b",
        "--dtype float32",
        "-q fp8",
        "--cpu-offload-gb 10",
        "--enable-prefix-caching=false",
        "--kv-offloading-size 2",
        "--seed 3",
    ),
    "llama-server": (
        "-m x-Q8_0.gguf",
        "-hf org/name-GGUF",
        "-c 8192",
        "-np 100",
        "-kvu",
        "-b 64",
        "-ub 2048",
        "-ngl 20",
        "--cpu-moe",
        "--n-cpu-moe 30",
        "-dev CUDA1",
        "-ctk bf16",
        "-ctv f32",
        "-t 8",
        "--no-cache-prompt",
        "--cache-ram 4096",
        "-fa on",
    ),
}


def start(program: Program) -> list[str]:
    """The first words of its commands."""
    words = program.starts[0].split()
    return ["python", *words] if words[0] == "-m" else words


@given(data=st.data())
def test_the_order_of_flags_changes_nothing(data: st.DataObject) -> None:
    command = data.draw(st.sampled_from(sorted(FLAGS)))
    flags = data.draw(st.lists(st.sampled_from(FLAGS[command]), unique=True))
    shuffled = data.draw(st.permutations(flags))
    first, second = (translate([" ".join((command, *order))]) for order in (flags, shuffled))
    assert first.line == second.line
    assert_accepted(first)
    said = {finding.flag for finding in first.findings}
    assert said == {finding.flag for finding in second.findings}
    assert {flag.replace("=", " ") for flag in flags} <= said


VALUES = (
    "1", "0", "-1", "8", "4096", "100000000", "0.5", "8G", "32k", "on", "auto", "cpu", "debug",
    "a b", "x-Q4_0.gguf", "org/name", "/m", "bfloat16", "float32", "fp8", "awq", "AMXINT8",
    "write_back",
)  # fmt: skip


@given(data=st.data())
def test_any_flags_give_a_line_that_is_accepted_or_an_error_with_a_reason(
    data: st.DataObject,
) -> None:
    program = data.draw(st.sampled_from(PROGRAMS))
    words = start(program)
    for row in data.draw(st.lists(st.sampled_from(program.rows), max_size=12)):
        flag = data.draw(st.sampled_from(row.spellings)).replace("*", "x")
        value = data.draw(st.sampled_from(VALUES))
        if flag.endswith("="):
            words.insert(0, flag + value)
        else:
            words += [flag, value] if row.takes in (Takes.ONE, Takes.MANY) else [flag]
    try:
        migration = translate(words)
    except ConfigError as error:
        assert re.search("must be|needs a value|no name of a model", str(error))
    else:
        assert_accepted(migration)
        assert not [one for one in migration.findings if one.fate is Fate.UNKNOWN]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_every_spelling_is_in_one_row(program: Program) -> None:
    spellings = [spelling for row in program.rows for spelling in row.spellings]
    assert len(spellings) == len(set(spellings))
    assert all(row.reason for row in program.rows)
    assert all(row.targets for row in program.rows if row.fate is Fate.LINE)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_every_row_that_asks_for_nothing_is_read(program: Program) -> None:
    for row in program.rows:
        for spelling in row.spellings:
            if row.fate is Fate.LINE or spelling.endswith("="):
                continue
            values = [] if row.takes in (Takes.SWITCH, Takes.MAYBE) else ["1234"]
            words = [*start(program), spelling.replace("*", "x"), *values]
            findings = {finding.flag: finding.fate for finding in translate(words).findings}
            assert findings[" ".join([spelling.replace("*", "x"), *values])] is row.fate
