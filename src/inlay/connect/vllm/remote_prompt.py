"""Where the prompt of a request was computed, as the request's `kv_transfer_params` say it.

They come with the request, so they may be anything. What cannot be is refused here, before
vLLM's scheduler or a worker meets it, and the prompt is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inlay.core.errors import ArgumentError

MAX_TEXT_BYTES = 1024
MAX_BLOCK_ID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RemotePrompt:
    """A prompt that another instance has in its cache.

    Attributes:
        addresses: of its workers, by tensor-parallel rank.
        block_ids: where the prompt's leading blocks are there.
        tokens: how many leading tokens they hold.
        request_id: what the other instance holds them under.
    """

    addresses: list[str]
    block_ids: list[int]
    tokens: int
    request_id: str

    @classmethod
    def read(
        cls, params: Any, *, ranks: int, prompt_tokens: int, block_tokens: int
    ) -> "RemotePrompt":
        """What the parameters say of a prompt.

        Args:
            params: with `do_remote_prefill`, as `Scheduling.finished` gives them elsewhere.
            ranks: of this instance, which the other one must have, too.
            prompt_tokens: of the request; it may go on behind what was computed there.
            block_tokens: of a block, in both.

        Raises:
            ArgumentError: a value that cannot be; the message has the beginning of it.

        Cost: by the prompt's blocks, however long the lists are.
        """
        if not isinstance(params, dict):
            raise ArgumentError(f"they are {_short(params)}: they must be an object")
        addresses = params.get("remote_addresses")
        if not isinstance(addresses, list) or not addresses:
            raise ArgumentError(f"remote_addresses is {_short(addresses)}: it must be a list")
        if len(addresses) != ranks:
            raise ArgumentError(
                f"there are {len(addresses)} remote_addresses, and {ranks} workers here: both "
                "instances need the same tensor-parallel size"
            )
        most = -(-prompt_tokens // block_tokens)
        block_ids = _block_ids(params.get("remote_block_ids"), most)
        known = params.get("remote_num_tokens")
        if known is None:
            known = prompt_tokens
        if not _is_int(known, 0, 2**63):
            raise ArgumentError(f"remote_num_tokens is {_short(known)}: it must be a number >= 0")
        return cls(
            [_text("remote_addresses", address) for address in addresses],
            block_ids,
            min(prompt_tokens, known, len(block_ids) * block_tokens),
            _text("remote_request_id", params.get("remote_request_id") or ""),
        )


def _block_ids(found: Any, most: int) -> list[int]:
    if isinstance(found, list) and len(found) == 1 and isinstance(found[0], list):
        found = found[0]  # one group of blocks
    if not isinstance(found, list):
        raise ArgumentError(f"remote_block_ids is {_short(found)}: it must be a list")
    leading: Sequence[Any] = found[:most]
    for one in leading:
        if not _is_int(one, 0, MAX_BLOCK_ID):
            raise ArgumentError(
                f"remote_block_ids has {_short(one)}: blocks are numbers from 0 to {MAX_BLOCK_ID}"
            )
    return list(leading)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ArgumentError(f"{name} has {_short(value)}: it must be a text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        size = MAX_TEXT_BYTES + 1
    if size > MAX_TEXT_BYTES:
        raise ArgumentError(
            f"{name} has {_short(value)}: it must be UTF-8 of at most {MAX_TEXT_BYTES} bytes"
        )
    return value


def _is_int(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _short(value: Any) -> str:
    """The beginning of a value whose text may be of any length, and its kind."""
    kind = type(value).__name__
    if isinstance(value, str):
        return f"{kind} {ascii(value[:40])}"
    if isinstance(value, int | float) and abs(value) < 2**64:
        return f"{kind} {value!r}"
    return kind
