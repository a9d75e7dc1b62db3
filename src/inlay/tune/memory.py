"""What a run takes of memory, counted before anything is loaded."""

from collections.abc import Iterable
from dataclasses import dataclass

from inlay.core.errors import ResourceError
from inlay.core.model_shape import ModelShape
from inlay.core.units import format_bytes
from inlay.models.formats import packed_bytes
from inlay.models.targets import Target
from inlay.tune.config import TuneConfig
from inlay.tune.loss import CHUNK_BYTES

_LOGITS = 4  # logits, their softmax, and what they are made from


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes in host memory and on the device together.

    Attributes:
        weights: frozen ones.
        lora: matrices, their gradients and moments.
        activations: of the largest micro-batch, and of the chunks of its loss.
    """

    weights: int
    lora: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.lora + self.activations

    def check(self, free_bytes: int) -> None:
        """Refuse a run that does not fit.

        Raises:
            ResourceError: it says what is needed for what, and what to lower.
        """
        if self.total <= free_bytes:
            return
        raise ResourceError(
            f"the run needs {format_bytes(self.total)} of memory (frozen weights "
            f"{format_bytes(self.weights)}, adapters and their states {format_bytes(self.lora)}, "
            f"activations {format_bytes(self.activations)}), and {format_bytes(free_bytes)} are "
            f"free: {self._advice()}"
        )

    def _advice(self) -> str:
        if self.weights > max(self.lora, self.activations):
            return "set weight_format=int8 or int4 for routed experts, or take a smaller model"
        if self.lora > self.activations:
            return "lower lora_rank, set pure_bf16=true, or leave routed experts out of lora_target"
        return (
            "lower cutoff_len, or per_device_train_batch_size with more "
            "gradient_accumulation_steps (1 and 16 for tight memory)"
        )


def trainable_of(targets: Iterable[Target], rank: int) -> int:
    """Number of weights that change."""
    return sum((t.experts or 1) * rank * (t.rows + t.columns) for t in targets)


def memory_need(
    config: TuneConfig,
    shape: ModelShape,
    expert_format: str,
    targets: Iterable[Target],
    batch_tokens: int,
) -> MemoryNeed:
    """What a run takes.

    Args:
        batch_tokens: of the largest micro-batch.
    """
    half = config.bf16 or config.pure_bf16
    dense = "bfloat16" if half else "float32"
    state_bytes = 2 if config.pure_bf16 else 4
    trainable = trainable_of(targets, config.lora_rank)
    return MemoryNeed(
        weights=packed_bytes(shape, f"{expert_format}+{dense}", dense),
        lora=4 * trainable * state_bytes,
        activations=batch_tokens * _token_bytes(config, shape, 2 if half else 4)
        + _LOGITS * CHUNK_BYTES,
    )


def _token_bytes(config: TuneConfig, shape: ModelShape, product_bytes: int) -> int:
    """Of one token: inputs of all layers, and what autograd keeps of one layer or of all."""
    heads = 4 * shape.heads * shape.head_dim
    widths = 3 * max(shape.intermediate, shape.shared_intermediate)
    of_layer = 4 * 6 * shape.hidden + product_bytes * (heads + widths)
    of_experts = 2 * 4 * shape.hidden
    if config.kt_cpu_activation == "retain":
        of_experts += product_bytes * 2 * shape.experts_per_token * shape.moe_intermediate
    kept = shape.layers if config.disable_gradient_checkpointing else 1
    return shape.layers * 4 * shape.hidden + kept * (of_layer + of_experts)
