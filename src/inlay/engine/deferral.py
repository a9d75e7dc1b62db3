"""Chooses how many experts a model defers: by its own times, within what that changes.

Some decode steps are timed without deferral; `inlay.core.deferral` says from them how many keep the
processors busy. Then the model answers sample questions without, and gets its own answers again
with: where the next token's distribution changes by more than is allowed, fewer are deferred.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from inlay.core.deferral import LayerTime, choose_deferred, most_deferred
from inlay.models.batch import ForwardBatch
from inlay.models.ops import on_host

if TYPE_CHECKING:
    from inlay.models.host_share import HostShare
    from inlay.models.kv_pool import KvPool
    from inlay.models.model import Model
    from inlay.models.text import Text

log = logging.getLogger(__name__)

_UNTIMED_STEPS, _TIMED_STEPS = 4, 12
_ANSWER_TOKENS = 24
_QUESTIONS = (
    "What does the keeper of a lighthouse do all day?",
    "Define the word lantern.",
    "Write a Python function that returns the median of a list of numbers.",
    "How much heat does it take to melt ten grams of ice? Show each step.",
    "Warum braucht ein Kanal Schleusen?",
    "Name three birds that winter in Africa, as a JSON list.",
)


def choose_deferral(
    model: "Model", pool: "KvPool", text: "Text", max_divergence: float
) -> tuple[int, float]:
    """How many host experts of a token to defer, and how far that changes what comes next.

    Args:
        pool: nobody else uses it yet.
        max_divergence: mean KL divergence from no deferral, nats.

    Cost: some 16 decode steps, and for each number that is tried 24 steps of six requests.
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
    prompts, pages = _prompts(text, pool)
    if not wanted or not prompts:
        return 0, 0.0
    ends = text.eos_token_ids
    said, exact = _answers(model, pool, prompts, pages, ends, 0)
    for number in range(wanted, 0, -1):
        _, other = _answers(model, pool, prompts, pages, ends, number, said)
        changed = divergence(exact, other)
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
    steps = 1 + _UNTIMED_STEPS + _TIMED_STEPS
    pages = -(-steps // pool.format.page_tokens)
    with _deferring(share, 0):
        for at in range(steps):
            batch = _batch([[0]], [at], pages)
            host_before, began = share.host_s, time.perf_counter()
            computed = share.activations["host"]
            on_host(model.forward(batch, pool))
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


def divergence(
    exact: Sequence[NDArray[np.float32]], changed: Sequence[NDArray[np.float32]]
) -> float:
    """Mean KL divergence of two lists of log probabilities `[B, V]`, nats."""
    each = [(np.exp(a) * (a - b)).sum(axis=-1) for a, b in zip(exact, changed, strict=True)]
    return float(np.concatenate(each).mean())


def _log_probabilities(logits_RV: NDArray[np.float32]) -> NDArray[np.float32]:
    """Log-softmax of each row."""
    below = logits_RV - logits_RV.max(axis=-1, keepdims=True)
    found: NDArray[np.float32] = below - np.log(np.exp(below).sum(axis=-1, keepdims=True))
    return found


def _answers(
    model: "Model",
    pool: "KvPool",
    prompts: Sequence[Sequence[int]],
    pages: int,
    ends: AbstractSet[int],
    deferred: int,
    said: Sequence[Sequence[int]] = (),
) -> tuple[list[list[int]], list[NDArray[np.float32]]]:
    """Answer greedily, or with what was `said`: tokens by step.

    Returns:
        Them, and the log probabilities of what comes after each, while its answer goes on.
    """
    assert model.host_share is not None
    new: list[list[int]] = [list(one) for one in prompts]
    starts = [0] * len(new)
    goes_on = np.ones(len(new), np.bool_)
    spoken: list[list[int]] = []
    found: list[NDArray[np.float32]] = []
    with _deferring(model.host_share, deferred):
        for step in range(1 + _ANSWER_TOKENS):
            batch = _batch(new, starts, pages)
            log_probabilities = _log_probabilities(on_host(model.forward(batch, pool)))
            if step:
                found.append(log_probabilities[goes_on])
            spoken.append(list(said[step]) if said else log_probabilities.argmax(-1).tolist())
            goes_on &= [token not in ends for token in spoken[-1]]
            if not goes_on.any():
                break
            starts = [start + len(one) for start, one in zip(starts, new, strict=True)]
            new = [[token] for token in spoken[-1]]
    return spoken, found


@contextmanager
def _deferring(share: "HostShare", number: int) -> Iterator[None]:
    before, share.deferred = share.deferred, number
    try:
        yield
    finally:
        share.deferred = before


def _prompts(text: "Text", pool: "KvPool") -> tuple[list[list[int]], int]:
    """Questions, or fewer of them where the pool is small, and how many pages each may take."""
    if text.chat_template:
        chats = [[{"role": "user", "content": one}] for one in _QUESTIONS]
        encoded = [text.encode_chat(chat) for chat in chats]
    else:
        encoded = [text.encode(one) for one in _QUESTIONS]
    longest = max(map(len, encoded)) + _ANSWER_TOKENS
    pages = -(-longest // pool.format.page_tokens)
    return encoded[: pool.num_pages // pages], pages


def _batch(new: Sequence[Sequence[int]], starts: Sequence[int], pages: int) -> ForwardBatch:
    """More tokens of some requests, which have so many pages each; decoding but for the first."""
    counts = np.array([len(one) for one in new])
    ends = np.cumsum(counts)
    return ForwardBatch(
        token_ids_T=np.concatenate(new).astype(np.int32),
        positions_T=np.concatenate(
            [np.arange(start, start + n) for start, n in zip(starts, counts, strict=True)]
        ).astype(np.int32),
        query_starts_B1=np.append(0, ends).astype(np.int32),
        context_lens_B=(np.array(starts) + counts).astype(np.int32),
        page_table_BP=np.arange(len(new) * pages, dtype=np.int32).reshape(-1, pages),
        logit_rows_R=(ends - 1).astype(np.int32),
        decode_T=np.repeat(np.array(starts) > 0, counts),
    )
