"""What a dispatcher offers of the weights on its machine, to instances that do not see them."""

import asyncio
import logging
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from inlay.core.errors import InlayError

if TYPE_CHECKING:
    from inlay.transfer import TransferEngine
    from inlay.weights import Publisher

log = logging.getLogger(__name__)

_KEPT = 2  # as a publisher keeps them


class Offers:
    """The newest versions that were asked for. Nothing is opened before the first one.

    Args:
        listen: "host:port" of the server's own swarm: the same host, any port.
        secret: of the deployment.
    """

    def __init__(self, listen: str, secret: str) -> None:
        self._listen = listen
        self._secret = secret
        self._engine: TransferEngine | None = None
        self._publisher: Publisher | None = None
        self._offered: deque[str] = deque(maxlen=_KEPT)
        self._lock = asyncio.Lock()

    async def offer(self, directory: Path, version: str) -> str | None:
        """Offer a directory; returns the address at which it is, None where it cannot be.

        Cost: the first time reads all of it, see `Publisher.publish`.
        """
        async with self._lock:
            try:
                return await asyncio.to_thread(self._offer, directory, version)
            except (InlayError, OSError) as error:
                log.warning("weights %s are not offered to instances: %s", version, error)
                return None

    def close(self) -> None:
        """Offer nothing any more."""
        if self._publisher is not None:
            self._publisher.close()
        if self._engine is not None:
            self._engine.close()

    def _offer(self, directory: Path, version: str) -> str:
        from inlay.serve.weights.deployed import CHECKPOINT, label, open_engine
        from inlay.weights import Publisher

        if self._engine is None:
            self._engine = open_engine(self._listen, self._secret)
        if self._publisher is None:
            self._publisher = Publisher(self._engine, CHECKPOINT)
        name = label(version)
        if name not in self._offered:
            self._publisher.publish(name, directory)
            self._offered.append(name)
        return self._publisher.address
