"""Block names of a long prompt in one call."""

from collections.abc import Sequence

import numpy as np

from inlay.core.errors import ArgumentError
from inlay.kernels import _backend
from inlay.kernels._arrays import Array


def block_hash_chain(
    namespace_key: bytes,
    parent16: bytes,
    token_ids: Array | Sequence[int],
    block_tokens: int = 16,
) -> bytes:
    """Digests of all full blocks, 16 bytes each, joined; the bytes of `core.block_hash.chain`.

    Args:
        namespace_key: at most 64 bytes.
        parent16: digest of the block before, 16 zero bytes for none.
        token_ids: uint32 array, or a sequence of ints in 0..2^32-1.
        block_tokens: tokens per block, at least 1.

    Raises:
        ArgumentError: a length, dtype or id is wrong; the message names the argument.

    Cost: about 0.3 us per block of 16 tokens.
    """
    if isinstance(token_ids, Sequence):
        try:
            token_ids = np.array(token_ids, dtype=np.uint32)
        except (OverflowError, ValueError, TypeError) as error:
            raise ArgumentError(f"token_ids: must be ints in 0..2^32-1 ({error})") from None
    chain = _backend.block_hash.block_hash_chain
    digests: bytes = chain(namespace_key, parent16, token_ids, block_tokens)
    return digests
