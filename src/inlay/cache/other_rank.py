"""The pages of another rank of the engine's model, which has a process of its own."""

import asyncio
import contextlib
import itertools
import logging
from concurrent.futures import Future, wait

import msgspec
import numpy as np
import numpy.typing as npt

from inlay.cache.rank_messages import TOPIC, Answer, Ask, PageGrant, PageRevoke, PageWrite
from inlay.cache.rank_pages import LAND_S
from inlay.core.errors import InlayError, PeerDiedError, TransferError, TransferTimeoutError
from inlay.transfer import Message, TransferEngine

log = logging.getLogger(__name__)

_ANSWER_S = 10.0  # to give a grant, or take one back
_WRITTEN_S = LAND_S + 10.0
_STOPPED_S = 1.0


class OtherRank:
    """`RankPages` of a `RankServer`.

    Args:
        engine: of this process, which has `hear` told what comes to it.
        address: of the rank's.

    Attributes:
        engine_id: of the rank's.
    """

    def __init__(self, engine: TransferEngine, address: str) -> None:
        """Connect to it. Raises as `TransferEngine.connect`."""
        self.address = address
        self._peer = engine.connect(address)
        self.engine_id = self._peer.engine_id
        self._numbers = itertools.count(1)
        self._asked: dict[int, Future[int]] = {}

    def grant(self, pages: npt.NDArray[np.int32]) -> int:
        """See `RankPages`."""
        return self._value(PageGrant(pages.astype("<u4").tobytes()))

    def revoke(self, grant: int) -> bool:
        """See `RankPages`."""
        try:
            return self._value(PageRevoke(grant)) > 0
        except PeerDiedError:
            return True  # its pages are gone, too
        except InlayError as error:
            log.warning("a rank does not take a grant back: %s", error)
            return False

    async def write(self, write: PageWrite) -> None:
        """See `RankPages`."""
        number = next(self._numbers)
        work = asyncio.ensure_future(self._written(number, write))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            # The pages must stay as they are until the rank has let go of them.
            end = asyncio.ensure_future(self._end(number, work))
            while not end.done():
                with contextlib.suppress(asyncio.CancelledError):  # again
                    await asyncio.shield(end)
            raise
        finally:
            self._asked.pop(number, None)

    def hear(self, message: Message) -> None:
        """A message of the rank has come."""
        answer = msgspec.msgpack.decode(message.body, type=Answer)
        asked = self._asked.get(answer.number)
        if asked is None or asked.done():  # nobody waits for it any more
            return
        if answer.error:
            asked.set_exception(TransferError(answer.error))
        else:
            asked.set_result(answer.value)

    def _value(self, work: PageGrant | PageRevoke) -> int:
        number = next(self._numbers)
        try:
            answer = self._ask(number, work)
            done, _ = wait([answer], _ANSWER_S)
            if not done:
                raise self._late(_ANSWER_S)
            return answer.result()
        finally:
            self._asked.pop(number, None)

    async def _written(self, number: int, write: PageWrite) -> None:
        answer = asyncio.wrap_future(await asyncio.to_thread(self._ask, number, write))
        done, _ = await asyncio.wait({answer}, timeout=_WRITTEN_S)
        if not done:
            raise self._late(_WRITTEN_S)
        answer.result()

    async def _end(self, number: int, work: "asyncio.Future[None]") -> None:
        with contextlib.suppress(InlayError):
            await asyncio.to_thread(self._send, Ask(number, None))
        await asyncio.wait({work}, timeout=_STOPPED_S)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    def _ask(self, number: int, work: PageGrant | PageRevoke | PageWrite) -> "Future[int]":
        asked: Future[int] = Future()
        self._asked[number] = asked
        self._send(Ask(number, work))
        return asked

    def _send(self, ask: Ask) -> None:
        self._peer.send(TOPIC, msgspec.msgpack.encode(ask))

    def _late(self, seconds: float) -> InlayError:
        return TransferTimeoutError(f"a rank at {self.address} did not answer in {seconds:g} s")
