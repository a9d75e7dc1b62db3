"""Whether a CUDA device's streams take turns with the host by words of its memory: it is tried."""

import logging
import time
from collections.abc import Callable
from functools import cache

import numpy as np
import torch

from inlay import kernels
from inlay.core.errors import EngineError, ResourceError

log = logging.getLogger(__name__)

_NUMBERS = 4096
_TIMEOUT_S = 5.0


@cache
def streams_take_turns(device: torch.device) -> bool:
    """Whether they do. The first call tries it, in milliseconds, and warns where they do not."""
    try:
        problem = _problem(device)
    except (EngineError, ResourceError) as error:
        problem = str(error)
    if problem:
        log.warning(
            "%s: %s; the host waits for the device at each layer with host experts, which is "
            "correct and slower",
            device,
            problem,
        )
    return not problem


def _problem(device: torch.device) -> str:
    """One turn of each side, with numbers that only the right order gives."""
    words_12 = torch.zeros((1, 2), dtype=torch.int32, pin_memory=True)
    question, answer = (torch.zeros(_NUMBERS, pin_memory=True) for _ in range(2))
    words = kernels.StreamWords(words_12.numpy().view(np.uint32), device.index or 0)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.device(device), torch.cuda.stream(stream):
        question.copy_(torch.arange(_NUMBERS, device=device).float(), non_blocking=True)
        words.ask(0, stream.cuda_stream)
        words.wait_answer(0, stream.cuda_stream)
        taken = answer.to(device, non_blocking=True)
        over = stream.record_event()
    asked = _comes_true(lambda: bool(words_12[0, 0]))
    waited = not over.query()
    torch.add(question, 1, out=answer)
    words_12[0, 1] = 1  # in any case: nothing may wait for ever
    if not asked:
        return "a word that a stream sets is not seen by the host"
    if not _comes_true(over.query):
        return "a stream does not go on when the host has set the word that it waits for"
    if not waited:
        return "a stream does not wait for a word"
    if not torch.equal(taken.cpu(), torch.arange(_NUMBERS) + 1.0):
        return "rows are not seen in the order of the words"
    return ""


def _comes_true(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + _TIMEOUT_S
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(20e-6)
    return True
