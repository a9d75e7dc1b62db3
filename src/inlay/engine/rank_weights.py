"""A rank's parts of the weights that compute requests, by number."""

import contextlib
import logging
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from inlay.core.errors import EngineError, InlayError
from inlay.core.failures import failure_message
from inlay.engine.rank_wire import Answers, RankLoaded

if TYPE_CHECKING:
    from inlay.models.model import Model

log = logging.getLogger(__name__)


class RankWeights:
    """See the module.

    Args:
        first: those with number 0.
        load: others from a directory, given those whose equal tensors they share.

    Attributes:
        models: of the weights that steps may name.
    """

    def __init__(
        self, first: "Model", load: Callable[[Path, "Model"], "Model"], answers: Answers
    ) -> None:
        self.models = {0: first}
        self._load, self._answers = load, answers

    @property
    def newest(self) -> "Model":
        """Of the weights that came last."""
        return self.models[max(self.models)]

    def begin(self, number: int, directory: Path) -> None:
        """Load beside steps, and say what became of it."""
        newest = self.newest

        def run() -> None:
            try:
                model = self._load(directory, newest)
                self.models[number] = model
                answer = RankLoaded(model.made_bytes)
            except Exception as error:
                log.debug("weights %d cannot be loaded", number, exc_info=error)
                told = error if isinstance(error, InlayError) else EngineError(repr(error))
                answer = RankLoaded(error=failure_message(told))
            with contextlib.suppress(OSError):  # the engine is gone, and this rank with it
                self._answers.write(answer)

        threading.Thread(target=run, name="inlay-weights", daemon=True).start()

    def keep(self, numbers: Collection[int]) -> None:
        """Let go of all others."""
        from inlay.models.memory import give_back_freed

        for number in self.models.keys() - numbers:
            del self.models[number]
        give_back_freed()
