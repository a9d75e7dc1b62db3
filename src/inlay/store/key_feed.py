"""The keys of a store, told as they come and go."""

import logging
import threading
from collections.abc import Sequence
from typing import Protocol

from inlay.core.errors import StoreError
from inlay.store import _backend
from inlay.store.address import parse_masters
from inlay.store.link import Link
from inlay.transfer.runtime_dir import shared_token

Change = tuple[bool, bytes]
"""Whether an object of the key is there now, and the key."""

_HOLD_S = 0.5  # the master answers by then, news or not
_ASK_S = 3.0
_AGAIN_S = 0.5
_SLICE_KEYS = 10_000

logger = logging.getLogger(__name__)


class KeyList(Protocol):
    """Who keeps a list of keys. Called on the feed's thread."""

    def replace(self, keys: Sequence[bytes]) -> None:
        """These are all keys."""

    def change(self, changes: Sequence[Change]) -> None:
        """What happened since, in order. A key that comes may be there, one that goes may not."""


class KeyFeed:
    """Keeps a list of all keys of one tenant's store, by a thread that asks the master.

    Changes are numbered. Where some are missing, because there is another master or too many came
    at a time, all keys are told anew. While no master answers, there are none: nobody can read.

    Args:
        masters: as `Store.connect` takes it; they need not be there yet.
        to: hears of them.
        token: what master and clients must hold; None: this user's on this machine.

    Raises:
        ConfigError: masters of another form.

    Cost: a message to the master every half second, and one for what many puts change together.
    """

    def __init__(self, masters: str, to: KeyList, *, token: bytes | None = None) -> None:
        parse_masters(masters)  # refused here, not on the thread
        self._masters = masters
        self._token = shared_token() if token is None else token
        self._to = to
        self._known = 0
        self._told = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inlay-store-feed", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tell nothing more. Waits for an answer that is under way."""
        self._closing.set()
        self._thread.join(_ASK_S)

    def _run(self) -> None:
        link: Link | None = None
        while not self._closing.is_set():
            try:
                if link is None:
                    link = Link(self._masters, self._token, timeout_s=_ASK_S)
                self._step(link.native)
            except StoreError as error:
                self._lose(error)
                self._closing.wait(_AGAIN_S)
        if link is not None:
            link.close()

    def _step(self, link: _backend.Link) -> None:
        complete, last, changes = _backend.changes(
            link, self._known, round(1000 * _HOLD_S), _HOLD_S + _ASK_S
        )
        if not complete:
            keys = self._keys(link)
            self._to.replace(keys)
            self._told = True
            logger.info("the keys of the store are known", extra={"keys": len(keys)})
        elif changes:
            self._to.change(changes)
        self._known = last

    def _keys(self, link: _backend.Link) -> list[bytes]:
        found, cursor = _backend.keys(link, "", 0, _SLICE_KEYS, _ASK_S)
        while cursor:
            more, cursor = _backend.keys(link, "", cursor, _SLICE_KEYS, _ASK_S)
            found += more
        return found

    def _lose(self, error: StoreError) -> None:
        self._known = 0
        if self._told:
            self._told = False
            self._to.replace(())
            logger.warning("the store's keys are not known any more: %s", error)
