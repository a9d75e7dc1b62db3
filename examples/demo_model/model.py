"""The training model: the arithmetic of transformers' `qwen3_moe`, arranged for fast CPU training.

Weights are kept fused (q, k, v in one matrix; the experts of a layer in one tensor) in fp32 and
multiplied in bf16; `to_hf` splits and renames them. It knows nothing of text.

Shapes: B rows, S positions, T = B * S tokens, M model width, H heads, D head width, E experts,
K experts a token, F expert width, V vocabulary.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes, named as in Hugging Face's config.json."""

    vocab_size: int = 4096
    hidden_size: int = 256
    num_hidden_layers: int = 5
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    num_experts: int = 16
    num_experts_per_tok: int = 6
    moe_intermediate_size: int = 128
    max_position_embeddings: int = 4096
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6


_ROW_BLOCK = 64  # row counts are padded to this: each new shape costs the CPU library a new kernel


class _Spread(torch.autograd.Function):
    """x [T, M] -> one row for each (token, expert) pair, sorted by expert: [N, M].

    N is T * K and the filling rows; `token` [N] and `inverse` [T, K] map one to the other.
    """

    @staticmethod
    def forward(ctx, x, token, inverse):
        ctx.save_for_backward(inverse)
        return x.index_select(0, token)

    @staticmethod
    def backward(ctx, grad):
        (inverse,) = ctx.saved_tensors
        return F.embedding_bag(inverse, grad.contiguous(), mode="sum"), None, None


class _Gather(torch.autograd.Function):
    """The reverse: rows sorted by expert [N, M] -> their sum for each token [T, M]."""

    @staticmethod
    def forward(ctx, rows, token, inverse):
        ctx.save_for_backward(token)
        return F.embedding_bag(inverse, rows, mode="sum")

    @staticmethod
    def backward(ctx, grad):
        (token,) = ctx.saved_tensors
        return grad.index_select(0, token), None, None


class _ExpertMatmul(torch.autograd.Function):
    """rows [N, M] sorted by expert, weight [E, M, F] -> [N, F]; `bounds` are E + 1 row numbers."""

    @staticmethod
    def forward(ctx, rows, weight, bounds):
        ctx.save_for_backward(rows, weight)
        ctx.bounds = bounds
        out = rows.new_empty(rows.shape[0], weight.shape[2])
        for e in range(weight.shape[0]):
            lo, hi = bounds[e], bounds[e + 1]
            torch.mm(rows[lo:hi], weight[e], out=out[lo:hi])
        return out

    @staticmethod
    def backward(ctx, grad):
        rows, weight = ctx.saved_tensors
        grad = grad.contiguous()
        grad_rows, grad_weight = torch.empty_like(rows), torch.empty_like(weight)
        for e in range(weight.shape[0]):
            lo, hi = ctx.bounds[e], ctx.bounds[e + 1]
            torch.mm(grad[lo:hi], weight[e].t(), out=grad_rows[lo:hi])
            torch.mm(rows[lo:hi].t(), grad[lo:hi], out=grad_weight[e])
        return grad_rows, grad_weight, None


