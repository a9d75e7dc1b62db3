"""Engines on real small models, for the tests of this folder."""

from contextlib import contextmanager
from pathlib import Path

import inlay.models
from inlay.cache import CacheConfig, open_store
from inlay.core.messages import GenerateRequest, SamplingParams
from inlay.core.token_ids import pack_token_ids
from inlay.engine.config import EngineConfig, SchedulerConfig
from inlay.engine.engine import Engine
from inlay.engine.loading import prepare
from inlay.models import load_model
from inlay.models.text import Text
from tests.support.tiny_models import make_tiny_model

DEMO = Path(inlay.models.__file__).parent / "demo"
MODELS = ["tiny-float32", "tiny-bfloat16", "demo"]
ENDLESS = 32_000  # tokens of an answer that no test waits for, however slow the machine is


def model_directory(name, tmp_path_factory, context_tokens=1024):
    """The directory of one of `MODELS`; the demo model has its own context."""
    if name == "demo":
        return DEMO
    dtype = name.removeprefix("tiny-")
    return make_tiny_model(
        tmp_path_factory.mktemp(name) / "model",
        "qwen3_moe",
        dtype=dtype,
        max_position_embeddings=context_tokens,
    )


class Loaded:
    """A model and its text, to make any number of engines from."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.model = load_model(self.directory, device="cpu")
        self.text = Text.load(self.directory)

    @contextmanager
    def engine(
        self, *, pages=2000, prefix=True, page_tokens=16, tiers=None, exchange=None, **scheduler
    ):
        """A new engine, whose pages are all accounted for when the block ends.

        `tiers`: further fields of its `CacheConfig`.
        """
        cache = CacheConfig(pages=pages, prefix=prefix, page_tokens=page_tokens, **(tiers or {}))
        config = EngineConfig(
            model=str(self.directory),
            device="cpu",
            seed=0,
            exchange=exchange,
            cache=cache,
            scheduler=SchedulerConfig(**scheduler),
        )
        store = open_store(cache)
        engine = Engine(config, loaded=prepare(config, "test", self.model, self.text, store))
        try:
            yield engine
            engine.flush(60.0)
            engine.audit()
            counts = engine.cache.counts()
            assert counts.used == 0 or engine.num_live, "pages without a request"
        finally:
            engine.close()


def prefer_loads(engine):
    """Let computing look so slow that every load is waited for, however busy the machine is."""
    engine._tiers.loader.costs.observe_prefill(10**9, 10**9)


def request(
    request_id,
    token_ids,
    *,
    priority=0,
    trace=False,
    cache_salt="",
    session="",
    adapter="",
    **params,
):
    """A request with an arrival time of zero: order of arrival is order of `add`."""
    return GenerateRequest(
        request_id=str(request_id),
        prompt=pack_token_ids(token_ids),
        params=SamplingParams(**params),
        arrival_s=0.0,
        priority=priority,
        trace=trace,
        cache_salt=cache_salt,
        session=session,
        adapter=adapter,
    )


def drain(engine, limit=20000):
    """Step until nothing is left and return all outputs by request id."""
    outputs = {}
    for _ in range(limit):
        if not engine.num_live and not engine.has_work:
            return outputs
        if not engine.has_work:
            engine.wait(60.0)
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    raise AssertionError("the engine makes no progress")
