"""A decoder in float64 and plain PyTorch, with LoRA on any matrix: the measure of training.

Every formula is written out for one sequence, and autograd does the rest. Weights come from the
files of a tiny model by their published names.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

Adapter = Mapping[str, tuple[Tensor, Tensor]]


class PlainDecoder:
    """One tiny model.

    Args:
        adapter: A and B by module, float64 leaves.
        scale: of their product.
    """

    def __init__(self, directory: Path, adapter: Adapter, scale: float) -> None:
        self.config: dict[str, Any] = json.loads((directory / "config.json").read_text())
        files = [load_file(file) for file in sorted(directory.glob("*.safetensors"))]
        self._tensors = {name: t.double() for file in files for name, t in file.items()}
        self._adapter, self._scale = adapter, scale

    def summed_loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Sum of -log p over the tokens of one sequence with a label that is not below 0."""
        wanted = labels >= 0
        return F.cross_entropy(self.logits(ids)[wanted], labels[wanted], reduction="sum")

    def logits(self, ids: Tensor) -> Tensor:
        """`[T, V]`."""
        config = self.config
        x = self._tensors["model.embed_tokens.weight"][ids]
        for i in range(config["num_hidden_layers"]):
            layer = f"model.layers.{i}"
            normed = self._norm(f"{layer}.input_layernorm", x)
            attend = self._latent if "kv_lora_rank" in config else self._grouped
            x = x + self._linear(f"{layer}.self_attn.o_proj", attend(f"{layer}.self_attn", normed))
            normed = self._norm(f"{layer}.post_attention_layernorm", x)
            mlp = (
                f"{layer}.block_sparse_moe" if config["model_type"] == "mixtral" else f"{layer}.mlp"
            )
            x = x + (
                self._mixture(mlp, normed)
                if f"{mlp}.gate.weight" in self._tensors
                else self._mlp(mlp, normed)
            )
        embedding = self._tensors["model.embed_tokens.weight"]
        return self._norm("model.norm", x) @ self._tensors.get("lm_head.weight", embedding).T

    def _linear(self, module: str, x: Tensor) -> Tensor:
        weight = self._tensors[f"{module}.weight"]
        if module in self._adapter:
            a, b = self._adapter[module]
            weight = weight + self._scale * b @ a
        bias = self._tensors.get(f"{module}.bias")
        return x @ weight.T if bias is None else x @ weight.T + bias

    def _norm(self, module: str, x: Tensor) -> Tensor:
        mean = x.square().mean(-1, keepdim=True)
        return x / (mean + self.config["rms_norm_eps"]).sqrt() * self._tensors[f"{module}.weight"]

    def _rotated(self, x: Tensor, *, neighbours: bool = False) -> Tensor:
        """Heads `[T, H, D]`, all of D rotated."""
        width = x.shape[-1]
        base = self.config.get("rope_theta", 10000.0)
        frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.arange(len(x), dtype=torch.float64)[:, None, None] * frequencies
        if neighbours:
            x = torch.cat((x[..., ::2], x[..., 1::2]), dim=-1)
        low, high = x.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shared_by = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(shared_by, 1), v.repeat_interleave(shared_by, 1)
        scores = torch.einsum("thd,shd->hts", q, k) / math.sqrt(q.shape[-1])
        ahead = torch.ones(len(q), len(q), dtype=torch.bool).triu(1)
        weights = scores.masked_fill(ahead, -torch.inf).softmax(-1)
        return torch.einsum("hts,shd->thd", weights, v).flatten(1)

    def _grouped(self, module: str, x: Tensor) -> Tensor:
        width = self.config["head_dim"]
        q, k, v = (self._linear(f"{module}.{p}_proj", x).view(len(x), -1, width) for p in "qkv")
        if f"{module}.q_norm.weight" in self._tensors:
            q, k = self._norm(f"{module}.q_norm", q), self._norm(f"{module}.k_norm", k)
        return self._attend(self._rotated(q), self._rotated(k), v)

    def _latent(self, module: str, x: Tensor) -> Tensor:
        config = self.config
        nope, rank = config["qk_nope_head_dim"], config["kv_lora_rank"]
        if config["q_lora_rank"] is None:
            q = self._linear(f"{module}.q_proj", x)
        else:
            latent = self._norm(f"{module}.q_a_layernorm", self._linear(f"{module}.q_a_proj", x))
            q = self._linear(f"{module}.q_b_proj", latent)
        q = q.view(len(x), config["num_attention_heads"], -1)
        down = self._linear(f"{module}.kv_a_proj_with_mqa", x)
        latent = self._norm(f"{module}.kv_a_layernorm", down[:, :rank])
        up = self._linear(f"{module}.kv_b_proj", latent).view(len(x), q.shape[1], -1)
        key = self._rotated(down[:, None, rank:], neighbours=True).expand(-1, q.shape[1], -1)
        k = torch.cat((up[..., :nope], key), dim=-1)
        q = torch.cat((q[..., :nope], self._rotated(q[..., nope:], neighbours=True)), dim=-1)
        return self._attend(q, k, up[..., nope:])

    def _mlp(self, module: str, x: Tensor, names: str = "gate_proj up_proj down_proj") -> Tensor:
        gate, up, down = (f"{module}.{name}" for name in names.split())
        return self._linear(down, F.silu(self._linear(gate, x)) * self._linear(up, x))

    def _mixture(self, module: str, x: Tensor) -> Tensor:
        config = self.config
        logits = x @ self._tensors[f"{module}.gate.weight"].T
        correction = self._tensors.get(f"{module}.gate.e_score_correction_bias")
        scores = logits.softmax(-1) if correction is None else logits.sigmoid()
        wanted = scores if correction is None else self._in_groups(scores + correction)
        ids = wanted.topk(config["num_experts_per_tok"], -1).indices
        weights = scores.gather(1, ids)
        if config.get("norm_topk_prob", config["model_type"] == "mixtral"):
            weights = weights / weights.sum(-1, keepdim=True)
        weights = weights * config.get("routed_scaling_factor", 1.0)
        names = "w1 w3 w2" if config["model_type"] == "mixtral" else "gate_proj up_proj down_proj"
        out = torch.zeros_like(x)
        for expert in range(logits.shape[1]):
            of_expert = (weights * (ids == expert)).sum(-1, keepdim=True)
            out = out + of_expert * self._mlp(f"{module}.experts.{expert}", x, names)
        if config.get("n_shared_experts"):
            out = out + self._mlp(f"{module}.shared_experts", x)
        return out

    def _in_groups(self, wanted: Tensor) -> Tensor:
        grouped = wanted.view(len(wanted), self.config["n_group"], -1)
        best = grouped.topk(2, -1).values.sum(-1).topk(self.config["topk_group"], -1).indices
        closed = torch.ones(grouped.shape[:2], dtype=torch.bool).scatter(1, best, False)
        return grouped.masked_fill(closed[..., None], -torch.inf).flatten(1)
