"""The one decoder: embedding, layers of attention and MLP or experts, norm, LM head.

What differs between architectures is data (`ModelShape`, `Weights`), what differs between
devices is the backend (`Ops`). Neighbouring layers on one device are a stage; rows go from stage to
stage. A layer writes the keys and values of all new tokens to the pool before its attention reads,
and attention reads only the pool: chunking, prefix reuse and batching cannot change what a token
sees.

Shapes: T new tokens, R wanted rows, M model width, V vocabulary, Q = heads * head_dim, N fused
rows of q, k and v, F width of a dense MLP, E experts, K experts per token.
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inlay.core.errors import InlayError
from inlay.core.model_shape import ModelShape, RopeShape, RouterShape
from inlay.core.placement import CPU
from inlay.models.adapter_weights import (
    ABSORB,
    DOWN,
    EXPAND,
    GATE_UP,
    LATENT_DOWN,
    OUTPUT,
    QKV,
    QUERY_UP,
    LayerRows,
    rows_of_layer,
)
from inlay.models.batch import AdapterRows, ForwardBatch, LayerDone
from inlay.models.host_share import HostShare
from inlay.models.host_step import HostStep
from inlay.models.kv_pool import KvPart, KvPool
from inlay.models.ops import Array, AttentionSpec, Ops, RopeTables, Step
from inlay.models.placed import Placed
from inlay.models.rope import FloatArray, query_factors, rope_tables
from inlay.models.weights import (
    DenseWeights,
    GqaWeights,
    LayerWeights,
    MixtureWeights,
    MlaWeights,
    Weights,
)

if TYPE_CHECKING:
    from inlay.models.decode_graph import DecodeGraphs
    from inlay.models.rank_group import RankGroup

log = logging.getLogger(__name__)

_FIRST_ROPE_POSITIONS = 2048
_KEPT_VIEWS = 256
_ONLY_ONE = RouterShape(score="sigmoid")


class _Workspace:
    """Activations of one step, as the backend's arrays."""

    def __init__(self, shape: ModelShape, ops: Ops, rows: int) -> None:
        q_width = shape.heads * shape.head_dim
        mla = shape.mla
        if mla:
            down_width = (mla.q_rank or q_width) + mla.kv_rank + mla.rope_dim
        else:
            down_width = q_width + 2 * shape.kv_heads * shape.head_dim
        dense = shape.layers > len(shape.sparse_layers)
        self.rows = rows
        self.arrays: dict[str, Any] = {
            "hidden_TM": ops.empty(rows, shape.hidden),
            "normed_TM": ops.empty(rows, shape.hidden),
            "added_TM": ops.empty(rows, shape.hidden if shape.norms != "before" else 0),
            "down_TN": ops.empty(rows, down_width),
            "q_TQ": ops.empty(rows, q_width if mla and mla.q_rank else 0),
            "latents_TN": ops.empty(rows, (shape.heads + 1) * shape.kv_width if mla else 0),
            "latent_TQ": ops.empty(rows, shape.heads * mla.kv_rank if mla else 0),
            "attended_TQ": ops.empty(rows, shape.heads * shape.value_dim),
            "gate_up_T2F": ops.empty(rows, 2 * shape.intermediate if dense else 0),
            "gated_TF": ops.empty(rows, shape.intermediate if dense else 0),
            "router_TE": ops.empty(rows, shape.experts),
            "expert_weights_TK": ops.empty(rows, shape.experts_per_token),
            "expert_ids_TK": ops.empty(rows, shape.experts_per_token, "int32"),
            "score_T1": ops.empty(rows, int(shape.shared_gate)),
            "shared_weights_T1": ops.empty(rows, int(shape.shared_gate)),
            "shared_ids_T1": ops.empty(rows, int(shape.shared_gate), "int32"),
        }


