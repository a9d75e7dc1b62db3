"""The one decoder: embedding, layers of attention and MLP or experts, norm, LM head.

What differs between architectures is data (`ModelShape`, `Weights`), what differs between
devices is the backend (`Ops`). A layer writes the keys and values of all new tokens to the pool
before its attention reads, and attention reads only the pool: chunking, prefix reuse and
batching cannot change what a token sees.

Shapes: T new tokens, R wanted rows, M model width, V vocabulary, Q = heads * head_dim, N fused
rows of q, k and v, F width of a dense MLP, E experts, K experts per token.
"""

import torch
from torch import Tensor

from inlay.core.model_shape import ModelShape
from inlay.models.kv_pool import KvPool
from inlay.models.ops import AttentionSpec, Ops, StepInputs
from inlay.models.rope import rope_tables
from inlay.models.weights import LayerWeights, Weights


class _Workspace:
    """Activations of one step, kept between steps and grown when a step needs more rows."""

    def __init__(self, shape: ModelShape, rows: int, device: torch.device) -> None:
        q_width = shape.heads * shape.head_dim
        dense = shape.layers > len(shape.sparse_layers)

        def floats(width: int) -> Tensor:
            return torch.empty((rows, width), dtype=torch.float32, device=device)

        self.rows = rows
        self.hidden_TM = floats(shape.hidden)
        self.normed_TM = floats(shape.hidden)
        self.qkv_TN = floats(q_width + 2 * shape.kv_heads * shape.head_dim)
        self.attended_TQ = floats(q_width)
        self.gate_up_T2F = floats(2 * shape.intermediate if dense else 0)
        self.gated_TF = floats(shape.intermediate if dense else 0)
        self.router_TE = floats(shape.experts)
        self.expert_weights_TK = floats(shape.experts_per_token)
        self.expert_ids_TK = torch.empty(
            (rows, shape.experts_per_token), dtype=torch.int32, device=device
        )

    def first(self, rows: int) -> "_Workspace":
        """Views of the first rows."""
        part = object.__new__(_Workspace)
        for name, value in vars(self).items():
            setattr(part, name, value[:rows] if isinstance(value, Tensor) else rows)
        return part


class Decoder:
    """Runs steps. Not thread-safe: one step at a time."""

    def __init__(self, shape: ModelShape, weights: Weights, ops: Ops, device: torch.device) -> None:
        self._shape, self._weights, self._ops, self._device = shape, weights, ops, device
        self._memory = _Workspace(shape, 1, device)
        self._views: dict[int, _Workspace] = {}
        self._cos_SC = self._sin_SC = torch.empty(0, 0)
        self._specs = [
            AttentionSpec(
                layer=i,
                heads=shape.heads,
                kv_heads=shape.kv_heads,
                head_dim=shape.head_dim,
                window=shape.sliding_windows[i] if shape.sliding_windows else 0,
                scale=shape.head_dim**-0.5,
                eps=shape.norm_eps,
                q_norm_D=layer.q_norm_D,
                k_norm_D=layer.k_norm_D,
            )
            for i, layer in enumerate(weights.layers)
        ]

    @torch.inference_mode()
    def forward(self, step: StepInputs, pool: KvPool) -> Tensor:
        """Logits `[R, V]`, float32, of the wanted rows; keys and values go to the pool."""
        ops, weights, eps = self._ops, self._weights, self._shape.norm_eps
        work = self._workspace(len(step.token_ids_T))
        self._grow_rope(int(step.batch.positions_T.max()) + 1)
        ops.embed(weights.embedding_VM, step.token_ids_T, work.hidden_TM)
        sparse = 0
        for layer, spec in zip(weights.layers, self._specs, strict=True):
            self._attend(layer, spec, step, pool, work)
            ops.rms_norm(work.hidden_TM, layer.mlp_norm_M, eps, work.normed_TM)
            if layer.experts is None:
                ops.linear(work.normed_TM, layer.gate_up, work.gate_up_T2F)
                ops.silu_mul(work.gate_up_T2F, work.gated_TF)
                ops.linear(work.gated_TF, layer.down, work.hidden_TM, accumulate=True)
                continue
            self._mix(layer, work)
            if step.batch.expert_ids_LTK is not None:
                step.batch.expert_ids_LTK[sparse] = work.expert_ids_TK.cpu().numpy()
            sparse += 1
        return self._logits(step, work)

    def _attend(
        self,
        layer: LayerWeights,
        spec: AttentionSpec,
        step: StepInputs,
        pool: KvPool,
        work: _Workspace,
    ) -> None:
        ops = self._ops
        ops.rms_norm(work.hidden_TM, layer.attention_norm_M, spec.eps, work.normed_TM)
        ops.linear(work.normed_TM, layer.qkv, work.qkv_TN)
        ops.rope_and_store(work.qkv_TN, spec, step, self._cos_SC, self._sin_SC, pool)
        ops.attention(work.qkv_TN, spec, step, pool, work.attended_TQ)
        ops.linear(work.attended_TQ, layer.output, work.hidden_TM, accumulate=True)

    def _mix(self, layer: LayerWeights, work: _Workspace) -> None:
        ops = self._ops
        ops.linear(work.normed_TM, layer.router, work.router_TE)
        normalize = self._shape.normalize_expert_weights
        ops.route(work.router_TE, normalize, work.expert_ids_TK, work.expert_weights_TK)
        ops.moe(
            work.normed_TM,
            layer.experts,
            work.expert_ids_TK,
            work.expert_weights_TK,
            work.hidden_TM,
        )

    def _logits(self, step: StepInputs, work: _Workspace) -> Tensor:
        rows = torch.from_numpy(step.batch.logit_rows_R).to(self._device)
        logits_RV = torch.empty(
            (len(rows), self._shape.vocab), dtype=torch.float32, device=self._device
        )
        if len(rows):
            states_RM = work.hidden_TM.index_select(0, rows)
            ops, weights = self._ops, self._weights
            ops.rms_norm(states_RM, weights.final_norm_M, self._shape.norm_eps, states_RM)
            ops.linear(states_RM, weights.head, logits_RV)
        return logits_RV

    def _workspace(self, rows: int) -> _Workspace:
        if rows > self._memory.rows:
            self._memory = _Workspace(self._shape, 1 << (rows - 1).bit_length(), self._device)
            self._views.clear()
        if rows not in self._views:
            if len(self._views) >= 256:
                self._views.clear()
            self._views[rows] = self._memory.first(rows)
        return self._views[rows]

    def _grow_rope(self, positions: int) -> None:
        if positions > len(self._cos_SC):
            most = max(self._shape.max_context_tokens, positions)
            cos, sin = rope_tables(
                self._shape.rope, min(most, 1 << max(positions - 1, 2047).bit_length())
            )
            self._cos_SC = torch.from_numpy(cos).to(self._device)
            self._sin_SC = torch.from_numpy(sin).to(self._device)
