"""A model's weights in memory, and where they come from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from inlay import kernels
from inlay.models.background import ColdExperts, Loading
from inlay.models.embedding import Embedding
from inlay.models.hand_over import Residents
from inlay.models.ops import Array, Experts, Linear


@dataclass(frozen=True)
class GqaWeights:
    """Grouped-query attention.

    Attributes:
        q_norm, k_norm: of each head, `[D]`, or of all heads as one row; None: without.
    """

    qkv: Linear
    output: Linear
    q_norm: Array | None
    k_norm: Array | None
    sinks_H: Array | None


@dataclass(frozen=True)
class MlaWeights:
    """Latent attention, in the form that attends to latents.

    Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1.2.

    Attributes:
        down: from the model's width: queries (of all heads, or their latent), then the latent of
            keys and values with what is rotated.
        q_latent_norm_L, q_up: from the queries' latent to the queries; None where they have none.
        absorb: for each head, from what is not rotated of a query to a query of latents.
        expand: for each head, from a latent to a value.
    """

    down: Linear
    q_latent_norm_L: Array | None
    q_up: Linear | None
    kv_latent_norm_L: Array
    absorb: Linear
    expand: Linear
    output: Linear


@dataclass(frozen=True)
class DenseWeights:
    """An MLP that all tokens pass."""

    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class MixtureWeights:
    """A mixture of experts.

    Attributes:
        shared_score: what gives the score of the shared experts, `[1, M]`; None: they have none.
        experts: those that are routed to, on the layer's device: all of them, or some that the host
            has, too; None: it has none.
        host: all of them in the host's memory, where the layer's device is another; else None.
        cold: where some of the routed experts may be on their way yet, else None.
    """

    router: Linear
    correction_E: Array | None
    experts: Experts | Residents | None
    shared: Experts | None
    shared_score: Linear | None = None
    host: kernels.ExpertWeights | None = None
    cold: ColdExperts | None = None


@dataclass(frozen=True)
class LayerWeights:
    """One layer.

    Attributes:
        attention_norm_M, mlp_norm_M: of what a part reads; None: it reads the stream as it is.
        attention_post_norm_M, mlp_post_norm_M: of what a part has computed, before it is added;
            None: it is added as it is.
    """

    attention_norm_M: Array | None
    attention: GqaWeights | MlaWeights
    attention_post_norm_M: Array | None
    mlp_norm_M: Array | None
    mlp: DenseWeights | MixtureWeights
    mlp_post_norm_M: Array | None


@dataclass(frozen=True)
class Weights:
    """All weights of one model.

    Attributes:
        embedding: rows by token id, as the files have them.
        head: output matrix, packed; of tied models from the embedding.
    """

    embedding: Embedding
    layers: tuple[LayerWeights, ...]
    final_norm_M: Array
    head: Linear


class WeightSource(Protocol):
    """Where the weights come from, in the order in which they are used."""

    def embedding(self) -> Embedding:
        """Rows per token id."""
        ...

    def layer(self, layer: int, loading: Loading | None = None) -> LayerWeights:
        """All of one layer; with `loading` what a step may do without comes later, through it."""
        ...

    def final_norm(self) -> Array:
        """The norm before the head."""
        ...

    def head(self) -> Linear:
        """The output matrix."""
        ...


def load_weights(source: WeightSource, layers: int, loading: Loading | None = None) -> Weights:
    """Take everything from a source; with `loading` in its threads, routed experts afterwards.

    Raises:
        ModelFileError: a file is damaged.
    """
    calls: list[Callable[[], Any]] = [source.embedding, source.final_norm, source.head]
    calls += [partial(source.layer, layer, loading) for layer in range(layers)]
    results = [call() for call in calls] if loading is None else loading.gather(calls)
    embedding, final_norm_M, head, *of_layers = results
    return Weights(embedding, tuple(of_layers), final_norm_M, head)


@dataclass(frozen=True)
class OpenWeights:
    """Weights that can be loaded.

    Attributes:
        weight_format: how the matrices are held; see `part_formats` for which ones.
        float_dtype: dtype of the floats that are kept as they are, `float32` or `bfloat16`.
        held_bytes: memory that they take.
        fingerprint: of their content.
        shared_bytes: of that memory what other weights have already, of each device.
    """

    source: WeightSource
    weight_format: str
    float_dtype: str
    held_bytes: int
    fingerprint: str
    shared_bytes: Mapping[str, int] = field(default_factory=dict)
