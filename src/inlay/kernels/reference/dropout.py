"""Which inputs of LoRA matrices are dropped: a draw that depends on its place alone.

The draw of a feature is a 32-bit hash of its number under a 64-bit key, which is a hash of the
seed, the stream and the token. So a backward pass draws again what the forward pass drew, in any
order and with any number of threads.
Source: the mixers are splitmix64's and lowbias32 (Chris Wellons, "hash-prospector").
"""

from typing import Any

import numpy as np
import numpy.typing as npt

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)


def token_key(seed: int, stream: int, token: int) -> int:
    """The 64 bits that a token's draws start from."""
    return _mix((_mix((seed + _GOLDEN * (stream + 1)) & _WORD) + token) & _WORD)


def kept_scales(
    seed: int, stream: int, tokens: npt.NDArray[np.int64], features: int, rate: float
) -> npt.NDArray[np.float32]:
    """`[tokens][features]`: 0 where a feature is dropped, else `1 / (1 - rate)`."""
    keys = np.array([token_key(seed, stream, int(token)) for token in tokens], np.uint64)[:, None]
    low, high = keys.astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32)
    h: npt.NDArray[Any] = np.arange(features, dtype=np.uint32) * np.uint32(0x9E3779B1) ^ low
    h ^= h >> np.uint32(16)
    h = h * np.uint32(0x7FEB352D) + high
    h ^= h >> np.uint32(15)
    h = h * np.uint32(0x846CA68B)
    h ^= h >> np.uint32(16)
    kept = h >= np.uint32(int(rate * 2.0**32))
    return np.where(kept, np.float32(1 / (1 - rate)), np.float32(0))
