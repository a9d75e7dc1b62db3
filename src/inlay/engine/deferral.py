"""Chooses how many experts a model defers: by its own times, within what that changes.

Some decode steps are timed without deferral; `inlay.core.deferral` says from them how many keep the
processors busy. Then sample texts are computed with and without: where the next token's
distribution changes by more than is allowed, fewer are deferred.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import torch

from inlay.core.deferral import LayerTime, choose_deferred, most_deferred
from inlay.models.batch import ForwardBatch

if TYPE_CHECKING:
    from inlay.models.host_share import HostShare
    from inlay.models.kv_pool import KvPool
    from inlay.models.model import Model
    from inlay.models.text import Text

log = logging.getLogger(__name__)

_UNTIMED_STEPS, _TIMED_STEPS = 4, 12
_PROMPT_TOKENS, _DECODED_TOKENS = 8, 24
_SAMPLES = (
    "The lighthouse keeper climbed the stairs every evening, trimmed the wick and wrote the wind's "
    "direction into a book that nobody had read for forty years.",
    "def median(values):\n    ordered = sorted(values)\n    middle = len(ordered) // 2\n    return "
    "ordered[middle]\n",
    "To melt one gram of ice takes about 334 joules, and to warm the water by one degree takes "
    "another 4.2, so a glass of ice water stays cold for long.",
    "Die Brücke wurde im Frühjahr gesperrt, weil zwei ihrer Pfeiler Risse zeigten; seither fährt "
    "eine Fähre, solange der Fluss nicht zu viel Wasser führt.",
)


def choose_deferral(
    model: "Model", pool: "KvPool", text: "Text", max_divergence: float
) -> tuple[int, float]:
    """How many host experts of a token to defer, and how far that changes what comes next.

    Args:
        pool: nobody else uses it yet.
        max_divergence: mean KL divergence from no deferral, nats.

    Cost: some 16 decode steps, and for each number that is tried 24 steps of four requests.
    """
    share = model.host_share
    if share is None:
        return 0, 0.0
    wanted = choose_deferred(layer_times(model, pool), most_deferred(model.shape.experts_per_token))
    return most_within(model, pool, text, wanted, max_divergence)


def most_within(
    model: "Model", pool: "KvPool", text: "Text", wanted: int, max_divergence: float
) -> tuple[int, float]:
    """The most experts, up to `wanted`, that change what comes next by no more than is allowed.

    Args, returns and cost: as of `choose_deferral`.
    """
    samples = _sample_tokens(text, pool)
    if not wanted or not len(samples):
        return 0, 0.0
    exact = _log_probabilities(model, pool, samples, 0)
    for number in range(wanted, 0, -1):
        changed = divergence(exact, _log_probabilities(model, pool, samples, number))
        if changed <= max_divergence:
            return number, changed
        log.info("deferring %d experts changes the output by %.3f nats", number, changed)
    return 0, 0.0


def layer_times(model: "Model", pool: "KvPool") -> list[LayerTime]:
    """What a mixture layer takes when one request decodes, as measured; all layers alike.

    What is not the host's time is taken as the device's, before it asks.
    """
    share = model.host_share
    assert share is not None
    step_s, host_s, experts = [], [], []
    tokens_BT = np.zeros((1, 1 + _UNTIMED_STEPS + _TIMED_STEPS), np.int32)
    with _deferring(share, 0):
        for at, batch in enumerate(_decodes(tokens_BT, pool, 1)):
            host_before, began = share.host_s, time.perf_counter()
            computed = share.activations["host"]
            model.forward(batch, pool).cpu()
            if at > _UNTIMED_STEPS:  # the first one is the prompt
                step_s.append(time.perf_counter() - began)
                host_s.append(share.host_s - host_before)
                experts.append(share.activations["host"] - computed)
    layers = share.layers
    of_host, of_device = median(host_s), max(0.0, median(step_s) - median(host_s))
    chosen = max(1.0, sum(experts) / len(experts)) / layers
    each_s = of_host / layers / chosen
    layer = LayerTime(
        before_s=of_device / layers, host_experts=chosen, host_s=lambda count: each_s * count
    )
    return [layer] * layers


def divergence(exact: Sequence[torch.Tensor], changed: Sequence[torch.Tensor]) -> float:
    """Mean KL divergence of two lists of log probabilities `[B, V]`, nats."""
    each = [
        torch.nn.functional.kl_div(b, a, log_target=True, reduction="none").sum(-1)
        for a, b in zip(exact, changed, strict=True)
    ]
    return float(torch.cat(each).mean())


def _log_probabilities(
    model: "Model", pool: "KvPool", tokens_BT: np.ndarray, deferred: int
) -> list[torch.Tensor]:
    """Of the token after each that is decoded."""
    assert model.host_share is not None
    with _deferring(model.host_share, deferred):
        steps = [
            model.forward(batch, pool).cpu().float().log_softmax(-1)
            for batch in _decodes(tokens_BT, pool, _PROMPT_TOKENS)
        ]
    return steps[1:]


@contextmanager
def _deferring(share: "HostShare", number: int) -> Iterator[None]:
    before, share.deferred = share.deferred, number
    try:
        yield
    finally:
        share.deferred = before


def _sample_tokens(text: "Text", pool: "KvPool") -> np.ndarray:
    """As many tokens of each text, or of fewer texts where the pool is small."""
    length = _PROMPT_TOKENS + _DECODED_TOKENS
    pages = -(-length // pool.format.page_tokens)
    encoded = [text.encode(one)[:length] for one in _SAMPLES[: pool.num_pages // pages]]
    shortest = min(map(len, encoded), default=0)
    if shortest <= _PROMPT_TOKENS:
        return np.zeros((0, 0), np.int32)
    return np.array([one[:shortest] for one in encoded], np.int32)


def _decodes(tokens_BT: np.ndarray, pool: "KvPool", prompt: int) -> Iterator[ForwardBatch]:
    """A prompt of each request, then one token of each after the other."""
    requests, length = tokens_BT.shape
    pages = -(-length // pool.format.page_tokens)
    table_BP = np.arange(requests * pages, dtype=np.int32).reshape(requests, pages)
    for start, stop in pairwise((0, *range(prompt, length + 1))):
        count = stop - start
        yield ForwardBatch(
            token_ids_T=tokens_BT[:, start:stop].astype(np.int32).reshape(-1),
            positions_T=np.tile(np.arange(start, stop, dtype=np.int32), requests),
            query_starts_B1=np.arange(0, requests * count + 1, count, dtype=np.int32),
            context_lens_B=np.full(requests, stop, np.int32),
            page_table_BP=table_BP,
            logit_rows_R=np.arange(count - 1, requests * count, count, dtype=np.int32),
            decode_T=np.full(requests * count, start > 0),
        )