class _Views:
    """The first rows of a workspace, with the heads of queries and outputs as a dimension."""

    def __init__(self, memory: _Workspace, shape: ModelShape, rows: int) -> None:
        part = {name: array[:rows] for name, array in memory.arrays.items()}
        q_width = shape.heads * shape.head_dim
        mla = shape.mla
        self.hidden_TM = part["hidden_TM"]
        self.normed_TM = part["normed_TM"]
        self.added_TM = part["added_TM"]  # what a part has computed, where a norm comes behind it
        self.down_TN = part["down_TN"]  # queries of all heads, k and v; or what they come from
        self.q_TQ = part["q_TQ"] if mla and mla.q_rank else part["down_TN"][:, :q_width]
        kv_width = shape.kv_heads * shape.head_dim
        self.k_TK = part["down_TN"][:, q_width : q_width + kv_width]
        self.q_THD = self.q_TQ.reshape((rows, shape.heads, shape.head_dim))
        if mla:
            self.q_latent_TL = part["down_TN"][:, : mla.q_rank]
            self.kv_TL = part["down_TN"][:, mla.q_rank or q_width :]
            self.latents_TN = part["latents_TN"]
            # Queries of latents, and the one key.
            self.latent_TQ = part["latent_TQ"]
            self.latents_THL = part["latents_TN"].reshape((rows, shape.heads + 1, shape.kv_width))
            self.latent_THL = part["latent_TQ"].reshape((rows, shape.heads, mla.kv_rank))
        self.attended_TQ = part["attended_TQ"]
        self.attended_THD = part["attended_TQ"].reshape((rows, shape.heads, shape.value_dim))
        self.gate_up_T2F = part["gate_up_T2F"]
        self.gated_TF = part["gated_TF"]
        self.router_TE = part["router_TE"]
        self.expert_weights_TK = part["expert_weights_TK"]
        self.expert_ids_TK = part["expert_ids_TK"]
        self.score_T1 = part["score_T1"]
        self.shared_weights_T1 = part["shared_weights_T1"]
        self.shared_ids_T1 = part["shared_ids_T1"]


class Decoder:
    """Runs steps. Not thread-safe: one step at a time.

    Args:
        shape: of what this process computes.
        share: what the host has of the mixture layers; None: each is computed where it lies.
        group: the processes that share each layer; None: this one has all of it. The first gets
            the logits.
        graph: replay decode steps, where devices record them.
    """

    def __init__(
        self,
        shape: ModelShape,
        weights: Weights,
        placed: Placed,
        share: HostShare | None = None,
        group: "RankGroup | None" = None,
        graph: bool = False,
    ) -> None:
        self._share = share
        sparse = count()
        self._stages = [
            _Stage(
                shape, placed.backends[at.device], weights, range(at.first, at.end), sparse, group
            )
            for at in placed.placement.stages
        ]
        self._graphs: DecodeGraphs | None = None
        self._guard = placed.first.step_guard
        if shape.rope.query_growth:
            graph = False  # a step's factors would not be its recording's
        if graph and group is None and CPU not in placed.placement.devices:
            from inlay.models import decode_graph

            try:
                self._graphs = decode_graph.DecodeGraphs(
                    self._stages, weights.embedding, shape.max_context_tokens, share
                )
            except InlayError as error:
                log.info("decode steps are not replayed: %s", error)

    def forward(self, batch: ForwardBatch, pool: KvPool) -> Array:
        """Logits `[R, V]`, float32, of the wanted rows; keys and values go to the pool."""
        with self._guard():
            return self._logits(batch, pool)

    def _logits(self, batch: ForwardBatch, pool: KvPool) -> Array:
        if self._graphs is not None and batch.layer_done is None:
            logits = self._graphs.forward(batch, pool)
            if logits is not None:
                return logits
        if self._share is None:
            return self._forward(batch, pool, None)
        with self._share.step(batch) as host:
            return self._forward(batch, pool, host)

    def _forward(self, batch: ForwardBatch, pool: KvPool, host: HostStep | None) -> Array:
        before: _Stage | None = None
        hidden_TM: Array = None
        for stage, part in zip(self._stages, pool.parts, strict=True):
            if before is not None:
                hidden_TM = before.leave(hidden_TM)
            hidden_TM = stage.forward(batch, part, host, hidden_TM)
            before = stage
        assert before is not None
        return before.logits(len(batch.logit_rows_R), hidden_TM, before.step)


