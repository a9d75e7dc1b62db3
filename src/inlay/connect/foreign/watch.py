"""How a foreign engine is, second by second, until it is gone."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from inlay.connect.foreign.dialect import Dialect
from inlay.connect.foreign.gauges import Gauges
from inlay.connect.foreign.http import EngineHttp
from inlay.core.errors import EndpointError, EngineDiedError, EngineError, InlayError

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_ASK_S = 5.0
_AGAIN_S = 0.2
_MAX_MISSES = 3
_NOT_FOUND, _FAILED = 404, 500


class EngineWatch:
    """Reads an engine's metrics, and notices its end.

    Args:
        num_own: how many requests are there from here.
        ended: told once why the engine is gone.

    Attributes:
        gauges: as it said last.
        own: requests from here that were there then.
    """

    def __init__(
        self,
        dialect: Dialect,
        http: EngineHttp,
        num_own: Callable[[], int],
        ended: Callable[[InlayError], None],
    ) -> None:
        self.gauges = Gauges()
        self.own = 0
        self._dialect = dialect
        self._http = http
        self._num_own = num_own
        self._ended = ended
        self._over = False
        self._has_metrics = True

    async def run(self) -> None:
        """Ask the engine how it is, each second; returns when it is gone."""
        misses = 0
        while not self._over:
            try:
                await self._look()
            except EngineDiedError as error:
                await self._look_again(error)
            except EndpointError as error:
                misses += 1
                log.warning("the engine does not say how it is: %s", error)
                if misses >= _MAX_MISSES:
                    self._end(EngineDiedError(f"the engine does not answer: {error}"))
            else:
                misses = 0
            await asyncio.sleep(_LOOK_S)

    async def check(self, error: EngineError) -> None:
        """A request failed or was lost: returns if that was all.

        Else its dispatcher hears that the instance is gone, and does not choose it again.
        """
        log.warning("%s", error)
        try:
            await self._http.text("/health", _ASK_S)
        except (EngineDiedError, EndpointError) as gone:
            if isinstance(gone, EndpointError) and (gone.status or 0) < _FAILED:
                return
            self._end(EngineDiedError(str(gone)))
            await asyncio.Event().wait()  # until it is cancelled with all others

    async def _look(self) -> None:
        """Read its metrics. Raises as `EngineHttp.text`."""
        if not self._has_metrics:
            await self._http.text("/health", _ASK_S)
            return
        own = self._num_own()
        try:
            text = await self._http.text("/metrics", _ASK_S)
        except EndpointError as error:
            if error.status != _NOT_FOUND:
                raise
            log.warning("the engine has no /metrics: its load is that of requests from here")
            self._has_metrics = False
            return
        gauges, before = self._dialect.gauges(text), self.gauges
        self.gauges, self.own = gauges, own
        if before.started_s and gauges.started_s != before.started_s:
            self._end(EngineDiedError("the engine was started again"))

    async def _look_again(self, error: EngineDiedError) -> None:
        """It could not be reached: once more, and it is gone."""
        await asyncio.sleep(_AGAIN_S)
        with contextlib.suppress(EndpointError):
            try:
                await self._http.text("/health", _ASK_S)
            except EngineDiedError:
                self._end(error)

    def _end(self, error: InlayError) -> None:
        if not self._over:
            self._over = True
            self._ended(error)
