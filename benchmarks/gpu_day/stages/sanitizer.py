"""compute-sanitizer over one small shape of each kernel: wrong addresses, and races of threads."""

import os
import shutil
import subprocess
import sys

from benchmarks.gpu_day.stage import CannotRunError, Context

# Tests, because they have small shapes and say when numbers are wrong.
ADDRESSES = (
    "test_linear.py::test_product_of_every_format[1-64-256-int4:g32]",
    "test_linear.py::test_product_of_every_format[17-70-96-int4:g32]",
    "test_linear.py::test_pieces_bias_and_what_was_there[True-3-5]",
    "test_linear.py::test_a_matrix_for_each_head[int8]",
    "test_experts.py::test_numbers_of_tokens[1]",
    "test_experts.py::test_numbers_of_tokens[64]",
    "test_expert_adapters.py::test_numbers_of_tokens[33]",
    "test_attention.py::test_prefill_and_decode[7-1-requests0]",
    "test_attention.py::test_contexts_in_pieces[requests1-3-True]",
    "test_attention.py::test_latents[requests0-1]",
    "test_small_steps.py::test_rotation_and_pages[6-2-32-16-0-first]",
    "test_small_steps.py::test_routing[router0-128-8-False]",
)
# Those whose threads hand numbers to each other.
RACES = (
    "test_experts.py::test_numbers_of_tokens[64]",
    "test_attention.py::test_contexts_in_pieces[requests1-3-True]",
)
FOLDER = "tests/unit/models/gpu"
FOUND = 9  # the exit status that the sanitizer is asked for


def run(context: Context) -> None:
    """Each tool once; a rehearsal runs the tests alone."""
    if context.rehearsal:
        context.left_out("memcheck and racecheck", "there is no GPU that they could watch")
        run_tests(context, "the tests alone", [], ADDRESSES)
        return
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        raise CannotRunError("there is no compute-sanitizer on PATH")
    for name, tests in (("memcheck", ADDRESSES), ("racecheck", RACES)):
        context.need(20, name)
        options = ["--tool", name, "--error-exitcode", str(FOUND), "--print-limit", "20"]
        run_tests(context, name, [tool, *options, "--target-processes", "all"], tests)


def run_tests(context: Context, name: str, before: list[str], tests: tuple[str, ...]) -> None:
    """In one process without workers, which the tool would have to follow."""
    command = [
        *before, sys.executable, "-m", "pytest", "-q", "--no-header", "-W", "default",
        "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "0",
        *(f"{FOLDER}/{test}" for test in tests),
    ]  # fmt: skip
    # Memory that PyTorch keeps for later looks like the tensors' own.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    limit_s = context.seconds_left() - 5
    try:
        done = subprocess.run(command, env=environment, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        context.check(name, False, f"not over after {limit_s:.0f} s")
        return
    said = "it found something: see the log" if done.returncode == FOUND else "tests failed"
    context.check(name, done.returncode == 0, "" if done.returncode == 0 else said)
