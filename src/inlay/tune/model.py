"""A model in training: from tokens to a loss, and back to the LoRA matrices.

The residual stream is float32; products take operands in the dtype of the frozen weights. What
differs between architectures is data, as in `inlay.models.decoder`, whose parts these are in a form
that gradients pass. Each layer keeps its input only and is computed again for the backward pass,
unless it is told to keep all.

Shapes: T tokens, R rows that have a label, M model width, H heads, E experts, K experts per token.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import CheckpointFunction

from inlay.core.model_shape import RouterShape
from inlay.models.torch_experts import route
from inlay.tune.attention import Rows, attend, rotate, rows_of
from inlay.tune.frozen import FrozenWeights
from inlay.tune.lora import NO_DROPOUT, Dropout, Lora
from inlay.tune.loss import summed_loss, summed_loss_and_hits
from inlay.tune.products import add_linear, linear
from inlay.tune.routed import RoutedExperts


class TrainModel:
    """Frozen weights and the LoRA matrices on them. Gradients are for `Tensor.backward`.

    Args:
        recompute: keep the inputs of layers alone, and compute each again in the backward pass.
        retain: keep gate and up of routed experts from a layer's forward pass to its backward
            pass; else these are computed again.
    """

    def __init__(
        self, weights: FrozenWeights, lora: Lora, *, recompute: bool = True, retain: bool = False
    ) -> None:
        self.shape, self.weights, self.lora = weights.shape, weights, lora
        self._recompute = recompute
        self.experts = [
            RoutedExperts(layer.experts, lora, number, retain=retain) if layer.experts else None
            for number, layer in enumerate(weights.layers)
        ]

    def loss(
        self,
        token_ids_T: Tensor,
        positions_T: Tensor,
        starts: Sequence[int],
        labels_T: Tensor,
        dropout: Dropout = NO_DROPOUT,
    ) -> Tensor:
        """Sum of -log p over the tokens that have a label.

        Args:
            token_ids_T, positions_T: int64, of all segments one behind the other.
            starts: where segments begin, and T.
            labels_T: int64; what follows each token, -100 where that is not learned.

        Raises:
            FloatingPointError: the weights of a token's experts are not finite; it says where.
        """
        hidden_TM = self.hidden(token_ids_T, positions_T, starts, dropout)
        states_RM, labels_R = self._labelled(hidden_TM, labels_T)
        return summed_loss(states_RM, self.weights.head_VM, labels_R)

    @torch.no_grad()
    def loss_and_hits(
        self, token_ids_T: Tensor, positions_T: Tensor, starts: Sequence[int], labels_T: Tensor
    ) -> tuple[float, int]:
        """The same sum without dropout and gradients, and how many labels are the likeliest token.

        Args:
            token_ids_T, positions_T, starts, labels_T: as `loss` takes them.
        """
        hidden_TM = self.hidden(token_ids_T, positions_T, starts, NO_DROPOUT)
        states_RM, labels_R = self._labelled(hidden_TM, labels_T)
        return summed_loss_and_hits(states_RM, self.weights.head_VM, labels_R)

    @torch.no_grad()
    def logits(self, token_ids_T: Tensor, positions_T: Tensor, starts: Sequence[int]) -> Tensor:
        """Of all tokens, `[T, V]`, float32."""
        states_TM = self._final(self.hidden(token_ids_T, positions_T, starts, NO_DROPOUT))
        return linear(states_TM.to(self.weights.dtype), self.weights.head_VM).float()

    def hidden(
        self,
        token_ids_T: Tensor,
        positions_T: Tensor,
        starts: Sequence[int],
        dropout: Dropout = NO_DROPOUT,
    ) -> Tensor:
        """States behind the last layer, `[T, M]`, float32.

        Args:
            token_ids_T, positions_T, starts: as `loss` takes them.
        """
        weights = self.weights
        rows = {
            device: rows_of(self.shape, token_ids_T, positions_T, starts, device)
            for device in set(weights.layer_devices)
        }
        embedded_TM = weights.embedding_VM.index_select(0, token_ids_T)
        hidden_TM = embedded_TM.to(weights.layer_devices[0], torch.float32, copy=True)
        # Gradients reach a layer that is computed again only through its input.
        hidden_TM.requires_grad_(self._recompute and torch.is_grad_enabled())
        for number in range(self.shape.layers):
            device = weights.layer_devices[number]
            hidden_TM, layer = hidden_TM.to(device), _Layer(self, number, rows[device], dropout)
            if self._recompute and torch.is_grad_enabled():
                # Reentrant: the first pass keeps nothing, not even what kernels would. Nothing
                # random is drawn from generators that others share (False). `checkpoint`, which
                # calls this, loads the compiler of PyTorch first: 110 MB.
                hidden_TM = CheckpointFunction.apply(layer.forward, False, hidden_TM)  # type: ignore[no-untyped-call]
            else:
                hidden_TM = layer.forward(hidden_TM)
        return hidden_TM

    def _labelled(self, hidden_TM: Tensor, labels_T: Tensor) -> tuple[Tensor, Tensor]:
        """States behind the last norm of the tokens that have a label, and their labels."""
        wanted_R = (labels_T >= 0).nonzero()[:, 0].to(self.weights.device)
        return self._final(hidden_TM[wanted_R]), labels_T.to(self.weights.device)[wanted_R]

    def _final(self, hidden_TM: Tensor) -> Tensor:
        norm_M = self.weights.final_norm_M
        return F.rms_norm(hidden_TM, norm_M.shape, norm_M, self.shape.norm_eps)


class _Layer:
    """One layer of one pass."""

    def __init__(self, model: TrainModel, number: int, rows: Rows, dropout: Dropout) -> None:
        self._shape, self._lora = model.shape, model.lora
        self._layer, self._number = model.weights.layers[number], number
        self._dtype, self._experts = model.weights.dtype, model.experts[number]
        self._rows, self._dropout = rows, dropout

    def forward(self, hidden_TM: Tensor) -> Tensor:
        """The hidden states after it."""
        normed_TM = self._norm("attention_norm", hidden_TM).to(self._dtype)
        attended = self._latent(normed_TM) if self._shape.mla else self._grouped(normed_TM)
        hidden_TM = hidden_TM + self._linear("output", attended)
        normed_TM = self._norm("mlp_norm", hidden_TM)
        if self._experts is None:
            return hidden_TM + self._mlp("", normed_TM.to(self._dtype))
        hidden_TM = hidden_TM + self._routed(self._experts, normed_TM)
        if "shared_gate" in self._layer.parts:
            hidden_TM = hidden_TM + self._mlp("shared_", normed_TM.to(self._dtype))
        return hidden_TM

    def _norm(self, part: str, x: Tensor) -> Tensor:
        weight = self._layer.parts[part]
        return F.rms_norm(x.float(), weight.shape, weight, self._shape.norm_eps)

    def _linear(self, part: str, x_TM: Tensor) -> Tensor:
        parts = self._layer.parts
        y_TN = linear(x_TM, parts[part], parts.get(f"{part}_bias"))
        pair = self._lora.pair(self._number, part)
        if pair is None:
            return y_TN
        dropped_TM = self._dropout.drop(x_TM, self._number, part)
        inner_Tr = linear(dropped_TM, pair.a.to(self._dtype))
        return add_linear(y_TN, inner_Tr, pair.b.to(self._dtype), self._lora.scale)

    def _grouped(self, x_TM: Tensor) -> Tensor:
        shape = self._shape
        q_THD, k_TGD, v_TGD = (
            self._linear(part, x_TM).view(len(x_TM), -1, shape.head_dim) for part in "qkv"
        )
        if shape.qk_norm:
            q_THD = self._norm("q_norm", q_THD).to(self._dtype)
            k_TGD = self._norm("k_norm", k_TGD).to(self._dtype)
        rotated = slice(0, shape.rope.rotary_dim)
        return self._attend(self._rotate(q_THD, rotated), self._rotate(k_TGD, rotated), v_TGD)

    def _latent(self, x_TM: Tensor) -> Tensor:
        shape, mla = self._shape, self._shape.mla
        assert mla is not None
        if mla.q_rank:
            latent_TL = self._norm("q_latent_norm", self._linear("q_down", x_TM))
            q_TQ = self._linear("q_up", latent_TL.to(self._dtype))
        else:
            q_TQ = self._linear("q", x_TM)
        q_THD = q_TQ.view(len(x_TM), shape.heads, -1)
        down_TL = self._linear("kv_down", x_TM)
        latent_TL = self._norm("kv_latent_norm", down_TL[:, : mla.kv_rank]).to(self._dtype)
        up_THD = self._linear("kv_up", latent_TL).view(len(x_TM), shape.heads, -1)
        one_key_T1D = self._rotate(down_TL[:, None, mla.kv_rank :], slice(0, mla.rope_dim))
        k_THD = torch.cat(
            (up_THD[..., : mla.nope_dim], one_key_T1D.expand(-1, shape.heads, -1)), dim=-1
        )
        q_THD = self._rotate(q_THD, slice(mla.nope_dim, shape.head_dim))
        return self._attend(q_THD, k_THD, up_THD[..., mla.nope_dim :])

    def _rotate(self, x_THD: Tensor, part: slice) -> Tensor:
        turned = rotate(x_THD[..., part], self._rows, interleaved=self._shape.rope.interleaved)
        if part.stop - part.start == x_THD.shape[-1]:
            return turned
        return torch.cat((x_THD[..., : part.start], turned, x_THD[..., part.stop :]), dim=-1)

    def _attend(self, q_THD: Tensor, k_TGD: Tensor, v_TGD: Tensor) -> Tensor:
        shape = self._shape
        return attend(
            q_THD,
            k_TGD,
            v_TGD,
            self._rows,
            scale=shape.head_dim**-0.5 * shape.rope.score_factor,
            window=shape.sliding_windows[self._number] if shape.sliding_windows else 0,
        )

    def _mlp(self, of: str, x_TM: Tensor) -> Tensor:
        gate_TF, up_TF = self._linear(f"{of}gate", x_TM), self._linear(f"{of}up", x_TM)
        return self._linear(f"{of}down", F.silu(gate_TF) * up_TF)

    def _routed(self, experts: RoutedExperts, x_TM: Tensor) -> Tensor:
        parts = self._layer.parts
        logits_TE = linear(x_TM, parts["router"], parts.get("router_bias"))
        router, top_k = self._shape.router, self._shape.experts_per_token
        ids_TK, weights_TK = choose(logits_TE, router, parts.get("correction"), top_k)
        if not weights_TK.isfinite().all():
            raise FloatingPointError(f"routing weights in layer {self._number}")
        return experts(x_TM, ids_TK, weights_TK, self._dropout)


def choose(
    logits_TE: Tensor, router: RouterShape, correction_E: Tensor | None, top_k: int
) -> tuple[Tensor, Tensor]:
    """The experts of each token, int32, and their weights, which gradients pass."""
    ids_TK = torch.empty((len(logits_TE), top_k), dtype=torch.int32, device=logits_TE.device)
    with torch.no_grad():
        route(
            logits_TE, router, correction_E, ids_TK, torch.empty_like(ids_TK, dtype=torch.float32)
        )
    sigmoid = router.score == "sigmoid"
    scores_TE = logits_TE.sigmoid() if sigmoid else logits_TE.softmax(-1)
    weights_TK = scores_TE.gather(1, ids_TK.long())
    if router.normalize:
        weights_TK = weights_TK / (weights_TK.sum(-1, keepdim=True) + (1e-20 if sigmoid else 0))
    return ids_TK, weights_TK * router.scale