class _Stage:
    """Neighbouring layers on one backend."""

    def __init__(
        self,
        shape: ModelShape,
        ops: Ops,
        weights: Weights,
        numbers: range,
        sparse: Iterator[int],
        group: "RankGroup | None",
    ) -> None:
        self.ops = ops
        self._shape, self._weights, self._group = shape, weights, group
        self._memory = _Workspace(shape, ops, 1)
        self._views: dict[int, _Views] = {}
        self._rope_shapes = _rope_shapes(shape, numbers)
        self._rope_positions = 0
        self._ropes: list[RopeTables] = []
        self.step: Step = None  # of the batch that came last
        self._first = numbers.start
        self._layers: list[tuple[LayerWeights, AttentionSpec, int]] = []
        for own, number in enumerate(numbers):
            layer = weights.layers[number]
            mixture = next(sparse) if isinstance(layer.mlp, MixtureWeights) else -1
            rope = self._rope_shapes.index(shape.rope_of(number))
            spec = _spec(shape, number, own, layer.attention, rope)
            self._layers.append((layer, spec, mixture))

    def forward(
        self, batch: ForwardBatch, pool: KvPart, host: HostStep | None, before_TM: Array
    ) -> Array:
        """The hidden states after these layers. `before_TM`: before them; None: tokens begin."""
        ops = self.ops
        work = self._workspace(len(batch.token_ids_T))
        self.step = ops.begin(batch, pool, self.ropes(int(batch.positions_T.max()) + 1))
        if before_TM is None:
            ops.embed(self._weights.embedding, self.step, work.hidden_TM)
        else:
            ops.take(before_TM, work.hidden_TM)
        self.run(
            self.step,
            work,
            host,
            batch.expert_ids_LTK,
            batch.layer_done,
            batch.adapters,
            query_factors(self._shape.rope, batch.positions_T),
        )
        return work.hidden_TM

    def run(
        self,
        step: Step,
        work: _Views,
        host: HostStep | None,
        chosen_LTK: Array | None = None,
        layer_done: LayerDone | None = None,
        adapters: Sequence[AdapterRows] = (),
        query_factors_T: NDArray[np.float32] | None = None,
    ) -> None:
        """All layers, on `work.hidden_TM` in place.

        Args:
            chosen_LTK: gets the experts chosen.
            query_factors_T: see `inlay.models.rope.query_factors`.
        """
        ops, shape = self.ops, self._shape
        if self._first == 0 and shape.embedding_scale != 1:
            ops.scale(work.hidden_TM, shape.embedding_scale)
        added: Sequence[LayerRows] = ()
        for layer, spec, mixture in self._layers:
            if adapters:
                added = rows_of_layer(adapters, self._first + spec.layer)
            x_TM, out_TM = self._begin_part(
                layer.attention_norm_M, layer.attention_post_norm_M, work
            )
            if spec.value_dim:
                self._attend_latent(layer.attention, spec, step, x_TM, work, out_TM, added)
            else:
                self._attend(
                    layer.attention, spec, step, x_TM, work, out_TM, added, query_factors_T
                )
            # Which other ranks begin when they have the layer's KV, too.
            self._end_part(layer.attention_post_norm_M, out_TM, work)
            if layer_done is not None:
                layer_done(spec.layer, None if ops.device == CPU else ops.mark())
            x_TM, out_TM = self._begin_part(layer.mlp_norm_M, layer.mlp_post_norm_M, work)
            if isinstance(layer.mlp, DenseWeights):
                ops.linear(x_TM, layer.mlp.gate_up, work.gate_up_T2F)
                if added:
                    self._add(added, GATE_UP, x_TM, work.gate_up_T2F)
                ops.gate_mul(work.gate_up_T2F, shape.activation, work.gated_TF)
                ops.linear(work.gated_TF, layer.mlp.down, out_TM, accumulate=True)
                if added:
                    self._add(added, DOWN, work.gated_TF, out_TM)
            else:
                self._mix(layer.mlp, x_TM, work, out_TM, host, mixture, added)
                if chosen_LTK is not None:
                    chosen_LTK[mixture] = ops.to_numpy(work.expert_ids_TK)
            self._end_part(layer.mlp_post_norm_M, out_TM, work)

    def _begin_part(
        self, norm_M: Array | None, post_norm_M: Array | None, work: _Views
    ) -> tuple[Array, Array]:
        """What a layer's attention or MLP reads, and what it adds to: the residual stream, or what
        is normalised before it joins that.
        """
        ops = self.ops
        x_TM = work.hidden_TM
        if norm_M is not None:
            x_TM = work.normed_TM
            ops.rms_norm(work.hidden_TM, norm_M, self._shape.norm_eps, x_TM)
        if post_norm_M is not None:
            ops.clear(work.added_TM)
            return x_TM, work.added_TM
        # What was computed before is whole in each rank, and counts once in the next sum.
        if self._group is not None and not self._group.rank.is_first:
            ops.clear(work.hidden_TM)
        return x_TM, work.hidden_TM

    def _end_part(self, post_norm_M: Array | None, out_TM: Array, work: _Views) -> None:
        ops = self.ops
        if self._group is not None:
            ops.sum_ranks(self._group, out_TM)
        if post_norm_M is not None:
            ops.rms_norm(out_TM, post_norm_M, self._shape.norm_eps, out_TM)
            ops.add(out_TM, work.hidden_TM)

    def leave(self, hidden_TM: Array) -> Array:
        """The hidden states for another backend."""
        return self.ops.leave(hidden_TM)

    def logits(self, rows: int, hidden_TM: Array, step: Step) -> Array:
        """Of the wanted rows."""
        ops, weights, group, vocab = self.ops, self._weights, self._group, self._shape.vocab
        logits_RV = ops.empty(rows, vocab if group is None else len(group.rank.part(vocab)))
        if rows:
            states_RM = ops.wanted_rows(hidden_TM, step)
            ops.rms_norm(states_RM, weights.final_norm_M, self._shape.norm_eps, states_RM)
            ops.linear(states_RM, weights.head, logits_RV)
        if group is not None:
            logits_RV = ops.gather_ranks(group, logits_RV, vocab)
        if self._shape.logit_scale != 1:
            ops.scale(logits_RV, self._shape.logit_scale)
        if self._shape.logit_softcap:
            ops.bound(logits_RV, self._shape.logit_softcap)
        return ops.leave(logits_RV)

    def _add(self, added: Sequence[LayerRows], part: str, x_TK: Array, out_TN: Array) -> None:
        """What adapters add to one product; rows without them are left alone."""
        rows = [
            (of.adapter.linear[part], of.first, of.end) for of in added if part in of.adapter.linear
        ]
        if rows:
            self.ops.add_adapters(x_TK, rows, out_TN)

    def _attend(
        self,
        weights: Any,
        spec: AttentionSpec,
        step: Step,
        x_TM: Array,
        work: _Views,
        out_TM: Array,
        added: Sequence[LayerRows],
        query_factors_T: NDArray[np.float32] | None,
    ) -> None:
        ops = self.ops
        ops.linear(x_TM, weights.qkv, work.down_TN)
        if added:
            self._add(added, QKV, x_TM, work.down_TN)
        if self._shape.qk_norm == "whole":
            for rows, norm in ((work.q_TQ, weights.q_norm), (work.k_TK, weights.k_norm)):
                ops.rms_norm(rows, norm, spec.eps, rows)
        if query_factors_T is not None:
            ops.scale(work.q_TQ, query_factors_T)
        ops.rope_and_store(work.down_TN, spec, step)
        ops.attention(work.q_THD, spec, step, work.attended_THD)
        ops.linear(work.attended_TQ, weights.output, out_TM, accumulate=True)
        if added:
            self._add(added, OUTPUT, work.attended_TQ, out_TM)

    def _attend_latent(
        self,
        weights: Any,
        spec: AttentionSpec,
        step: Step,
        x_TM: Array,
        work: _Views,
        out_TM: Array,
        added: Sequence[LayerRows],
    ) -> None:
        ops, rank = self.ops, spec.value_dim
        ops.linear(x_TM, weights.down, work.down_TN)
        if added:
            self._add(added, LATENT_DOWN, x_TM, work.down_TN)
        if weights.q_up is not None:
            latent_TL = work.q_latent_TL
            ops.rms_norm(latent_TL, weights.q_latent_norm_L, spec.eps, latent_TL)
            ops.linear(latent_TL, weights.q_up, work.q_TQ)
            if added:
                self._add(added, QUERY_UP, latent_TL, work.q_TQ)
        queries_THL, key_TL = work.latents_THL[:, :-1], work.latents_THL[:, -1]
        rotated = spec.head_dim - rank
        ops.linear_heads(work.q_THD[..., :-rotated], weights.absorb, queries_THL[..., :rank])
        if added:
            self._add(added, ABSORB, work.q_TQ, work.latents_TN)
        ops.copy(work.q_THD[..., -rotated:], queries_THL[..., rank:])
        ops.rms_norm(work.kv_TL[:, :rank], weights.kv_latent_norm_L, spec.eps, key_TL[:, :rank])
        ops.copy(work.kv_TL[:, rank:], key_TL[:, rank:])
        ops.rope_and_store(work.latents_TN, spec, step)
        ops.attention(queries_THL, spec, step, work.latent_THL)
        ops.linear_heads(work.latent_THL, weights.expand, work.attended_THD)
        if added:
            self._add(added, EXPAND, work.latent_TQ, work.attended_TQ)
        ops.linear(work.attended_TQ, weights.output, out_TM, accumulate=True)
        if added:
            self._add(added, OUTPUT, work.attended_TQ, out_TM)

    def _mix(
        self,
        weights: MixtureWeights,
        x_TM: Array,
        work: _Views,
        out_TM: Array,
        host: HostStep | None,
        mixture: int,
        added: Sequence[LayerRows],
    ) -> None:
        """Host and device have their experts at the same time."""
        ops, shape = self.ops, self._shape
        ops.linear(x_TM, weights.router, work.router_TE)
        ids_TK, weights_TK = work.expert_ids_TK, work.expert_weights_TK
        ops.route(work.router_TE, shape.router, weights.correction_E, ids_TK, weights_TK)
        if weights.cold is not None and weights.cold.expected:
            weights.cold.require(ids_TK)
        adapters = [(of.adapter.experts, of.adapter.shared, of.first, of.end) for of in added]
        shared = weights.shared
        if weights.shared_score is not None:
            self._mix_shared(weights, x_TM, work, out_TM, added)
            shared = None
            adapters = [(of.adapter.experts, None, of.first, of.end) for of in added]
        if host is not None and host.has(mixture):
            host.mix(
                ops,
                mixture,
                x_TM,
                ids_TK,
                weights_TK,
                out_TM,
                activation=shape.activation,
                shared=shared,
                adapters=adapters,
            )
            return
        ops.moe(
            x_TM,
            weights.experts,
            ids_TK,
            weights_TK,
            out_TM,
            activation=shape.activation,
            shared=shared,
            adapters=adapters,
        )

    def _mix_shared(
        self,
        weights: MixtureWeights,
        x_TM: Array,
        work: _Views,
        out_TM: Array,
        added: Sequence[LayerRows],
    ) -> None:
        """Shared experts whose sum is weighted by the sigmoid of a score: the only expert that a
        token may choose.
        """
        ops = self.ops
        ops.linear(x_TM, weights.shared_score, work.score_T1)
        ids_T1, weights_T1 = work.shared_ids_T1, work.shared_weights_T1
        ops.route(work.score_T1, _ONLY_ONE, None, ids_T1, weights_T1)
        ops.moe(
            x_TM,
            weights.shared,
            ids_T1,
            weights_T1,
            out_TM,
            activation=self._shape.activation,
            shared=None,
            adapters=[(of.adapter.shared, None, of.first, of.end) for of in added],
        )

    def work(self, rows: int) -> _Views:
        """New memory for activations."""
        return _Views(_Workspace(self._shape, self.ops, rows), self._shape, rows)

    def _workspace(self, rows: int) -> _Views:
        if rows > self._memory.rows:
            self._memory = _Workspace(self._shape, self.ops, 1 << (rows - 1).bit_length())
            self._views.clear()
        if rows not in self._views:
            if len(self._views) >= _KEPT_VIEWS:
                self._views.clear()
            self._views[rows] = _Views(self._memory, self._shape, rows)
        return self._views[rows]

    def ropes(self, positions: int) -> Sequence[RopeTables]:
        """Cosines and sines of at least so many positions, for each kind of layers."""
        if positions > self._rope_positions:
            doubled = 1 << max(positions, _FIRST_ROPE_POSITIONS - 1).bit_length()
            positions = max(positions, min(doubled, self._shape.max_context_tokens))
            self._ropes = []
            for rope in self._rope_shapes:
                cos, sin = rope_tables(rope, positions) if rope else _unrotated(positions)
                self._ropes.append((self.ops.array(cos), self.ops.array(sin)))
            self._rope_positions = positions
        return self._ropes


