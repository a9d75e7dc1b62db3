"""One step on the model: chunks in, one token per finished chunk out.

Legend: T tokens, B chunks, R rows of logits, N samples (several per row where a request has
n > 1), L MoE layers, E experts, K experts per token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from inlay.engine.batch_builder import StepBatch, build_batch, wants_prompt_rows
from inlay.engine.live import Choice
from inlay.engine.sampling import Sampler, Samples, token_logprobs
from inlay.engine.scheduler import Chunk
from inlay.models.batch import LayerDone
from inlay.models.ops import Array, on_host

if TYPE_CHECKING:
    from inlay.engine.ranks import Ranks
    from inlay.models.adapter_weights import AdapterWeights
    from inlay.models.kv_pool import KvPool
    from inlay.models.model import Model


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step computed.

    Attributes:
        choices: the choices that got a token, a fork's among them.
        samples: their tokens, in the same order.
    """

    choices: list[Choice]
    samples: Samples


class Runner:
    """Runs batches on a model and samples from its logits.

    Args:
        ranks: other processes that share the model; None: there are none.
    """

    def __init__(
        self, model: "Model", pool: "KvPool", page_tokens: int, ranks: "Ranks | None" = None
    ) -> None:
        self._model, self._ranks = model, ranks
        self._models = {0: model}
        self._pool = pool
        self._page_tokens = page_tokens
        self._moe_layers = len(model.shape.sparse_layers)
        self._sampler = Sampler(model.shape.vocab)

    def forward(
        self, chunks: Sequence[Chunk], layer_done: LayerDone | None = None
    ) -> tuple[StepBatch, Array]:
        """Compute the KV of all chunks and the logits [R, V] that they need.

        All chunks are of requests that the same weights compute.

        Args:
            layer_done: see `ForwardBatch`.
        """
        batch = build_batch(
            chunks,
            page_tokens=self._page_tokens,
            moe_layers=self._moe_layers,
            experts_per_token=self._model.shape.experts_per_token,
            layer_done=layer_done,
        )
        model = self._models[chunks[0].choice.request.weights]
        return batch, model.forward(batch.forward, self._pool)

    @property
    def num_models(self) -> int:
        """Weights that are in memory."""
        return len(self._models)

    def take_model(self, weights: int, model: "Model") -> None:
        """Compute by these weights the requests that have this number."""
        self._models[weights] = self._model = model

    def keep_models(self, weights: set[int]) -> bool:
        """Let go of all others; whether there were any."""
        gone = self._models.keys() - weights
        for number in gone:
            del self._models[number]
        return bool(gone)

    def load_adapter(self, directory: Path) -> "AdapterWeights":
        """See `Model.load_adapter` and `Ranks.load_adapter`; of the newest weights. In another
        thread than the engine's, if it is to go on.
        """
        if self._ranks is None:
            return self._model.load_adapter(directory)
        return self._ranks.load_adapter(directory, self._model.load_adapter)

    def forget_adapter(self, adapter: "AdapterWeights") -> None:
        """No step will name it again."""
        if self._ranks is not None:
            self._ranks.forget_adapter(adapter)

    def relieve(self, error: BaseException) -> bool:
        """See `Model.relieve`."""
        return self._model.relieve(error)

    def expert_counts(self) -> dict[str, Any]:
        """Those fields of `EngineStats` that tell of experts on devices."""
        share = self._model.host_share
        if share is None:
            return {}
        moved = 0 if share.mover is None else share.mover.moved
        return {"expert_activations": dict(share.activations), "experts_moved": moved}

    def finish(self, chunks: Sequence[Chunk], batch: StepBatch, logits_RV: Array) -> StepResult:
        """Sample where a chunk reached its end, and collect prompt logprobs and traces.

        Forked choices are sampled from their prompt's row, each with its own draws.
        """
        choices: list[Choice] = []
        rows: list[int] = []
        prompts = False
        for chunk, first, count in zip(chunks, batch.first_rows_B, batch.num_rows_B, strict=True):
            prompts = prompts or wants_prompt_rows(chunk)
            if chunk.samples and chunk.choice.request.max_tokens:
                for choice in (chunk.choice, *chunk.choice.fork):
                    choices.append(choice)
                    rows.append(first + count - 1)
        if prompts:
            self._collect_prompt_logprobs(chunks, batch, logits_RV)
        if batch.forward.expert_ids_LTK is not None:
            self._count_experts(chunks, batch, batch.forward.expert_ids_LTK)
        return StepResult(choices, self._sample(choices, rows, logits_RV))

    def _sample(self, choices: list[Choice], rows: list[int], logits_RV: Array) -> Samples:
        if not choices:
            return Samples([], [], [])
        samplers = [choice.sampler for choice in choices]
        if not isinstance(logits_RV, np.ndarray) and all(
            s.greedy and not s.adjusts and s.params.logprobs is None for s in samplers
        ):
            # Only the tokens travel from the device, not the logits.
            best = logits_RV[rows].max(dim=1)
            possible = best.values.isfinite().tolist()
            return Samples(best.indices.tolist(), possible, [None] * len(rows))
        logits_NV = on_host(logits_RV)
        if rows != list(range(len(logits_NV))):
            logits_NV = logits_NV[rows]
        return self._sampler.sample(logits_NV, samplers)

    def _collect_prompt_logprobs(
        self, chunks: Sequence[Chunk], batch: StepBatch, logits_RV: Array
    ) -> None:
        logits = on_host(logits_RV)
        for chunk, first in zip(chunks, batch.first_rows_B, strict=True):
            request = chunk.choice.request
            collected = request.prompt_logprobs
            if collected is None or not wants_prompt_rows(chunk):
                continue
            # The row of position p tells about token p + 1; entry 0 of the list is None.
            start = max(chunk.start, len(collected) - 1)
            stop = min(chunk.stop, len(request.prompt) - 1)
            if stop > start:
                collected += token_logprobs(
                    logits[first + start - chunk.start : first + stop - chunk.start],
                    request.prompt[start + 1 : stop + 1],
                    [request.params.prompt_logprobs or 0] * (stop - start),
                )

    def _count_experts(
        self, chunks: Sequence[Chunk], batch: StepBatch, expert_ids_LTK: np.ndarray
    ) -> None:
        for chunk, first in zip(chunks, batch.starts_B, strict=False):
            choice = chunk.choice
            counts_LE = choice.request.expert_counts_LE
            start = max(chunk.start, choice.traced)
            if counts_LE is None or start >= chunk.stop:
                continue
            ids_LTK = expert_ids_LTK[
                :, first + start - chunk.start : first + chunk.stop - chunk.start
            ]
            for layer, ids_TK in enumerate(ids_LTK):
                counts_LE[layer] += np.bincount(ids_TK.ravel(), minlength=counts_LE.shape[1])
            choice.traced = chunk.stop
