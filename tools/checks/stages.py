"""The stages of the check: what each proves, what it waits for, and how long it may take.

What a stage runs stands in tools/stages.sh under the same name.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of the check.

    Attributes:
        name: as on the command line, and the name of its function in tools/stages.sh.
        proves: one line for `--help`.
        after: stages that must have passed before it starts.
        limit_s: seconds after which it is ended and counts as failed; several times what the
            slowest machine seen took.
        full_limit_s: the same with `--full`.
        full_only: whether it runs with `--full` alone.
        inputs: git's pathspecs of all that its result depends on, where the gate need not run it
            again: not while they are as they were when the recorded full check passed it. Empty:
            always runs.
    """

    name: str
    proves: str
    after: tuple[str, ...] = ()
    limit_s: int = 2400
    full_limit_s: int = 7200
    full_only: bool = False
    inputs: tuple[str, ...] = ()


# What the C++ programs under sanitizers are built from, and how.
_CPP = (
    "native",
    ":!native/bindings",  # of the Python extension, which only --full builds with sanitizers
    ":!native/sim",  # nothing of it is in a program of for_addresses or for_races
    "CMakeLists.txt",
    "examples/transport_plugin",
    "pyproject.toml",
    "tools/stages.sh",
)

SET_UP = ("headers", "set-up", "packages")

# In the order in which they start where several could: the longest first.
STAGES = (
    Stage(name="headers", proves="Debian packages that the C++ core is built with are there"),
    Stage(name="set-up", proves=".venv holds Inlay, its tests and tools", after=("headers",)),
    Stage(name="packages", proves="Debian packages that tests start are there", after=("headers",)),
    Stage(
        name="unit",
        proves="each package keeps its promises with fakes and tiny models",
        after=("set-up", "packages"),
    ),
    Stage(
        name="asan",
        proves="no bad access and nothing undefined in kernels and what reads bytes of others",
        after=("set-up",),
        inputs=_CPP,
    ),
    Stage(
        name="e2e",
        proves="servers answer real clients and a browser",
        after=("set-up", "packages"),
    ),
    Stage(
        name="ctest",
        proves="C++ tests pass, on older processors too",
        after=("set-up", "packages"),
    ),
    Stage(
        name="tsan",
        proves="no data race in transfer, store and the hand-over between GPU and CPU",
        after=("set-up",),
        inputs=_CPP,
    ),
    Stage(
        name="integration-cluster",
        proves="deployments, dispatchers, and other engines beside ours",
        after=("set-up", "packages"),
    ),
    Stage(
        name="integration-engine",
        proves="engines of one and several processes, training, new weights",
        after=("set-up", "packages"),
    ),
    Stage(
        name="integration-transfer",
        proves="processes move bytes and keep them: transfer engines, stores",
        after=("set-up", "packages"),
    ),
    Stage(
        name="netns",
        proves="transfers over shaped network links",
        after=("set-up", "packages"),
    ),
    Stage(
        name="native",
        proves="kernels and native parts agree with their references on each instruction set",
        after=("set-up",),
    ),
    Stage(
        name="real",
        proves="published models answer, with the tokens and probabilities of llama.cpp",
        after=("set-up",),
    ),
    Stage(name="types", proves="mypy accepts the package", after=("set-up",)),
    Stage(
        name="wheel",
        proves="the wheel installs and serves where no compiler is",
        after=("ctest",),  # both build in the folder where the package was built
    ),
    Stage(
        name="architecture",
        proves="imports, exports and printed numbers keep the rules",
        after=("set-up",),
    ),
    Stage(name="lint", proves="ruff and codespell find nothing", after=("set-up",)),
    Stage(name="format", proves="Python and C++ are formatted", after=("set-up",)),
    Stage(name="benchmarks", proves="a benchmark runs and writes its record", after=("set-up",)),
    Stage(
        name="build",
        proves="the C++ core compiles in the time that it may take",
        after=("unit", "asan", "e2e", "ctest", "tsan"),
        full_only=True,
    ),
    Stage(
        name="faults",
        proves="kills, full disks and pauses at fresh random moments lose nothing",
        after=("unit", "asan", "e2e", "ctest", "tsan"),
        full_only=True,
    ),
)
