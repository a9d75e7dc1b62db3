"""Pull a version from its publishers and from all who hold it, and hold it for others.

    held = pull(engine, ["10.0.0.1:17100"], "policy", landing=MemoryLanding())
    held.content(held.manifest.by_name["lm_head.weight"][0])
    held.close()

Each piece is compared with its checksum before it counts, and before others may have it. What a
holder sends damaged comes from another one.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from inlay.core.errors import ArgumentError, InlayError, WeightsError
from inlay.transfer import TransferEngine
from inlay.weights.landing import Bytes, Landing
from inlay.weights.manifest import Entry
from inlay.weights.pieces import Source
from inlay.weights.pull_config import PullConfig
from inlay.weights.swarm import Swarm

_TELL_S = 2.0


@dataclass(frozen=True)
class PullReport:
    """What a pull did.

    Attributes:
        seconds: from the first question to the last piece.
        taken_bytes: by address of who sent them.
        kept_bytes: that were here already.
        damaged: pieces that came damaged and were asked for again.
    """

    seconds: float
    taken_bytes: dict[str, int]
    kept_bytes: int
    damaged: int


class Held:
    """A version that is here; others have it from here until `close`.

    Attributes:
        manifest: what it consists of.
        report: how it came.
    """

    def __init__(self, swarm: Swarm, report: PullReport) -> None:
        self.manifest = swarm.manifest
        self.report = report
        self._swarm = swarm
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="inlay-held", daemon=True)
        self._thread.start()

    def content(self, entry: Entry) -> Bytes:
        """The bytes of an entry, to be read; valid until `close`.

        Raises:
            ArgumentError: the landing keeps it in another layout or dtype.
        """
        content = self._swarm.landing.content(entry)
        if content is None:
            raise ArgumentError(
                f"{entry.name} is not kept as it was published: read the arrays of the landing, or "
                "the files of the directory"
            )
        return content

    def read(self, entry: Entry, start: int, room: Bytes) -> bool:
        """Fill `room` with bytes of an entry, from `start` on; False: they are not kept so, or not
        there any more.
        """
        return self._swarm.landing.read(entry, start, room)

    def close(self) -> None:
        """Offer it no more; memory is given back, a directory stays."""
        if not self._closing.is_set():
            self._closing.set()
            self._thread.join()
            self._swarm.leave()

    def __enter__(self) -> "Held":
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _tell(self) -> None:
        """Publishers forget who is silent."""
        while not self._closing.wait(_TELL_S):
            self._swarm.tell(whole=True)


def pull(
    engine: TransferEngine,
    publishers: Sequence[str],
    name: str,
    *,
    landing: Landing,
    version: str | None = None,
    previous: Source | None = None,
    config: PullConfig | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Held:
    """Pull a version and return when all that is wanted is here.

    Args:
        engine: listens where other peers reach it, unless nothing is to be had from here.
        publishers: addresses, "host:port"; where several hold a part each, all of them.
        version: None: the newest that all publishers have.
        previous: another version that is here: entries that are equal in both are copied.
        progress: called with bytes so far and in all.

    Raises:
        WeightsError: there is no such checkpoint or version, nobody has a piece any more,
            nothing came for `timeout_s`, or what came cannot be written.
        WeightsMismatchError: publishers contradict each other, or the landing wants something else.
        TransferError: no publisher can be reached.

    Cost: besides what the landing takes, at most `bucket_bytes` are under way for each holder; one
        CRC32C over all.
    """
    if not publishers:
        raise ArgumentError("name at least one publisher, host:port")
    began_s = time.monotonic()
    try:
        swarm = Swarm(engine, publishers, name, version, landing, config or PullConfig())
    except OSError as error:
        raise _unwritten(name, error) from error
    try:
        kept = swarm.keep(previous)
        swarm.offer()
        asyncio.run(swarm.run(progress))
        landing.finish()
        swarm.tell(whole=True)
    except OSError as error:
        swarm.leave()
        raise _unwritten(name, error) from error
    except BaseException:
        swarm.leave()
        raise
    report = PullReport(
        seconds=time.monotonic() - began_s,
        taken_bytes=dict(swarm.taken),
        kept_bytes=kept,
        damaged=swarm.damaged,
    )
    return Held(swarm, report)


def _unwritten(name: str, error: OSError) -> InlayError:
    """The system has no room for what comes, or lets nobody write there."""
    if isinstance(error, InlayError):
        return error
    where = "" if error.filename is None else f"{error.filename}: "
    return WeightsError(
        f"{name} was not pulled: {where}{error.strerror or error}; make room or name a directory "
        "that can be written, and pull again"
    )
