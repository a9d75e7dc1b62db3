"""Blocks that one instance gets from another, by a request that nobody reads.

The holder computes a prompt that ends behind the blocks, all of which it has, and sends it as it
would for decoding elsewhere; the other one publishes what has come, and puts out nothing.
"""

import asyncio
import logging

from inlay.cluster.attempts import Attempts
from inlay.cluster.decision import DIGEST_BYTES, Copy
from inlay.cluster.requests import Attempt, OpenRequest
from inlay.core.clock import Clock
from inlay.core.messages import GenerateRequest, RequestOutput, SamplingParams
from inlay.core.token_ids import TOKEN_BYTES

log = logging.getLogger(__name__)

_COPY_S = 10.0  # then whoever waits computes
_MAX_AHEAD = 4  # copies that nobody waits for, at a time
_NOTHING = SamplingParams(temperature=0.0, max_tokens=0)


class Copies:
    """Has blocks copied, for one dispatcher.

    Attributes:
        copied_blocks: that have come, so far.
        failed: copies of which nothing came.
    """

    def __init__(self, attempts: Attempts, clock: Clock) -> None:
        self._attempts = attempts
        self._clock = clock
        self._ahead: set[asyncio.Task[None]] = set()
        self.copied_blocks = 0
        self.failed = 0

    def ahead(self, copy: Copy, live: OpenRequest, page_tokens: int) -> None:
        """Copy blocks that will be wanted; nobody waits for them."""
        if len(self._ahead) < _MAX_AHEAD:
            attempt = self._start(copy, live, page_tokens)
            task = asyncio.create_task(self._finish(copy, live, attempt))
            self._ahead.add(task)
            task.add_done_callback(self._ahead.discard)

    async def run(self, copy: Copy, live: OpenRequest, page_tokens: int) -> None:
        """Copy blocks; returns when they are there, or it is plain that they will not come."""
        await self._finish(copy, live, self._start(copy, live, page_tokens))

    def _start(self, copy: Copy, live: OpenRequest, page_tokens: int) -> Attempt:
        stop = copy.first_block + copy.num_blocks
        message = GenerateRequest(
            request_id=f"copy of {live.message.request_id}",
            prompt=_ending_behind(live.message.prompt, stop * page_tokens),
            params=_NOTHING,
            arrival_s=self._clock.now(),
            cache_salt=live.message.cache_salt,
            adapter=live.message.adapter,
            weights=live.message.weights,
        )
        return self._attempts.start_copy(copy, message)

    async def _finish(self, copy: Copy, live: OpenRequest, attempt: Attempt) -> None:
        try:
            event = await asyncio.wait_for(attempt.events.get(), _COPY_S)
        except TimeoutError:
            self._failed(copy, f"they have not come in {_COPY_S:g} s")
        else:
            if isinstance(event, RequestOutput) and event.error is None:
                self.copied_blocks += copy.num_blocks
                stop = copy.first_block + copy.num_blocks
                self._attempts.copied(attempt, live.digests[: stop * DIGEST_BYTES])
            else:
                self._failed(copy, event)
        finally:
            self._attempts.end(attempt)

    def close(self) -> None:
        """Wait for no copy any more."""
        for task in list(self._ahead):
            task.cancel()

    def _failed(self, copy: Copy, why: object) -> None:
        self.failed += 1
        log.warning("%d blocks were not copied: %s", copy.num_blocks, why)


def _ending_behind(prompt: bytes, num_tokens: int) -> bytes:
    """The first tokens, and one more: the last token of a prompt is computed where it decodes."""
    size = num_tokens * TOKEN_BYTES
    return prompt[:size] + (prompt[size : size + TOKEN_BYTES] or prompt[-TOKEN_BYTES:])
