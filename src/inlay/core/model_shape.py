"""The sizes and options of a model, and what follows from them: weights, memory, without torch.

Knows neither config.json (`inlay.core.model_config` reads it) nor the names of weights
(`inlay.models.weight_names`).
"""

from dataclasses import dataclass
from typing import Literal

from inlay.core.quantization import Quantization

RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope"]


@dataclass(frozen=True, kw_only=True)
class RopeShape:
    """Rotary positions of a model.

    Attributes:
        kind: how the frequencies are scaled.
        theta: base wavelength.
        rotary_dim: leading elements of a head that are rotated, even.
        factor: stretch of the context.
        original_max_tokens: context before stretching (llama3, yarn).
        low_freq_factor, high_freq_factor: bounds of the blend (llama3).
        beta_fast, beta_slow, truncate: bounds of the blend (yarn).
        divisors: of the frequencies, one for each rotated pair (longrope).
        attention_factor: multiplies cos and sin (yarn, longrope), else 1.
        score_factor: multiplies the scores of attention (DeepSeek's yarn), else 1.
        interleaved: a rotated pair are neighbours; else an element and the one half the rotated
            ones on.
        query_growth: queries at position p are multiplied by
            `1 + query_growth * log(1 + floor(p / original_max_tokens))`; 0: they are not.
    """

    kind: RopeKind = "default"
    theta: float = 10000.0
    rotary_dim: int
    factor: float = 1.0
    original_max_tokens: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    divisors: tuple[float, ...] = ()
    attention_factor: float = 1.0
    score_factor: float = 1.0
    interleaved: bool = False
    query_growth: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MlaShape:
    """Multi-head latent attention: one latent per token stands for all heads' keys and values.

    Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1.

    Attributes:
        q_rank: width of the queries' latent; 0: they have none.
        kv_rank: width of the latent of keys and values.
        nope_dim, rope_dim: elements of a query and a key that are not rotated, and those that are;
            the rotated ones of the key are the same for all heads.
        value_dim: elements of a value.
    """

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, kw_only=True)
class RouterShape:
    """How a token's experts are chosen and weighted.

    Attributes:
        score: what makes logits comparable: softmax over all experts, or a sigmoid each.
        bias: the matrix has a bias.
        correction: a bias per expert is added to scores for the choice alone.
        groups, groups_per_token: experts are taken from so many of so many groups, alike in size.
        group_score: what a group counts: its best expert, or the sum of its best two.
        normalize: the weights of the chosen are scaled to sum 1.
        scale: multiplies the weights then.
        exact: logits are computed in float32, whatever the weights are.
    """

    score: Literal["softmax", "sigmoid"] = "softmax"
    bias: bool = False
    correction: bool = False
    groups: int = 1
    groups_per_token: int = 1
    group_score: Literal["best", "best_two"] = "best"
    normalize: bool = False
    scale: float = 1.0
    exact: bool = False


