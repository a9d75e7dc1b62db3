"""Does with a rank's pages what the engine of its model asks for, beside the rank's steps."""

import asyncio
import logging
import threading

import msgspec
import numpy as np

from inlay.cache.rank_messages import TOPIC, Answer, Ask, PageGrant, PageRevoke, PageWrite
from inlay.cache.rank_pages import OwnPages
from inlay.core.errors import InlayError
from inlay.transfer import Peer, TransferEngine

log = logging.getLogger(__name__)

_JOIN_S = 5.0


class RankServer:
    """See the module. It has a thread of its own.

    Args:
        engine: of this process; closed here.
        pages: of this process.
        owner: address of the transfer engine that may ask, and nobody else.

    Attributes:
        address: of the engine.
    """

    def __init__(self, engine: TransferEngine, pages: OwnPages, owner: str) -> None:
        """Connect to the owner. Raises as `TransferEngine.connect`."""
        self.address = engine.address
        self._engine = engine
        self._pages = pages
        self._owner: Peer = engine.connect(owner)
        self._works: dict[int, asyncio.Task[int]] = {}
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve()), name="inlay-rank-pages", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Leave all peers, and end the thread. What is under way fails."""
        self._engine.close()
        self._thread.join(_JOIN_S)

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as answers:
            async for message in self._engine.messages():
                if message.topic != TOPIC or message.engine_id != self._owner.engine_id:
                    continue
                ask = msgspec.msgpack.decode(message.body, type=Ask)
                if ask.work is not None:
                    work = self._works[ask.number] = asyncio.create_task(self._value(ask.work))
                    answers.create_task(self._answer(ask.number, work))
                elif ask.number in self._works:
                    self._works[ask.number].cancel()

    async def _answer(self, number: int, work: "asyncio.Task[int]") -> None:
        try:
            answer = Answer(number, await work)
        except asyncio.CancelledError:
            answer = Answer(number, error="it was cancelled")
        except Exception as error:
            told = str(error) if isinstance(error, InlayError) else ""
            answer = Answer(number, error=told or repr(error))
        finally:
            del self._works[number]
        try:
            await asyncio.to_thread(self._owner.send, TOPIC, msgspec.msgpack.encode(answer))
        except InlayError as error:
            log.warning("the engine cannot be told of its pages: %s", error)

    async def _value(self, work: PageGrant | PageRevoke | PageWrite) -> int:
        match work:
            case PageGrant(pages):
                return self._pages.grant(np.frombuffer(pages, "<u4").astype(np.int32))
            case PageRevoke(grant):
                return int(await asyncio.to_thread(self._pages.revoke, grant))
            case PageWrite():
                await self._pages.write(work)
                return 0
