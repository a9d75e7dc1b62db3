"""A rank's parts of the adapters that its engine serves, by number."""

import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from inlay.core.errors import EngineError, InlayError
from inlay.engine.rank_wire import Answers, RankAdapterReady

if TYPE_CHECKING:
    from inlay.models.adapter_weights import AdapterWeights
    from inlay.models.model import Model

log = logging.getLogger(__name__)


class RankAdapters:
    """See the module. A thread loads them, beside steps.

    Attributes:
        loaded: those that steps may name. The engine names none before all ranks have it, and
            forgets none that a step has.
    """

    def __init__(self, answers: Answers) -> None:
        self.loaded: dict[int, AdapterWeights] = {}
        self._answers = answers
        self._thread = ThreadPoolExecutor(1, "adapters")

    def begin(self, number: int, directory: Path, model: "Model") -> None:
        """Load one; the engine gets an answer."""
        self._thread.submit(self._load, number, directory, model)

    def forget(self, number: int) -> None:
        """Let go of one, if it is there."""
        self.loaded.pop(number, None)

    def _load(self, number: int, directory: Path, model: "Model") -> None:
        try:
            self.loaded[number] = model.load_adapter(directory)
            answer = RankAdapterReady(self.loaded[number].fingerprint)
        except Exception as error:
            log.debug("the adapter of %s is not loaded", directory, exc_info=error)
            told = error if isinstance(error, InlayError) else EngineError(repr(error))
            answer = RankAdapterReady(code=told.code, message=str(told))
        with contextlib.suppress(OSError):  # nobody waits for it any more
            self._answers.write(answer)
