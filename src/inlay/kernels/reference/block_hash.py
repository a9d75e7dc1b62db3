"""Block identity."""

import hashlib
from typing import Any

import numpy as np

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
    data = array_of(token_ids, "token_ids", 1, np.uint32).astype("<u4").tobytes()
    step = 4 * block_tokens
    digests = []
    for start in range(0, len(data) - step + 1, step):
        block = parent + data[start : start + step]
        parent = hashlib.blake2b(block, digest_size=16, key=namespace_key).digest()
        digests.append(parent)
    return b"".join(digests)
