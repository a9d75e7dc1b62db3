"""What a foreign engine is, as an instance of a deployment."""

import hashlib
import json
import logging
from pathlib import Path

import msgspec

from inlay import __version__
from inlay.connect.foreign.dialect import Dialect, Facts
from inlay.connect.foreign.http import EngineHttp
from inlay.core.block_hash import Namespace
from inlay.core.errors import ConfigError, EndpointError, ModelError
from inlay.core.instance_messages import InstanceInfo, Role
from inlay.core.instance_setup import InstanceSetup
from inlay.core.kv_format import DTYPE_BYTES, KvFormat, Plane
from inlay.core.messages import EngineInfo
from inlay.core.model_config import read_config, shape_of

log = logging.getLogger(__name__)

_ASK_S = 10.0
_PROBE = "The quick brown fox, 3.14159 naïve 日本語 \t\n  if (x != y) { return -1; }"
_DTYPE = "bfloat16"
_MAX_WAITING = 1 << 20


class About:
    """Of one engine and the model that it serves.

    Args:
        facts: that it says.
        model: directory of the model's config.json and tokenizer.json.
        secret: of the deployment.
        page_tokens: of the deployment's blocks.

    Raises:
        ModelError: the directory has no config.json.
    """

    def __init__(
        self, dialect: Dialect, facts: Facts, model: Path, secret: str, page_tokens: int
    ) -> None:
        self.facts = facts
        self._secret = secret.encode()
        config = read_config(model)
        self._engine = _engine_info(dialect, facts, model, config, page_tokens)
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps(config, sort_keys=True).encode())
        tokenizer = model / "tokenizer.json"
        if tokenizer.is_file():
            digest.update(tokenizer.read_bytes())
        engine = self._engine
        width = max(1, engine.page_bytes // (page_tokens * engine.layers * DTYPE_BYTES[_DTYPE]))
        self.namespace = Namespace(
            # Kinds of engines may be mixed: none of them reads another one's KV by these names.
            fingerprint=f"foreign/{digest.hexdigest()}",
            weight_format=engine.weight_format,
            kv_format=KvFormat(
                page_tokens=page_tokens,
                dtype=_DTYPE,
                planes=(Plane("kv", width),),
                layers=engine.layers,
            ),
        )

    @property
    def engine(self) -> EngineInfo:
        """As engines introduce themselves."""
        return self._engine

    def key_of(self, salt: str, adapter: str) -> bytes | None:
        """What blocks are named by; None: there is no such adapter."""
        fingerprint = self._engine.adapters.get(adapter, "")
        if adapter and not fingerprint:
            return None
        space = msgspec.structs.replace(self.namespace, tenant_salt=salt, adapter=fingerprint)
        return space.key(self._secret)

    def info(self, setup: InstanceSetup, run_id: str, role: Role) -> InstanceInfo:
        """As instances introduce themselves."""
        facts = self.facts
        return InstanceInfo(
            name=setup.name,
            run_id=run_id,
            role=role,
            version=__version__,
            engine=self._engine,
            namespace=self.namespace,
            key_check=self.namespace.key_check(self._secret),
            host=setup.reached_at,
            max_running=facts.max_running,
            max_waiting=_MAX_WAITING,
            max_batch_tokens=facts.prefill_chunk,
            prefill_chunk=facts.prefill_chunk,
        )


async def check_tokenizer(http: EngineHttp, facts: Facts, model: Path) -> None:
    """Compare an engine's tokenizer with the model's: prompts go to it as token ids.

    Engines that do not tokenize by HTTP are believed.

    Raises:
        ConfigError: they differ.
    """
    file = model / "tokenizer.json"
    if not file.is_file():
        return
    body = {"model": facts.model, "prompt": _PROBE, "add_special_tokens": False}
    try:
        theirs = (await http.json("/tokenize", _ASK_S, body)).get("tokens")
    except (EndpointError, AttributeError) as error:
        log.info("the engine's tokenizer is not compared: %s", error)
        return
    import tokenizers

    ours = tokenizers.Tokenizer.from_file(str(file)).encode(_PROBE, add_special_tokens=False).ids
    if theirs != ours:
        raise ConfigError(
            f"{http.url} serves {facts.model}, whose tokenizer is not that of {model}: set model "
            "to what the engine serves"
        )


def _engine_info(
    dialect: Dialect, facts: Facts, model: Path, config: dict[str, object], page_tokens: int
) -> EngineInfo:
    try:
        shape = shape_of(config)
    except ModelError:  # engines serve more than Inlay does
        layers, hidden, vocab = (
            _number(config, name) for name in ("num_hidden_layers", "hidden_size", "vocab_size")
        )
        parameters, token_bytes = 12 * layers * hidden**2 + vocab * hidden, 4 * layers * hidden
        moe_layers = experts = per_token = 0
    else:
        layers, vocab, parameters = shape.layers, shape.vocab, shape.parameters
        token_bytes = shape.kv_token_bytes(DTYPE_BYTES[_DTYPE])
        moe_layers, experts = len(shape.sparse_layers), shape.experts
        per_token = shape.experts_per_token
    return EngineInfo(
        model=facts.model,
        architecture=str(config.get("model_type", "")),
        parameters=max(1, parameters),
        max_context_tokens=facts.context_tokens,
        vocab_size=vocab,
        layers=layers,
        moe_layers=moe_layers,
        experts=experts,
        experts_per_token=per_token,
        device=dialect.name,
        weight_format="foreign",
        kv_dtype=_DTYPE,
        isa=f"{dialect.name} {facts.version}",
        page_tokens=page_tokens,
        num_pages=facts.cache_tokens // page_tokens,
        page_bytes=max(1, token_bytes) * page_tokens,
        load_s=0.0,
        adapters={name: f"foreign/{name}" for name in facts.adapters},
    )


def _number(config: dict[str, object], name: str) -> int:
    """A size of a model that Inlay does not know, which may have it in a part for text."""
    text = config.get("text_config")
    value = config.get(name, text.get(name) if isinstance(text, dict) else None)
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"config.json has no {name}: set model to a directory of a text model")
    return value