def _rope_shapes(shape: ModelShape, layers: range) -> list[RopeShape | None]:
    """The rotary positions of some layers, each once; None: some layers have none."""
    found = {shape.rope_of(layer): None for layer in layers}
    return list(found) or [shape.rope]


def _unrotated(positions: int) -> tuple[FloatArray, FloatArray]:
    """Tables that turn nothing."""
    return np.ones((positions, 1), np.float32), np.zeros((positions, 1), np.float32)


def _spec(
    shape: ModelShape, number: int, own: int, weights: GqaWeights | MlaWeights, rope: int
) -> AttentionSpec:
    """Of the layer with this number, and one of its own in its part of the pool."""
    scale = (shape.score_scale or shape.head_dim**-0.5) * shape.rope.score_factor
    window = shape.sliding_windows[number] if shape.sliding_windows else 0
    if isinstance(weights, MlaWeights):
        assert shape.mla is not None
        return AttentionSpec(
            layer=own,
            heads=shape.heads,
            kv_heads=1,
            head_dim=shape.kv_width,
            window=window,
            scale=scale,
            eps=shape.norm_eps,
            q_norm_D=None,
            k_norm_D=None,
            rope=rope,
            value_dim=shape.mla.kv_rank,
        )
    by_heads = shape.qk_norm in ("head", "rotated")
    return AttentionSpec(
        layer=own,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        window=window,
        scale=scale,
        eps=shape.norm_eps,
        q_norm_D=weights.q_norm if by_heads else None,
        k_norm_D=weights.k_norm if by_heads else None,
        rotate_first=shape.qk_norm == "rotated",
        softcap=shape.score_softcap,
        rope=rope,
        sinks_H=weights.sinks_H,
    )
