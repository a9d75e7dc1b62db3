"""Which weights a request is for, and how the blocks of its prompt are named under them."""

import logging
from collections.abc import Callable

import msgspec

from inlay.cluster.instances import Instances
from inlay.cluster.requests import OpenRequest
from inlay.core.block_hash import ROOT
from inlay.core.errors import AdapterNotFoundError, RequestError
from inlay.core.near_names import did_you_mean

log = logging.getLogger(__name__)

HashChain = Callable[[bytes, bytes, bytes, int], bytes]
"""Of namespace key, parent digest, packed token ids and block length: names of full blocks."""

_MAX_KEYS = 1024


class Naming:
    """See the module.

    Args:
        instances: there is one, or was.
        hash_chain: names the blocks of a prompt.
        secret: of the deployment.
    """

    def __init__(self, instances: Instances, hash_chain: HashChain, secret: bytes) -> None:
        self._instances = instances
        self._hash_chain = hash_chain
        self._secret = secret
        self._keys: dict[tuple[str, str, str], bytes] = {}

    def name(self, live: OpenRequest) -> None:
        """Say what a request is for, before it is sent anywhere.

        What has begun stays with its weights as long as an instance has them, unless it was paused.

        Raises:
            RequestError: its token ids are none, or its adapter is not there.
        """
        groups, message, resumed = self._instances.weights, live.message, live.resumed
        begun = bool(live.output_tokens)
        stays = begun and resumed is None and groups.hold(message.weights)
        weights = message.weights if stays else groups.current
        kept = message.kv_weights
        if resumed == "recompute":
            kept = ""
        elif weights != message.weights:
            kept = (kept or message.weights) if begun and resumed == "keep" else ""
            if begun and resumed is None:
                log.warning(
                    "request goes on by other weights: no instance has its own",
                    extra={"request": message.request_id},
                )
        kept = "" if kept == weights else kept
        live.resumed = None
        if live.digests and (weights, kept) == (message.weights, message.kv_weights):
            return
        live.message = msgspec.structs.replace(message, weights=weights, kv_weights=kept)
        live.digests = self._digests(live, kept or weights)

    def _digests(self, live: OpenRequest, weights: str) -> bytes:
        message, reference = live.message, self._instances.reference
        assert reference is not None
        adapter = self._fingerprint(message.adapter, reference.engine.adapters)
        key = self._key(weights, message.cache_salt, adapter)
        try:
            return self._hash_chain(key, ROOT, message.prompt, reference.engine.page_tokens)
        except ValueError as error:
            raise RequestError(f"the prompt has wrong token ids: {error}", "prompt") from None

    def _fingerprint(self, adapter: str, there: dict[str, str]) -> str:
        if adapter and adapter not in there:
            near = did_you_mean(adapter, there)
            raise AdapterNotFoundError(
                f"there is no adapter {adapter!r} here (loaded: {', '.join(there) or 'none'}): "
                + (near or "write it into engine.adapters of the deployment file"),
                "model",
            )
        return there.get(adapter, "")

    def _key(self, weights: str, salt: str, adapter: str) -> bytes:
        """The key that names the blocks of a tenant with an adapter, under weights."""
        key = self._keys.get((weights, salt, adapter))
        if key is None:
            reference = self._instances.reference
            assert reference is not None
            namespace = msgspec.structs.replace(
                reference.namespace.of_weights(weights), tenant_salt=salt, adapter=adapter
            )
            key = namespace.key(self._secret)
            if len(self._keys) >= _MAX_KEYS:
                self._keys.clear()
            self._keys[weights, salt, adapter] = key
        return key
