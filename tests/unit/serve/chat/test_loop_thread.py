"""Work in a loop of its own thread, and Ctrl-C."""

import asyncio
import gc
import signal
import threading
from typing import Any

import pytest

from inlay.core.errors import EngineStartError
from inlay.serve.chat.session import LoopThread


def test_an_error_of_what_ctrl_c_ended_is_not_shown() -> None:
    """The signal may end an engine's process, too, and that fails then."""
    runner, begun = LoopThread(), threading.Event()
    shown: list[dict[str, Any]] = []

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: shown.append(what))
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise EngineStartError("killed by SIGINT") from None

    def press() -> None:
        begun.wait(30)
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)

    presses = threading.Thread(target=press)
    presses.start()
    with pytest.raises(KeyboardInterrupt):
        runner.run(work())
    presses.join()
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), runner.loop).result(10)
    gc.collect()
    runner.stop()
    assert not shown
