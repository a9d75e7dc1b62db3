"""Another rank of an engine's model, in a process of its own: `python -m inlay.engine.rank`.

Reads its setup from standard input, loads its part of the model, and runs each step that it is told
there, beside the engine's own. It ends when the engine closes the pipe or is gone.
"""

import contextlib
import logging
import os
import select
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from inlay.core.errors import EngineError, InlayError, RankLostError
from inlay.core.failures import failure_message
from inlay.core.log import configure_logging, parse_log_setting
from inlay.core.openmp import let_openmp_sleep
from inlay.core.placement import CPU
from inlay.core.settings import read_settings
from inlay.engine.rank_adapters import RankAdapters
from inlay.engine.rank_weights import RankWeights
from inlay.engine.rank_wire import (
    RANK_LOST,
    Answers,
    PoolSetup,
    RankAdapter,
    RankExchange,
    RankForget,
    RankKeep,
    RankLoad,
    RankReady,
    RankSetup,
    RankStep,
    ToRank,
    batch_of,
    read_frame,
)
from inlay.engine.wire import START_FAILED

if TYPE_CHECKING:
    from inlay.models.model import Model

log = logging.getLogger(__name__)


def _end_with(parent_pid: int) -> None:
    """End this process when the engine's does, whatever it is doing."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            parent = os.pidfd_open(parent_pid)
            if os.getppid() == parent_pid:
                select.select([parent], [], [])
        os._exit(0)

    threading.Thread(target=watch, name="inlay-parent-watch", daemon=True).start()


def _serve(setup: RankSetup, commands: BinaryIO, answers: Answers) -> None:
    """Do as the engine says, until it says no more.

    Raises:
        Exception: what kept this rank from it.
    """
    # They load torch; the engine's process is watched by now.
    import torch

    from inlay.cache import serve_rank
    from inlay.core.tensor_parallel import Rank
    from inlay.engine.loading import free_for_pages, load_placed, set_threads
    from inlay.engine.placing import Where
    from inlay.engine.tiering import page_memory
    from inlay.models.rank_group import RankGroup, meet

    if setup.device != CPU:
        torch.cuda.set_device(setup.device)  # else the first GPU would get a context, too
    set_threads(setup.config.threads, setup.degree, on_cpu=setup.device == CPU)
    answers.write(RankReady())  # now the others need not wait long for this one
    rank = Rank(setup.number, setup.degree)
    group = RankGroup(rank, meet(setup.port), setup.device)
    where = Where(placement=setup.placement, weight_format=setup.weight_format)

    def load(directory: Path, previous: "Model | None" = None) -> "Model":
        if setup.device != CPU:
            torch.cuda.set_device(setup.device)  # of this thread
        return load_placed(setup.config, directory, setup.device, where, group, previous=previous)

    weights = RankWeights(load(Path(setup.directory)), load, answers)
    models = weights.models
    answers.write(RankReady(free_for_pages(setup.config, models[0])))
    decode = msgspec.msgpack.Decoder(ToRank).decode
    pool, adapters = None, RankAdapters(answers)
    with torch.inference_mode():
        while (frame := read_frame(commands)) is not None:
            match decode(frame):
                case PoolSetup(dtype, page_tokens, num_pages):
                    kv_format = models[0].kv_format(dtype=dtype, page_tokens=page_tokens)
                    pool = models[0].new_kv_pool(kv_format, num_pages)
                    answers.write(RankReady())
                case RankExchange(owner):
                    assert pool is not None, "pages come before what others write to them"
                    listen = f"{owner.rpartition(':')[0]}:0"
                    secret = setup.config.cache.secret
                    server = serve_rank(listen, secret, page_memory(pool), owner)
                    answers.write(RankReady(address=server.address))
                case RankAdapter(number, directory):
                    adapters.begin(number, Path(directory), weights.newest)
                case RankForget(number):
                    adapters.forget(number)
                case RankLoad(number, directory):
                    weights.begin(number, Path(directory))
                case RankKeep(numbers):
                    weights.keep(numbers)
                case RankStep() as step:
                    assert pool is not None, "pages come before steps"
                    models[step.weights].forward(batch_of(step, adapters.loaded), pool)


def main() -> int:
    """Run a rank; returns the exit status."""
    # The engine decides when to stop: Ctrl-C and the end of a service reach it, too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    let_openmp_sleep()
    commands = sys.stdin.buffer
    setup = msgspec.json.decode(commands.readline(), type=RankSetup)
    configure_logging(parse_log_setting(read_settings().log))
    _end_with(setup.parent_pid)
    # What libraries print must not come between answers.
    answers = Answers(os.fdopen(os.dup(sys.stdout.fileno()), "wb"))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        _serve(setup, commands, answers)
    except RankLostError as error:
        log.info("rank %d ends: %s", setup.number, error)
        return RANK_LOST
    except Exception as error:
        log.debug("rank %d failed", setup.number, exc_info=error)
        told = error if isinstance(error, InlayError) else EngineError(repr(error))
        with contextlib.suppress(OSError):
            answers.write(failure_message(told))
        return START_FAILED
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # taking torch and its threads down in order would cost a second or two
