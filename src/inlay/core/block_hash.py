"""Block identity: one name for the same run of tokens in every process.

`digest = BLAKE2b(digest_size=16, key=namespace_key, data=parent16 + token_ids as little-endian
u32)`; the parent of block 0 is 16 zero bytes. The namespace key ties a digest to the weights,
the KV format and the tenant, so blocks of different models never meet. The native batch form
gives the same bytes (see `inlay.kernels.block_hash_chain`).
"""

import hashlib
import json
import struct
from collections.abc import Sequence

import msgspec

from inlay.core.errors import ArgumentError
from inlay.core.kv_format import KvFormat

DIGEST_BYTES = 16
ROOT = bytes(DIGEST_BYTES)
_MAX_KEY_BYTES = 64
_CHECK_BYTES = 8
_WHOLE = b"/0of1"


class Namespace(msgspec.Struct, frozen=True, kw_only=True):
    """Everything besides tokens on which KV depends.

    Attributes:
        fingerprint: content fingerprint of the weights.
        weight_version: counts weight updates of a running engine.
        weight_format: how the weights are held (`bfloat16`, `int4`, ...).
        adapter: fingerprint of a LoRA adapter, empty without one.
        kv_format: layout; how ranks divide it does not enter the key.
        tenant_salt: separates tenants that must not see each other's reuse.
    """

    fingerprint: str
    weight_version: int = 0
    weight_format: str
    adapter: str = ""
    kv_format: KvFormat
    tenant_salt: str = ""

    def key(self, deployment_secret: bytes) -> bytes:
        """The 32-byte BLAKE2b key of this namespace."""
        kv_format = msgspec.to_builtins(self.kv_format.whole)
        del kv_format["tp_degree"], kv_format["tp_rank"], kv_format["kv_heads"]
        fields = {
            "fingerprint": self.fingerprint,
            "weight_version": self.weight_version,
            "weight_format": self.weight_format,
            "adapter": self.adapter,
            "kv_format": kv_format,
            "tenant_salt": self.tenant_salt,
        }
        canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.blake2b(deployment_secret + canonical.encode(), digest_size=32).digest()

    @property
    def weights(self) -> str:
        """Name of the weights: equal where two would compute the same."""
        return f"{self.fingerprint}@{self.weight_version}"

    def of_weights(self, weights: str) -> "Namespace":
        """The namespace of other weights, by their name."""
        fingerprint, _, version = weights.rpartition("@")
        return msgspec.structs.replace(self, fingerprint=fingerprint, weight_version=int(version))

    def key_check(self, deployment_secret: bytes) -> bytes:
        """What tells that two know the same key, and not what it is; see `InstanceInfo`."""
        return hashlib.blake2b(self.key(deployment_secret)).digest()[:_CHECK_BYTES]


def chain(
    namespace_key: bytes,
    token_ids: Sequence[int],
    block_tokens: int = 16,
    parent: bytes = ROOT,
) -> list[bytes]:
    """Digests of all full blocks of `token_ids`; a shorter tail has no name.

    Args:
        namespace_key: at most 64 bytes, usually `Namespace.key(...)`.
        token_ids: tokens that follow the block named `parent`, each in 0..2^32-1.
        block_tokens: tokens per block, at least 1.
        parent: digest of the block before, 16 bytes.

    Raises:
        ArgumentError: a length or id is wrong; the message names the argument.

    Cost: one BLAKE2b call of `16 + 4 * block_tokens` bytes per block, about 1 us.
    """
    if block_tokens < 1:
        raise ArgumentError(f"block_tokens must be at least 1, got {block_tokens}")
    if len(parent) != DIGEST_BYTES:
        raise ArgumentError(f"parent must have {DIGEST_BYTES} bytes, got {len(parent)}")
    if len(namespace_key) > _MAX_KEY_BYTES:
        raise ArgumentError(
            f"namespace_key must have at most {_MAX_KEY_BYTES} bytes, got {len(namespace_key)}"
        )
    try:
        data = struct.pack(f"<{len(token_ids)}I", *token_ids)
    except struct.error as error:
        raise ArgumentError(f"token_ids must be ints in 0..2^32-1 ({error})") from None
    step = 4 * block_tokens
    digests = []
    for start in range(0, len(data) - step + 1, step):
        parent = hashlib.blake2b(
            parent + data[start : start + step], digest_size=DIGEST_BYTES, key=namespace_key
        ).digest()
        digests.append(parent)
    return digests


def store_key(digest: bytes, tp_rank: int = 0, tp_degree: int = 1) -> str:
    """The key under which a block's page lies in the store: hex digest and `/<rank>of<degree>`."""
    return f"{digest.hex()}/{tp_rank}of{tp_degree}"


def digest_of(key: bytes) -> bytes | None:
    """The digest of the block that a store's key names; None if it names no whole page."""
    if len(key) != 2 * DIGEST_BYTES + len(_WHOLE) or not key.endswith(_WHOLE):
        return None
    try:
        return bytes.fromhex(key[: 2 * DIGEST_BYTES].decode("ascii"))
    except ValueError:
        return None
