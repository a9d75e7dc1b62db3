"""What holds for every test: fixed seeds, opt-in markers, and skips that say why."""

import faulthandler
import gc
import importlib.util
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import hypothesis
import pytest

from inlay.core.openmp import let_openmp_sleep
from tests.support.browser import chromium
from tests.support.gate import LEFT, gate_tests, left_to_full
from tests.support.netns import netns_problem

# Same examples on every run: a failure here is a failure everywhere. Machines are shared, so
# Hypothesis sets no deadline of its own.
hypothesis.settings.register_profile("inlay", derandomize=True, deadline=None, max_examples=30)
# Other examples on every run, and more of them: `--hypothesis-profile fresh`.
hypothesis.settings.register_profile("fresh", derandomize=False, deadline=None, max_examples=200)
hypothesis.settings.load_profile("inlay")

# A shell that starts tests in the background hands on that Ctrl-C is ignored. They, and what they
# start, heed it anyway.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_as_by_ctrl_c(number: int, frame: FrameType | None) -> None:
    """Let fixtures stop the servers that they started, which have process groups of their own, when
    a check that is ended ends its stages by SIGTERM.
    """
    if os.getpid() == _PYTEST:
        signal.default_int_handler(number, frame)
    signal.signal(number, signal.SIG_DFL)  # a forked child's is the system's
    os.kill(os.getpid(), number)


_PYTEST = os.getpid()
signal.signal(signal.SIGTERM, _end_as_by_ctrl_c)

# Tests run beside others, and start processes: none of them spins on a core that others need.
let_openmp_sleep()

# Without a GPU its kernels run in Triton's interpreter. Triton reads this when it is first
# imported, which any test may do, and only then; so it is set before, and without asking torch.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

OPT_IN = ("slow", "network", "golden", "peers")


def _cuda_devices() -> int:
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count()


def _has_amx() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and " amx_tile" in cpuinfo.read_text()


def _has_rdma() -> bool:
    devices = Path("/sys/class/infiniband")
    return devices.exists() and any(devices.iterdir())


# Marker -> what is missing, or None.
DEVICES: dict[str, Callable[[], str | None]] = {
    "gpu": lambda: None if _cuda_devices() >= 1 else "no CUDA device",
    "multi_gpu": lambda: None if _cuda_devices() >= 2 else "fewer than two CUDA devices",
    "amx": lambda: None if _has_amx() else "this CPU has no AMX",
    "rdma": lambda: None if _has_rdma() else "no RDMA device",
    "netns": netns_problem,
    "browser": lambda: None if chromium() else "Chromium is not installed",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--run",
        action="append",
        default=[],
        choices=OPT_IN,
        help="also run tests with this marker (may be repeated)",
    )
    parser.addoption(
        "--full",
        action="store_true",
        help="also what the gate leaves out (tests/support/gate.py)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_to_the_full_check(config, items)
    chosen = config.getoption("--run")
    missing: dict[str, str | None] = {}
    for item in items:
        for mark in {mark.name for mark in item.iter_markers()}:
            if mark in OPT_IN and mark not in chosen:
                item.add_marker(pytest.mark.skip(reason=f"opt in with --run {mark}"))
            if mark in DEVICES:
                if mark not in missing:
                    missing[mark] = DEVICES[mark]()
                if reason := missing[mark]:
                    item.add_marker(pytest.mark.skip(reason=reason))


def _leave_to_the_full_check(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what the gate leaves out, but nothing where the command line names single tests."""
    if config.getoption("--full") or any("::" in argument for argument in config.args):
        return
    kept = gate_tests(items, left_to_full(LEFT.read_text()))
    ids = {id(item) for item in kept}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in ids])
    items[:] = kept


class _FailureReporter:
    """Prints a failure when it happens: the whole run may take minutes yet."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(f"\nFAILED {report.nodeid} ({report.when})\n{report.longreprtext}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_FailureReporter(config))


def pytest_collection_finish() -> None:
    """What imports left stays: no collection walks over it again.

    Each load of a model collects garbage. Over the modules of all tests that takes up to a second,
    and was nine tenths of the time of tests that load tiny models.
    """
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail where tests left a thread behind that computes: what came after it was slower.

    One that is just ending, as those of a closed engine, gets ten looks to be gone.
    """
    watched_s = 0.5
    for _ in range(10):
        before = time.process_time()
        time.sleep(watched_s)
        busy = (time.process_time() - before) / watched_s
        if busy <= 0.3:
            return
    if session.exitstatus == 0:
        sys.stderr.write(f"\nERROR threads that tests left behind use {busy:.0%} of a core:\n")
        faulthandler.dump_traceback(sys.__stderr__)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Write out what is told, so that a crash while the interpreter ends does not take it along."""
    if terminal := config.pluginmanager.get_plugin("terminalreporter"):
        terminal.flush()


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give tests a cache directory of their own: the user's stays as it is, and stages that run at
    the same time share nothing.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INLAY_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    random.seed(0)


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio, as the server does."""
    return "asyncio"
