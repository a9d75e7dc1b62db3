"""Work in a loop of its own thread, and Ctrl-C."""

import subprocess
import sys

# In a process of its own: where the signal comes at an odd moment, it ends no other tests.
_INTERRUPTED = """
import asyncio, gc, signal, threading
from inlay.core.errors import EngineStartError
from inlay.serve.chat.session import LoopThread

signal.signal(signal.SIGINT, signal.default_int_handler)
runner, begun, shown = LoopThread(), threading.Event(), []

async def work():
    asyncio.get_running_loop().set_exception_handler(lambda _, what: shown.append(what))
    begun.set()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        raise EngineStartError("killed by SIGINT") from None

def press():
    begun.wait(30)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

presses = threading.Thread(target=press)
presses.start()
try:
    runner.run(work())
except KeyboardInterrupt:
    print("interrupted")
presses.join()
asyncio.run_coroutine_threadsafe(asyncio.sleep(0), runner.loop).result(10)
gc.collect()
runner.stop()
print(shown)
"""


def test_an_error_of_what_ctrl_c_ended_is_not_shown() -> None:
    """The signal may end an engine's process, too, and that fails then."""
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=90
    )
    assert (done.stdout, done.returncode) == ("interrupted\n[]\n", 0), done.stderr
