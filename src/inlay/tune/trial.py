"""Short trials of what training does, on this machine and at a model's own sizes, for a plan.

A trial computes with the code that trains: a layer without its routed experts, some of a layer's
routed experts with as many tokens for each, and the loss. Weights are random. What it takes
beside the roofline's seconds for the same is the pace (`inlay.tune.batch_time`) of the whole run.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from inlay import kernels
from inlay.core.hardware import Machine
from inlay.core.model_shape import ModelShape
from inlay.models.formats import halves
from inlay.models.targets import Target
from inlay.models.weight_names import layer_parts
from inlay.tune.batch_time import EXPERTS, HEAD, BatchTime, Pace
from inlay.tune.config import TuneConfig
from inlay.tune.frozen import FrozenLayer, FrozenWeights
from inlay.tune.frozen_formats import held_format, product_dtype
from inlay.tune.lora import NO_DROPOUT, Lora, new_lora
from inlay.tune.loss import summed_loss
from inlay.tune.model import TrainModel, choose
from inlay.tune.plan import RowCounts
from inlay.tune.routed import RoutedExperts
from inlay.tune.targets import chosen_targets

MOST_TOKENS = 2048
"""Of a trial: of longer micro-batches this many are computed."""

_EXPERT_WEIGHTS = 150_000_000  # of a trial, at most: more than caches hold, less than a second
_NARROW = 32  # an MLP where a layer has none but routed experts: next to nothing
_TURNS, _LEAST_S = 3, 0.4
_AS_ROOFLINE = Pace(experts=1, head=1, layers=1, source="")


def measure_pace(
    config: TuneConfig, shape: ModelShape, machine: Machine, counts: RowCounts
) -> Pace:
    """The pace of a run on this machine.

    Args:
        machine: this one, as it was measured.

    Raises:
        ConfigError: a target matches nothing.

    Cost: some seconds; memory of a layer's weights without routed experts, of `_EXPERT_WEIGHTS`
        of these, and of the output matrix.
    """
    of_batch = round(counts.mean_tokens * config.per_device_train_batch_size)
    tokens = max(1, min(of_batch, MOST_TOKENS))
    row_tokens = max(1, min(round(counts.mean_tokens), tokens))
    expert_format = held_format(shape, halves(config.base_format)[0], product_dtype(config))
    trial = _Trial(config, chosen_targets(shape, config.lora_target), tokens, row_tokens)

    def roofline(of: ModelShape, tokens: int) -> dict[str, float]:
        batch = BatchTime(config, of, machine, _AS_ROOFLINE, 0.0, tokens, row_tokens)
        return batch.seconds(expert_format)

    layer = _without_experts(shape)
    expected = roofline(layer, tokens)
    head_s = expected.pop(HEAD)
    experts = 1.0
    if shape.sparse_layers:
        some, fewer = _some_experts(shape, tokens)
        experts = trial.experts_s(some, expert_format, fewer) / roofline(some, fewer)[EXPERTS]
    return Pace(
        experts=experts,
        head=trial.head_s(shape) / head_s,
        layers=trial.layer_s(layer) / sum(expected.values()),
        source=f"trials of {tokens} tokens on this machine",
    )


def _without_experts(shape: ModelShape) -> ModelShape:
    """A dense model of one layer: attention, and what all tokens pass of the MLP."""
    width = (shape.shared_intermediate or _NARROW) if shape.sparse_layers else shape.intermediate
    return replace(
        shape,
        layers=1,
        intermediate=width,
        sparse_layers=(),
        experts=0,
        experts_per_token=0,
        moe_intermediate=0,
        shared_intermediate=0,
        sliding_windows=shape.sliding_windows[:1],
    )


def _some_experts(shape: ModelShape, tokens: int) -> tuple[ModelShape, int]:
    """A model of one sparse layer, and how many tokens give each of its experts as many rows."""
    fit = max(shape.experts_per_token, _EXPERT_WEIGHTS // shape.expert_parameters)
    count = min(shape.experts, fit)
    some = replace(
        shape,
        layers=1,
        sparse_layers=(0,),
        experts=count,
        router=replace(shape.router, groups=1, groups_per_token=1),
        sliding_windows=shape.sliding_windows[:1],
    )
    return some, max(1, round(tokens * count / shape.experts))


class _Trial:
    """Computes each part a few times, and says what it takes."""

    def __init__(
        self, config: TuneConfig, targets: Sequence[Target], tokens: int, row_tokens: int
    ) -> None:
        self._config, self._targets = config, targets
        self._tokens, self._row_tokens = tokens, row_tokens
        self._dtype = getattr(torch, product_dtype(config))
        self._rng = np.random.default_rng(0)

    def layer_s(self, shape: ModelShape) -> float:
        """A layer of attention and a dense MLP."""
        parts = {
            part: torch.ones(size)
            if part.endswith("_norm")
            else self._matrix(size, torch.float32 if len(size) == 1 else self._dtype)
            for part, size in layer_parts(shape, 0).items()
        }
        embedding_VM = self._matrix((self._tokens, shape.hidden), self._dtype)
        weights = FrozenWeights(
            shape=shape,
            embedding_VM=embedding_VM,
            layers=(FrozenLayer(parts, None),),
            final_norm_M=torch.ones(shape.hidden),
            head_VM=embedding_VM,
            dtype=self._dtype,
            layer_devices=(torch.device("cpu"),),
            expert_format="",
        )
        wanted = {target.part.removeprefix("shared_") for target in self._targets}
        lora = self._lora(
            [
                (part, size)
                for part, size in layer_parts(shape, 0).items()
                if part in wanted and len(size) == 2
            ]
        )
        model = TrainModel(weights, lora, recompute=not self._config.disable_gradient_checkpointing)
        ids_T = torch.arange(self._tokens)
        starts = [*range(0, self._tokens, self._row_tokens), self._tokens]
        positions_T = ids_T % self._row_tokens

        def step() -> None:
            hidden_TM = model.hidden(ids_T, positions_T, starts)
            hidden_TM.backward(torch.ones_like(hidden_TM))  # type: ignore[no-untyped-call]

        return _seconds(step)

    def experts_s(self, shape: ModelShape, expert_format: str, tokens: int) -> float:
        """Some of a layer's routed experts and their choice, each with as many rows as in a run."""
        held = kernels.ExpertWeights(
            shape.experts, shape.hidden, shape.moe_intermediate, expert_format
        )
        sides = ((shape.moe_intermediate, shape.hidden),) * 2
        gate_FM, up_FM = (self._floats(side) for side in sides)
        down_MF = self._floats(sides[0][::-1])
        for expert in range(shape.experts):
            held.set(expert, gate_FM, up_FM, down_MF)
        wanted = {target.part for target in self._targets if target.experts}
        pairs = {
            "expert_gate": sides[0],
            "expert_up": sides[0],
            "expert_down": sides[0][::-1],
        }
        lora = self._lora([pair for pair in pairs.items() if pair[0] in wanted], shape.experts)
        routed = RoutedExperts(held, lora, 0, retain=self._config.kt_cpu_activation == "retain")
        router_EM = self._matrix((shape.experts, shape.hidden), torch.float32)
        correction = torch.zeros(shape.experts) if shape.router.correction else None
        x_TM = self._matrix((tokens, shape.hidden), torch.float32).requires_grad_()
        again = not self._config.disable_gradient_checkpointing

        def forward() -> Tensor:
            logits_TE = F.linear(x_TM, router_EM)
            chosen = choose(logits_TE, shape.router, correction, shape.experts_per_token)
            return routed(x_TM, *chosen, NO_DROPOUT)

        def step() -> None:
            if again:
                with torch.no_grad():
                    forward()
            out_TM = forward()
            out_TM.backward(torch.ones_like(out_TM))  # type: ignore[no-untyped-call]

        return _seconds(step)

    def head_s(self, shape: ModelShape) -> float:
        """The output matrix, and the loss of all tokens."""
        head_VM = self._matrix((shape.vocab, shape.hidden), self._dtype)
        states_TM = self._matrix((self._tokens, shape.hidden), torch.float32).requires_grad_()
        labels_T = torch.arange(self._tokens) % shape.vocab

        def step() -> None:
            summed_loss(states_TM, head_VM, labels_T).backward()  # type: ignore[no-untyped-call]

        return _seconds(step)

    def _lora(self, parts: Sequence[tuple[str, tuple[int, ...]]], experts: int = 0) -> Lora:
        """New pairs of matrices of layer 0."""
        return new_lora(
            [Target(part, 0, part, size[0], size[1], experts) for part, size in parts],
            rank=self._config.lora_rank,
            scale=self._config.lora_scale,
            seed=0,
            dtype=torch.bfloat16 if self._config.pure_bf16 else torch.float32,
        )

    def _matrix(self, size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(self._floats(size)).to(dtype)

    def _floats(self, size: tuple[int, ...]) -> np.ndarray:
        return 0.02 * self._rng.standard_normal(size, np.float32)


def _seconds(step: Callable[[], None]) -> float:
    """Of the quickest turn, after one that nobody times: other programs take from some turns."""
    step()
    taken: list[float] = []
    while len(taken) < _TURNS or sum(taken) < _LEAST_S:
        start = time.perf_counter()
        step()
        taken.append(time.perf_counter() - start)
    return min(taken)