@dataclass(frozen=True, kw_only=True)
class Activation:
    """What stands between gate, up and down.

    `silu`: silu(gate) * up. `gelu_tanh`: gelu(gate) * up, with GELU's approximation by tanh; dense
    MLPs have it, experts do not. `clamped_swiglu`: with gate at most `limit` and up between
    `-limit` and `limit`, (up + 1) * gate * sigmoid(alpha * gate), as gpt-oss has it.
    """

    kind: Literal["silu", "gelu_tanh", "clamped_swiglu"] = "silu"
    alpha: float = 1.0
    limit: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The sizes and options of one decoder model.

    Attributes:
        architecture: its `model_type`.
        hidden: width of the residual stream.
        intermediate: width of a dense MLP.
        sparse_layers: numbers of the layers that are mixtures of experts.
        experts, experts_per_token, moe_intermediate: 0 without experts.
        shared_intermediate: width of the experts that all tokens pass, all together; 0: none.
        shared_gate: what those give is multiplied by the sigmoid of a score of the token.
        router: how experts are chosen.
        expert_bias: routed experts have biases.
        norms: where layers have RMS norms: before attention and MLP, after them and before their
            sum with the residual stream, or in both places.
        qk_norm: q and k are RMS-normalised: each head by itself, before or after it is rotated, or
            all heads of a token as one row before; empty: they are not.
        embedding_scale: multiplies the embeddings.
        score_scale: of attention's scores; 0: one over the square root of `head_dim`.
        score_softcap, logit_softcap: bound scores of attention and logits, `cap * tanh(x / cap)`;
            0: they are not bounded.
        logit_scale: multiplies the logits.
        sliding_windows: per layer, the number of tokens a query sees; 0 is all of them.
        max_context_tokens: positions the model was made for (after yarn).
        mla: multi-head latent attention; then `kv_heads` is `heads`, and `head_dim` what a query
            has. None: grouped-query attention.
        sinks: each head has a learned score that takes its share of the softmax.
        activation: of MLPs and experts.
        rope: rotary positions.
        window_rope: of layers with a sliding window, where those have others; None: `rope`.
        unrotated_layers: numbers of the layers whose queries and keys are not rotated.
        dtype: of the weights as config.json names it.
        quantization: of the weights in the files; None: they are floats.
    """

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    intermediate: int
    sparse_layers: tuple[int, ...] = ()
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate: int = 0
    shared_intermediate: int = 0
    shared_gate: bool = False
    router: RouterShape = RouterShape()
    expert_bias: bool = False
    max_context_tokens: int
    tie_embeddings: bool = False
    norm_eps: float = 1e-6
    mla: MlaShape | None = None
    norms: Literal["before", "after", "around"] = "before"
    qk_norm: Literal["", "head", "rotated", "whole"] = ""
    embedding_scale: float = 1.0
    score_scale: float = 0.0
    score_softcap: float = 0.0
    logit_softcap: float = 0.0
    logit_scale: float = 1.0
    sinks: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    sliding_windows: tuple[int, ...] = ()
    activation: Activation = Activation()
    rope: RopeShape
    window_rope: RopeShape | None = None
    unrotated_layers: tuple[int, ...] = ()
    dtype: str = "bfloat16"
    quantization: Quantization | None = None

    @property
    def attention_parameters(self) -> int:
        """Weights of one attention part, biases and norms included."""
        if self.mla:
            return self._mla_parameters(self.mla)
        q_rows, kv_rows = self.heads * self.head_dim, self.kv_heads * self.head_dim
        count = self.hidden * (2 * q_rows + 2 * kv_rows)
        count += (q_rows + 2 * kv_rows) * self.qkv_bias + self.hidden * self.output_bias
        by_heads = 2 * self.head_dim
        norms = {"": 0, "head": by_heads, "rotated": by_heads, "whole": q_rows + kv_rows}
        return count + norms[self.qk_norm] + self.heads * self.sinks

    def rope_of(self, layer: int) -> RopeShape | None:
        """Rotary positions of a layer; None: it has none."""
        if layer in self.unrotated_layers:
            return None
        windowed = bool(self.sliding_windows) and self.sliding_windows[layer] > 0
        return self.window_rope if self.window_rope is not None and windowed else self.rope

    @property
    def layer_norms(self) -> int:
        """Norms of a layer on the model's width."""
        return 4 if self.norms == "around" else 2

    def _mla_parameters(self, mla: MlaShape) -> int:
        q_rows = self.heads * (mla.nope_dim + mla.rope_dim)
        latent = mla.kv_rank + mla.rope_dim
        count = mla.q_rank * (self.hidden + 1 + q_rows) if mla.q_rank else self.hidden * q_rows
        count += self.hidden * latent + mla.kv_rank
        count += mla.kv_rank * self.heads * (mla.nope_dim + mla.value_dim)
        count += self.heads * mla.value_dim * self.hidden
        return count + (mla.q_rank + latent) * self.qkv_bias + self.hidden * self.output_bias

    @property
    def mlp_parameters(self) -> int:
        """Weights of one dense MLP."""
        bias = (2 * self.intermediate + self.hidden) * self.mlp_bias
        return 3 * self.hidden * self.intermediate + bias

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert."""
        bias = (2 * self.moe_intermediate + self.hidden) * self.expert_bias
        return 3 * self.hidden * self.moe_intermediate + bias

    @property
    def shared_parameters(self) -> int:
        """Weights of the experts of one layer that all tokens pass."""
        return 3 * self.hidden * self.shared_intermediate + self.hidden * self.shared_gate

    @property
    def router_parameters(self) -> int:
        """Weights of one router."""
        return self.experts * (self.hidden + self.router.bias + self.router.correction)

    @property
    def parameters(self) -> int:
        """All weights; tied embeddings count once."""
        return self._parameters(self.experts) + self.vocab * self.hidden * (
            1 if self.tie_embeddings else 2
        )

    @property
    def active_parameters(self) -> int:
        """Weights that one token's pass multiplies, the LM head included, the embedding not."""
        return self._parameters(self.experts_per_token) + self.vocab * self.hidden

    def _parameters(self, experts: int) -> int:
        sparse = len(self.sparse_layers)
        per_sparse = self.router_parameters + self.shared_parameters
        return (
            self.layers * (self.attention_parameters + self.layer_norms * self.hidden)
            + (self.layers - sparse) * self.mlp_parameters
            + sparse * (per_sparse + experts * self.expert_parameters)
            + self.hidden
        )

    @property
    def value_dim(self) -> int:
        """Elements of a head's value."""
        return self.mla.value_dim if self.mla else self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements that a token leaves in the cache of one layer."""
        if self.mla:
            return self.mla.kv_rank + self.mla.rope_dim
        return 2 * self.kv_heads * self.head_dim

    def kv_token_bytes(self, dtype_bytes: int = 2) -> int:
        """Bytes in the cache per token, all layers together."""
        return self.layers * self.kv_width * dtype_bytes
