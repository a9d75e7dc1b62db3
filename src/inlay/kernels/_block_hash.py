"""Block names of a long prompt in one call."""

from collections.abc import Sequence

from inlay.kernels import _backend
from inlay.kernels._arrays import Array


def block_hash_chain(
    namespace_key: bytes,
    parent16: bytes,
    token_ids: Array | Sequence[int] | bytes,
    block_tokens: int = 16,
) -> bytes:
    """Digests of all full blocks, 16 bytes each, joined; the bytes of `core.block_hash.chain`.

    Args:
        namespace_key: at most 64 bytes.
        parent16: digest of the block before, 16 zero bytes for none.
        token_ids: uint32 array, its bytes (little-endian), or a sequence of ints in 0..2^32-1.
        block_tokens: tokens per block, at least 1.

    Raises:
        ArgumentError: a length, dtype or id is wrong; the message names the argument.

    Cost: about 0.13 us per block of 16 tokens; ints of a list or tuple add half as much.
    """
    if isinstance(token_ids, Sequence) and not isinstance(token_ids, (list, tuple, bytes)):
        token_ids = list(token_ids)
    chain = _backend.block_hash.block_hash_chain
    digests: bytes = chain(namespace_key, parent16, token_ids, block_tokens)
    return digests
