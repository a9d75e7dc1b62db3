"""What an engine has done so far, for its statistics."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from inlay.engine.live import LiveRequest
from inlay.engine.scheduler import Chunk


@dataclass(kw_only=True)
class Totals:
    """Counts since the start; the fields are those of `EngineStats`."""

    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    step_busy_s: float = 0.0
    tier_hit_tokens: dict[str, int] = field(default_factory=dict)

    def scheduled(self, chunks: Iterable[Chunk], now_s: float, page_tokens: int) -> None:
        """Chunks are about to be computed."""
        for chunk in chunks:
            request = chunk.choice.request
            if request.scheduled_s is None:
                request.scheduled_s = now_s
                self.prefix_query_tokens += len(request.prompt)
                self.prompt_tokens += len(request.prompt)
            if request.cached_tokens != request.counted_tokens:
                self._count_hits(request, page_tokens)
            if request.tier_tokens and chunk.samples and not request.announced:
                for tier, count in request.tier_tokens.items():
                    self.tier_hit_tokens[tier] = self.tier_hit_tokens.get(tier, 0) + count

    def _count_hits(self, request: LiveRequest, page_tokens: int) -> None:
        """Count what the cache has spared a request since it was last counted."""
        self.prefix_hit_tokens += request.cached_tokens - request.counted_tokens
        request.counted_tokens = request.cached_tokens
        request.pages_reused = request.cached_tokens // page_tokens
