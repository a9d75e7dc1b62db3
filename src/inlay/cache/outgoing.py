"""The KV of one prompt on its way to another instance: which blocks go when. No I/O.

Each layer of each page is sent once, when the page is full in that layer; only the last page may be
partly filled. So nothing that was sent earlier can land over something newer.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inlay.core.instance_messages import KvTarget


@dataclass(frozen=True, slots=True)
class Parts:
    """What of a prompt is sent around one step.

    Attributes:
        whole: blocks that were computed before the step: all layers at once.
        layered: blocks that the step fills: layer by layer.
    """

    whole: range
    layered: range


@dataclass(slots=True, eq=False)
class Outgoing:
    """One prompt that is computed here for another instance.

    Attributes:
        request_id: at both instances.
        num_tokens: leading tokens whose KV is sent.
        page_tokens: tokens per page.
        target: where to; None until the other instance has said it.
        remote_pages: its page ids, from block `target.first_block` on.
        next_block: blocks before this one were given to the transfer, or are not wanted.
        cached_tokens: leading tokens that were not computed for this request.
        error: why it failed.
    """

    request_id: str
    num_tokens: int
    page_tokens: int
    target: KvTarget | None = None
    remote_pages: npt.NDArray[np.int64] | None = None
    next_block: int = 0
    cached_tokens: int = 0
    error: Exception | None = None

    @property
    def num_blocks(self) -> int:
        """Pages that are to go, a partly filled last one among them."""
        return -(-self.num_tokens // self.page_tokens)

    @property
    def complete(self) -> bool:
        """Whether everything was given to the transfer."""
        return self.target is not None and self.next_block >= self.num_blocks

    def aim(self, target: KvTarget) -> None:
        """Say where to send.

        Raises:
            ValueError: the target does not fit the prompt; the message says how.
        """
        pages = np.frombuffer(target.pages, "<u4").astype(np.int64)
        wanted = self.num_blocks - target.first_block
        if target.num_tokens != self.num_tokens or len(pages) != max(wanted, 0):
            raise ValueError(
                f"a target of {target.num_tokens} tokens from block {target.first_block} on in "
                f"{len(pages)} pages; the prompt has {self.num_tokens} tokens in "
                f"{self.num_blocks} pages"
            )
        self.target, self.remote_pages = target, pages
        self.next_block = target.first_block

    def take_parts(self, start: int, stop: int) -> Parts:
        """What can be sent around a step that computes tokens start..stop; counts as sent.

        `start == stop`: around no step, all that is computed.
        """
        last = stop // self.page_tokens if stop < self.num_tokens else self.num_blocks
        before = start // self.page_tokens if start < stop else last
        first = self.next_block
        whole = range(first, max(first, min(before, last)))
        layered = range(whole.stop, max(whole.stop, last))
        self.next_block = layered.stop
        return Parts(whole, layered)

    def remote(self, blocks: range) -> npt.NDArray[np.int64]:
        """Page ids at the target."""
        assert self.target is not None and self.remote_pages is not None
        first = self.target.first_block
        return self.remote_pages[blocks.start - first : blocks.stop - first]
