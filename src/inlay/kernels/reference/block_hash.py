"""Block identity."""

import hashlib
import struct
from typing import Any

import numpy as np

from inlay.core.errors import ArgumentError
from inlay.kernels._checks import array_of, check


def block_hash_chain(
    namespace_key: bytes, parent: bytes, token_ids: Any, block_tokens: int
) -> bytes:
    """Digests of all full blocks, joined."""
    check(
        len(namespace_key) <= 64,
        f"namespace_key: must have at most 64 bytes, got {len(namespace_key)}",
    )
    check(len(parent) == 16, f"parent: must have 16 bytes, got {len(parent)}")
    check(block_tokens >= 1, f"block_tokens: must be at least 1, got {block_tokens}")
    data = _little_endian(token_ids)
    step = 4 * block_tokens
    digests = []
    for start in range(0, len(data) - step + 1, step):
        block = parent + data[start : start + step]
        parent = hashlib.blake2b(block, digest_size=16, key=namespace_key).digest()
        digests.append(parent)
    return b"".join(digests)


def _little_endian(token_ids: Any) -> bytes:
    if isinstance(token_ids, bytes):
        check(len(token_ids) % 4 == 0, f"token_ids: must have 4 bytes each, got {len(token_ids)}")
        return token_ids
    if isinstance(token_ids, (list, tuple)):
        try:
            return struct.pack(f"<{len(token_ids)}I", *token_ids)
        except struct.error as error:
            raise ArgumentError(f"token_ids: must be ints in 0..2^32-1 ({error})") from None
    return array_of(token_ids, "token_ids", 1, np.uint32).astype("<u4").tobytes()
