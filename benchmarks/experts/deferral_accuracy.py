"""experts/deferral_accuracy: what deferring experts changes in the demo model's answers.

The control leaves out, in the same tokens and layers, the experts that would be deferred.
"""

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import inlay.models
from benchmarks.case import Run
from benchmarks.triples import Samples
from inlay.cache import CacheConfig
from inlay.core.deferral import most_deferred
from inlay.core.messages import GenerateRequest, SamplingParams
from inlay.core.model_config import read_shape
from inlay.core.model_shape import RouterShape
from inlay.core.placement import Placement
from inlay.core.token_ids import pack_token_ids
from inlay.engine import Engine, EngineConfig, SchedulerConfig
from inlay.engine.deferral import divergence, most_within
from inlay.engine.loading import prepare
from inlay.experts.config import ExpertsConfig
from inlay.models.batch import ForwardBatch
from inlay.models.fake_device import FakeDevice, FakeOps
from inlay.models.model import load_model
from inlay.models.text import Text
from tests.support.model_driver import ModelDriver

DEMO = Path(inlay.models.__file__).parent / "demo"
PROMPTS = Path(__file__).parents[2] / "examples/demo_model/eval_prompts.json"
DEVICE = "fake:0"
PAGES, PAGE_TOKENS = 2000, 16


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A question, its tokens and those of the answer hoped for."""

    kind: str
    token_ids: list[int]
    expected: str
    expected_ids: list[int]


class DroppingOps(FakeOps):
    """A fake device that leaves experts out.

    Args:
        layers: mixture layers.

    Attributes:
        dropped: of each token that decodes, those that weigh least; none in the last layer.
    """

    def __init__(self, layers: int) -> None:
        super().__init__(DEVICE, FakeDevice())
        self.dropped = 0
        self._layers, self._left = layers, 0
        self._decode_T = torch.zeros(0, dtype=torch.bool)

    def begin(self, batch: ForwardBatch, *more: Any) -> Any:
        """As the protocol says."""
        assert batch.decode_T is not None
        self._decode_T, self._left = torch.from_numpy(batch.decode_T), self._layers
        return super().begin(batch, *more)

    def route(
        self,
        logits_TE: Tensor,
        router: RouterShape,
        correction_E: Tensor | None,
        out_ids_TK: Tensor,
        out_weights_TK: Tensor,
    ) -> None:
        """As the protocol says; then some weigh nothing."""
        super().route(logits_TE, router, correction_E, out_ids_TK, out_weights_TK)
        self._left -= 1
        if self.dropped and self._left:
            self._do(drop, out_weights_TK, self._decode_T, self.dropped)


def drop(weights_TK: Tensor, decode_T: Tensor, number: int) -> None:
    """So many of each such token weigh nothing."""
    least = weights_TK.argsort(-1)[:, :number]
    weights_TK[decode_T] = weights_TK.scatter(-1, least, 0.0)[decode_T]


class Study:
    """The demo model with all experts on the host, and what it is asked."""

    def __init__(self, run: Run) -> None:
        self._running, self._max_tokens = run.workload["running"], run.workload["max_tokens"]
        layers = read_shape(DEMO).layers
        self._ops = DroppingOps(layers)
        self._model = load_model(
            DEMO, placement=Placement.on(DEVICE, layers), backends={DEVICE: self._ops}
        )
        self._text = Text.load(DEMO)
        rows = json.loads(PROMPTS.read_text())[:: run.workload["every"]]
        self.prompts = [
            Prompt(
                kind=row["kind"],
                token_ids=self._text.encode_chat([{"role": "user", "content": row["prompt"]}]),
                expected=row["expected"],
                expected_ids=self._text.encode(row["expected"], add_special_tokens=False),
            )
            for row in rows
        ]

    @contextmanager
    def changed(self, how: str, experts: int) -> Iterator[None]:
        """So many are `deferred` or `dropped`."""
        share = self._model.host_share
        assert share is not None
        setattr(*((share, "deferred") if how == "deferred" else (self._ops, "dropped")), experts)
        try:
            yield
        finally:
            share.deferred = self._ops.dropped = 0

    def answers(self) -> list[str]:
        """Greedy ones, to all prompts."""
        config = EngineConfig(
            device="cpu",
            cache=CacheConfig(pages=PAGES, page_tokens=PAGE_TOKENS),
            scheduler=SchedulerConfig(max_running=self._running),
        )
        params = SamplingParams(temperature=0, max_tokens=self._max_tokens)
        texts = [""] * len(self.prompts)
        engine = Engine(config, loaded=prepare(config, "demo", self._model, self._text))
        try:
            for number, prompt in enumerate(self.prompts):
                engine.add(
                    GenerateRequest(
                        request_id=str(number),
                        prompt=pack_token_ids(prompt.token_ids),
                        params=params,
                        arrival_s=0.0,
                    )
                )
            waiting = len(texts)
            while waiting:
                for output in engine.step():
                    if output.error:
                        raise RuntimeError(output.error)
                    texts[int(output.request_id)] += "".join(one.text for one in output.choices)
                    waiting -= output.finished
        finally:
            engine.close()
        return texts

    def log_probabilities(self) -> list[NDArray[np.float32]]:
        """Of each token of the expected answers but the first, which no deferral changes."""
        found = []
        for first in range(0, len(self.prompts), self._running):
            driver = ModelDriver(self._model, PAGES, PAGE_TOKENS)
            left = []
            for prompt in self.prompts[first : first + self._running]:
                sequence = driver.add(prompt.token_ids + prompt.expected_ids)
                driver.step([(sequence, len(prompt.token_ids))])
                left.append(sequence)
            while left := [one for one in left if one.computed < len(one.tokens)]:
                logits = driver.step([(one, 1) for one in left])
                found += [one.log_softmax(-1).numpy() for one in logits]
        return found

    def auto(self) -> tuple[int, float]:
        """The most that is deferred by itself, and the divergence found for that."""
        model, most = self._model, most_deferred(self._model.shape.experts_per_token)
        pool = model.new_kv_pool(model.kv_format(page_tokens=PAGE_TOKENS), PAGES)
        return most_within(model, pool, self._text, most, ExpertsConfig().max_divergence)


def measure(run: Run) -> Generator[Samples, None, None]:
    """Nothing deferred, then each number deferred and dropped, then what is chosen."""
    study = Study(run)
    exact, exact_texts = study.log_probabilities(), study.answers()
    matches = {0: exact_match(study.prompts, exact_texts, "all")}

    def of(name: str, value: float, **params: object) -> Samples:
        return Samples(name=name, values=[value], params=params, seeds=run.seeds)

    points = dict.fromkeys((one["how"], one["experts"]) for one in run.params("exact_match"))
    for how, experts in points:
        texts = exact_texts
        params = {"how": how, "experts": experts}
        if experts:
            with study.changed(how, experts):
                texts = study.answers()
                changed = study.log_probabilities()
            same = [one == other for one, other in zip(texts, exact_texts, strict=True)]
            yield of("same_answers", fmean(same), **params)
            yield of("divergence", divergence(exact, changed), **params)
        for kind in ("all", "known", "out_of_scope"):
            match = exact_match(study.prompts, texts, kind)
            yield of("exact_match", match, prompts=kind, **params)
            if kind == "all" and how == "deferred":
                matches[experts] = match
    chosen, diverges = study.auto()
    yield of("auto_deferred", chosen)
    yield of("auto_divergence", diverges)
    if chosen not in matches:
        with study.changed("deferred", chosen):
            matches[chosen] = exact_match(study.prompts, study.answers(), "all")
    yield of("auto_loss", 100 * (matches[0] - matches[chosen]))


def exact_match(prompts: Sequence[Prompt], texts: Sequence[str], kind: str) -> float:
    """Share of prompts that are answered word for word."""
    return fmean(
        text == prompt.expected
        for prompt, text in zip(prompts, texts, strict=True)
        if kind in ("all", prompt.kind)
    )