class _CrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of the first `count` rows of bf16 logits [N, V], without fp32 copies.

    One minus the target's probability is summed from the others, so it stays exact near zero.
    """

    @staticmethod
    def forward(ctx, logits, targets, count):
        probs = logits.softmax(-1)
        at = targets[:, None]
        right = probs.gather(1, at).float()
        probs.scatter_(1, at, 0)
        wrong = probs.sum(-1, keepdim=True, dtype=torch.float32)
        probs.scatter_(1, at, -wrong.to(probs.dtype))
        probs[count:] = 0
        ctx.save_for_backward(probs)
        ctx.count = count
        log = torch.where(wrong < 0.5, torch.log1p(-wrong), right.clamp_min(1e-30).log())
        losses = -log[:count, 0]
        ctx.mark_non_differentiable(losses)
        return losses.mean(), losses

    @staticmethod
    def backward(ctx, grad, _):
        (probs,) = ctx.saved_tensors
        return probs.mul_((grad / ctx.count).to(probs.dtype)), None, None


class _Norm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    """Grouped-query attention with normalised queries and keys and rotary positions."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = c = config
        rows = (c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim
        self.qkv = nn.Parameter(torch.randn(rows, c.hidden_size) * c.hidden_size**-0.5)
        self.out = nn.Parameter(
            torch.randn(c.hidden_size, c.num_attention_heads * c.head_dim) * 0.3 / 16
        )
        self.q_norm = _Norm(c.head_dim, c.rms_norm_eps)
        self.k_norm = _Norm(c.head_dim, c.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, S, M] in the compute dtype -> the same shape. Causal over each whole row."""
        c = self.config
        b, s, _ = x.shape
        hq, hk, d = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        qkv = F.linear(x, self.qkv.to(x.dtype)).view(b, s, hq + 2 * hk, d)
        q, k, v = qkv.split((hq, hk, hk), dim=2)
        q = _rotate(self.q_norm(q), cos, sin).transpose(1, 2)
        k = _rotate(self.k_norm(k), cos, sin).transpose(1, 2)
        y = _attend(q, k, v.transpose(1, 2))
        return F.linear(y.transpose(1, 2).reshape(b, s, hq * d), self.out.to(x.dtype))


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention; q [B, H, S, D], k and v [B, Hk, S, D] -> [B, H, S, D].

    On short rows plain matrix products are several times faster on a CPU than the fused kernel's
    backward pass; long rows would need S * S memory and take the fused one.
    """
    s, groups = q.shape[2], q.shape[1] // k.shape[1]
    if s > 512:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    mask = torch.full((s, s), float("-inf"), dtype=q.dtype).triu(1)
    q = q.unflatten(1, (-1, groups)) * q.shape[-1] ** -0.5
    weights = (q.flatten(2, 3) @ k.transpose(2, 3)).unflatten(2, (groups, s)) + mask
    return (weights.softmax(-1).flatten(2, 3) @ v).unflatten(2, (groups, s)).flatten(1, 2)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, S, H, D]; cos and sin [S, 1, D]."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class Experts(nn.Module):
    """A router and E gated experts; each token goes to K of them."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = c = config
        m, f = c.hidden_size, c.moe_intermediate_size
        self.router = nn.Parameter(torch.randn(c.num_experts, m) * 0.02)
        self.gate_up = nn.Parameter(torch.randn(c.num_experts, m, 2 * f) * m**-0.5)
        self.down = nn.Parameter(torch.randn(c.num_experts, f, m) * 0.3 * f**-0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, M] -> (y [T, M], load-balance loss, 1 when the load is even)."""
        c = self.config
        k = c.num_experts_per_tok
        scores_TE = F.linear(x.float(), self.router).softmax(-1)
        weight_TK, expert_TK = scores_TE.topk(k, dim=-1, sorted=False)
        weight_TK = weight_TK / weight_TK.sum(-1, keepdim=True)

        flat = expert_TK.reshape(-1)
        load_E = torch.bincount(flat, minlength=c.num_experts)
        balance = c.num_experts * (load_E / flat.numel() * scores_TE.mean(0)).sum()
        bounds_E1 = F.pad(((load_E + _ROW_BLOCK - 1) // _ROW_BLOCK * _ROW_BLOCK).cumsum(0), (1, 0))
        bounds = bounds_E1.tolist()
        order = torch.argsort(flat.to(torch.uint8), stable=True)
        shift_E = bounds_E1[:-1] - F.pad(load_E.cumsum(0), (1, 0))[:-1]
        place = torch.arange(order.numel()) + shift_E.index_select(0, flat[order])
        inverse = torch.empty_like(order)
        inverse[order] = place
        token = torch.zeros(bounds[-1], dtype=torch.long)  # filling rows copy token 0, weigh 0
        token[place] = order // k
        weight = torch.zeros(bounds[-1]).index_put((inverse,), weight_TK.reshape(-1))
        inverse = inverse.view(-1, k)

        rows = _Spread.apply(x, token, inverse)
        gate, up = _ExpertMatmul.apply(rows, self.gate_up.to(x.dtype), bounds).chunk(2, dim=-1)
        hidden = F.silu(gate) * up * weight.to(x.dtype)[:, None]
        rows = _ExpertMatmul.apply(hidden, self.down.to(x.dtype), bounds)
        return _Gather.apply(rows, token, inverse), balance


class Layer(nn.Module):
    """Attention and experts, each behind a norm, each added to the residual stream."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.attention_norm = _Norm(config.hidden_size, config.rms_norm_eps)
        self.attention = Attention(config)
        self.experts_norm = _Norm(config.hidden_size, config.rms_norm_eps)
        self.experts = Experts(config)


class DemoModel(nn.Module):
    """The whole network; `forward` gives the losses, `hidden` the final states."""

    def __init__(self, config: ModelConfig, compute_dtype: torch.dtype = torch.bfloat16):
        super().__init__()
        self.config, self.compute_dtype = config, compute_dtype
        self.embed = nn.Parameter(torch.randn(config.vocab_size, config.hidden_size) * 0.02)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = _Norm(config.hidden_size, config.rms_norm_eps)
        half = torch.arange(0, config.head_dim, 2).float() / config.head_dim
        angles = torch.arange(config.max_position_embeddings)[:, None] * config.rope_theta**-half
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        self.register_buffer("cos", angles.cos().to(compute_dtype), persistent=False)
        self.register_buffer("sin", angles.sin().to(compute_dtype), persistent=False)

    def hidden(self, ids_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Token ids -> (states [B, S, M] fp32 before the final norm, mean load-balance loss)."""
        s, dtype = ids_BS.shape[1], self.compute_dtype
        x = F.embedding(ids_BS, self.embed)
        balances = []
        for layer in self.layers:
            y = layer.attention_norm(x).to(dtype)
            x = x + layer.attention(y, self.cos[:s], self.sin[:s])
            y, balance = layer.experts(layer.experts_norm(x).to(dtype).flatten(0, 1))
            x = x + y.view_as(x)
            balances.append(balance)
        return x, torch.stack(balances).mean()

    def forward(self, ids_BS: Tensor, answer_BS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean cross-entropy in nats over the answer tokens; that of each; load-balance loss.

        Args:
            ids_BS: token ids.
            answer_BS: True where the token is part of an answer (it is then predicted from the
                position before it).
        """
        x, balance = self.hidden(ids_BS)
        at = answer_BS[:, 1:].flatten().nonzero().squeeze(1)
        count = at.numel()
        at = F.pad(at, (0, -count % _ROW_BLOCK))
        states = x[:, :-1].reshape(-1, x.shape[-1]).index_select(0, at)
        states = self.norm(states).to(self.compute_dtype)
        logits = F.linear(states, self.embed.to(self.compute_dtype))
        targets = ids_BS[:, 1:].flatten().index_select(0, at)
        return *_CrossEntropy.apply(logits, targets, count), balance

    def to_hf(self, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
        """The weights under the names of a `Qwen3MoeForCausalLM` checkpoint."""
        c = self.config
        sizes = [h * c.head_dim for h in (c.num_attention_heads, *[c.num_key_value_heads] * 2)]
        out = {"model.embed_tokens.weight": self.embed, "model.norm.weight": self.norm.weight}
        for i, layer in enumerate(self.layers):
            at = f"model.layers.{i}"
            attention, experts = layer.attention, layer.experts
            out[f"{at}.input_layernorm.weight"] = layer.attention_norm.weight
            out[f"{at}.post_attention_layernorm.weight"] = layer.experts_norm.weight
            for name, part in zip("qkv", attention.qkv.split(sizes), strict=True):
                out[f"{at}.self_attn.{name}_proj.weight"] = part
            out[f"{at}.self_attn.o_proj.weight"] = attention.out
            out[f"{at}.self_attn.q_norm.weight"] = attention.q_norm.weight
            out[f"{at}.self_attn.k_norm.weight"] = attention.k_norm.weight
            out[f"{at}.mlp.gate.weight"] = experts.router
            for e in range(c.num_experts):
                gate, up = experts.gate_up[e].t().chunk(2)
                out[f"{at}.mlp.experts.{e}.gate_proj.weight"] = gate
                out[f"{at}.mlp.experts.{e}.up_proj.weight"] = up
                out[f"{at}.mlp.experts.{e}.down_proj.weight"] = experts.down[e].t()
        return {name: t.detach().to(dtype).contiguous() for name, t in out.items()}
