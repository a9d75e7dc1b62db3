"""The process of a proxy: `python -m inlay.connect.foreign.process`, started by a supervisor.

It reads its setup from standard input, waits for the engine, and serves dispatchers until standard
input is closed, its parent is gone, or the engine is.
"""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable

import msgspec
import zmq

from inlay.connect.foreign.http import EngineHttp
from inlay.connect.foreign.opening import open_engine
from inlay.connect.foreign.proxy import Proxy
from inlay.connect.foreign.setup import ProxySetup
from inlay.core.clock import SystemClock
from inlay.core.errors import ConfigError, EngineError, InlayError
from inlay.core.failures import failure_message
from inlay.core.instance_news import new_run_id
from inlay.core.instance_peers import Peers
from inlay.core.instance_setup import Bound, Failed, InstanceLine, Ready
from inlay.core.instance_socket import listen_for_dispatchers, new_socket
from inlay.core.launcher_lines import speak_to_launcher
from inlay.core.log import configure_logging, parse_log_setting
from inlay.core.parent_watch import ParentWatch
from inlay.core.settings import read_settings

log = logging.getLogger(__name__)

FAILED = 3
"""Exit status of a proxy that said why it ends."""


async def _serve(
    setup: ProxySetup, watch: ParentWatch, say: Callable[[InstanceLine], None]
) -> InlayError | None:
    """Bind, wait for the engine, serve; why it ends, if not because it was told to."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_reader(watch.wake, stopped.set)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = new_socket(context, zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # else those who are gone were not noticed
    clock, run_id, began_s = SystemClock(), new_run_id(), time.monotonic()
    peers = Peers(socket, clock)
    engine = setup.engine
    http = EngineHttp(engine.url, setup.instance.name, engine.api_key)
    failure: InlayError | None = None
    try:
        address = listen_for_dispatchers(socket, setup.instance, setup.secret)
        say(Bound(address=address, run_id=run_id, pid=os.getpid()))
        opening = asyncio.ensure_future(open_engine(setup, http))
        ending = asyncio.ensure_future(stopped.wait())
        await asyncio.wait((opening, ending), return_when=asyncio.FIRST_COMPLETED)
        if stopped.is_set():
            opening.cancel()
            return None
        dialect, about = await opening
        proxy = Proxy(
            setup,
            dialect,
            http,
            about,
            context=context,
            socket=socket,
            peers=peers,
            run_id=run_id,
            clock=clock,
        )
        ending.add_done_callback(lambda _: proxy.stop())
        say(Ready(address=address, load_s=time.monotonic() - began_s))
        failure = await proxy.run()
    except InlayError as error:
        failure = error
    finally:
        if failure is not None:
            while peers.receive() is not None:  # those who came meanwhile are told, too
                pass
            peers.send(peers.everyone, failure_message(failure))
        socket.close()
        await http.close()
        context.term()
    return failure


def main() -> int:
    """Run a proxy; returns the exit status."""
    # The parent decides when to stop: Ctrl-C and the end of a service reach it, too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    line = sys.stdin.buffer.readline()
    configure_logging(parse_log_setting(read_settings().log))
    say = speak_to_launcher()
    try:
        setup = msgspec.json.decode(line, type=ProxySetup)
    except (msgspec.MsgspecError, ConfigError) as error:
        say(Failed(code=ConfigError.code, message=f"the setup cannot be read: {error}"))
        return FAILED
    watch = ParentWatch(setup.parent_pid)
    import uvloop

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            failure = runner.run(_serve(setup, watch, say))
    except Exception as error:
        log.exception("the proxy ends")
        failure = EngineError(f"the proxy failed: {error!r}")
    if failure is None:
        return 0
    say(Failed(code=failure.code, message=str(failure)))
    return FAILED


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
