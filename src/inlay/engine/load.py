"""How loaded an engine is, and what a step did, as numbers for those who choose instances."""

from collections.abc import Iterable
from dataclasses import dataclass

from inlay.cache import KvCache
from inlay.core.instance_messages import StepSample
from inlay.engine.live import Choice, LiveRequest
from inlay.engine.scheduler import Chunk


@dataclass(slots=True)
class WorkAhead:
    """What live requests still ask of an engine; see `LoadReport`."""

    receiving: int = 0
    prefill_tokens: int = 0
    context_tokens: int = 0


def work_ahead(requests: Iterable[LiveRequest], cache: KvCache) -> WorkAhead:
    """Sum up live requests.

    What the cache has of a prompt that waits is not to be computed; that is looked up when the
    request is first seen here. Nor are blocks that are being loaded.

    Cost: O(choices), and once for each request that waits the naming and search of its blocks.
    """
    ahead = WorkAhead()
    for request in requests:
        if not request.choices:  # its grammar is compiled
            ahead.prefill_tokens += len(request.prompt)
        for choice in request.choices:
            left = choice.num_tokens - choice.computed
            if choice.prefetch is not None:
                left -= choice.prefetch.coming_tokens(cache.page_tokens)
            if choice.state == "receiving":
                ahead.receiving += 1
            elif choice.state == "waiting":
                ahead.prefill_tokens += left - _reusable(choice, cache)
            elif choice.state == "running" and left > 1:
                ahead.prefill_tokens += left
            elif choice.state == "running":
                ahead.context_tokens += choice.num_tokens
    return ahead


def _reusable(choice: Choice, cache: KvCache) -> int:
    """Tokens of a waiting choice that the cache had when this was first asked."""
    if choice.computed or not cache.reuses_prefixes:
        return 0
    if choice.prefetch is not None:
        return choice.prefetch.first * cache.page_tokens
    if choice.expected_tokens is None:
        choice.name_blocks(choice.num_tokens, cache.page_tokens)
        match = cache.match_prefix(choice.names, choice.num_tokens - 1)
        choice.expected_tokens = match.num_tokens
    return choice.expected_tokens


def step_sample(chunks: Iterable[Chunk], seconds: float) -> StepSample:
    """A step that computed these chunks."""
    prefill_tokens = prefill_pairs = decodes = decode_context = 0
    for chunk in chunks:
        tokens = chunk.stop - chunk.start
        if tokens == 1 and chunk.samples:
            decodes += 1
            decode_context += chunk.stop
        else:
            prefill_tokens += tokens
            prefill_pairs += tokens * (chunk.start + chunk.stop + 1) // 2
    return StepSample(prefill_tokens, prefill_pairs, decodes, decode_context, seconds)
