"""An instance that nobody has: a model, how it is held, GPUs, and how these share it.

What follows from a design: `roofline_time` how long its steps take, `capacity` how many tokens it
has room for, `hardware` the instance of a simulation.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

from inlay.core.errors import ConfigError
from inlay.core.hardware import Device, Efficiency, Machine, assumed_efficiency
from inlay.core.model_shape import ModelShape
from inlay.core.roofline import Formats
from inlay.core.tensor_parallel import shape_of_rank


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """How GPUs share one model.

    `tensor` of them share each layer as `core.tensor_parallel` says: heads, widths and vocabulary
    are divided, latents and heads of keys and values that are too few are copied. `data` such
    groups have requests of their own, whose attention they compute; routed experts lie whole on one
    of all their GPUs, and tokens travel to them. `pipeline` stages have layers of their own, and
    each works on another part of a step's requests.

    Attributes:
        whole_experts: experts are not divided by their width; always where `data` is above 1.
        redundant_experts: copies, in each layer, beside one of each.
        imbalance: what the busiest GPU has of routed work, over the mean; see `expert_balance`.
    """

    tensor: int = 1
    data: int = 1
    pipeline: int = 1
    whole_experts: bool = False
    redundant_experts: int = 0
    imbalance: float = 1.0

    def __post_init__(self) -> None:
        for name in ("tensor", "data", "pipeline"):
            if getattr(self, name) < 1:
                raise ConfigError(f"parallelism.{name} must be at least 1, got {self}")
        if self.data > 1 and not self.whole_experts:
            raise ConfigError(
                f"parallelism: {self.data} groups with requests of their own share whole experts "
                "alone: set whole_experts, or take as many instances for a dense model"
            )
        if self.redundant_experts < 0 or (self.redundant_experts and not self.whole_experts):
            raise ConfigError(
                f"parallelism.redundant_experts: {self.redundant_experts}; copies are of whole "
                "experts, and at least 0"
            )
        if not 1 <= self.imbalance < float("inf"):
            raise ConfigError(f"parallelism.imbalance must be at least 1, got {self.imbalance}")

    @property
    def gpus(self) -> int:
        """All of an instance."""
        return self.tensor * self.data * self.pipeline

    @property
    def stage_gpus(self) -> int:
        """Those that share a layer."""
        return self.tensor * self.data


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a step takes beside reading and computing; assumptions but for who has measured.

    Attributes:
        kernel_s: of each kernel, however small.
        layer_kernels: in a layer.
        step_s: of the engine, while its GPUs wait.
        exchange_s: of each exchange between GPUs, however small.
        peer_share, network_share: of `Device.peer_gbs` and `network_gbs` that exchanges reach.
        expands_latents: prompts are computed with the keys and values of each head, where that is
            quicker, as most engines do; Inlay's own never does.
        two_batches: while half of a step's tokens travel to experts, GPUs compute the other half
            (DeepSeek-V3, arXiv 2412.19437, section 3.4).
        exchange_processors: the share of a GPU's processors that rows of prompts on their way take
            from those that compute then: 20 of 132 (there, section 3.2.2). Decodes take none.
    """

    kernel_s: float = 3e-6
    layer_kernels: int = 12
    step_s: float = 0.0
    exchange_s: float = 10e-6
    peer_share: float = 0.8
    network_share: float = 0.85
    expands_latents: bool = True
    two_batches: bool = False
    exchange_processors: float = 20 / 132

    def __post_init__(self) -> None:
        for name in ("kernel_s", "layer_kernels", "step_s", "exchange_s", "exchange_processors"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"costs.{name} must be at least 0, got {getattr(self, name)}")
        for name in ("peer_share", "network_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"costs.{name} must be in 0..1, got {getattr(self, name)}")


NO_COSTS = Costs(
    kernel_s=0,
    exchange_s=0,
    peer_share=1,
    network_share=1,
    expands_latents=False,
    exchange_processors=0,
)
"""Of `core.roofline`, which knows nothing but reading and computing."""


@dataclass(frozen=True, kw_only=True)
class InstanceDesign:
    """An instance on GPUs that are all alike.

    Attributes:
        machine: one of those that it stands on; it takes as many as its GPUs need.
        chunk_tokens: of one prompt, in a step of each stage.
        host_share: of each layer's routed experts, those that are in the host's memory alone; for
            GPUs that share each layer of all requests.
        deferred_experts: of those of a token, how many are added one layer later.
        costs: what exchanges and launches take.
    """

    shape: ModelShape
    formats: Formats
    machine: Machine
    parallelism: Parallelism = Parallelism()
    chunk_tokens: int = 8192
    host_share: float = 0.0
    deferred_experts: int = 0
    costs: Costs = field(default_factory=Costs)

    def __post_init__(self) -> None:
        across, shape = self.parallelism, self.shape
        if not self.machine.gpus or any(gpu != self.machine.gpus[0] for gpu in self.machine.gpus):
            raise ConfigError(f"{self.machine.name}: a design needs GPUs, all of them alike")
        if self.chunk_tokens < 1:
            raise ConfigError(f"chunk_tokens must be at least 1, got {self.chunk_tokens}")
        if across.pipeline > shape.layers:
            raise ConfigError(
                f"parallelism.pipeline: {shape.layers} layers are not {across.pipeline} stages"
            )
        self._check_host()
        if across.whole_experts:
            self._check_experts(shape.experts + across.redundant_experts, across.stage_gpus)
        if self.machines > 1 and not self.gpu.network_gbs:
            raise ConfigError(
                f"{across.gpus} GPUs are {self.machines} of {self.machine.name}, and these have no "
                "network: set network_gbs of their GPUs in a machine file"
            )
        shape_of_rank(shape, across.tensor)

    def _check_host(self) -> None:
        if not 0 <= self.host_share <= 1 or self.deferred_experts < 0:
            raise ConfigError(
                f"host_share must be in 0..1 and deferred_experts at least 0, got "
                f"{self.host_share} and {self.deferred_experts}"
            )
        across = self.parallelism
        if self.host_share and (across.gpus > across.tensor or across.whole_experts):
            raise ConfigError(
                f"host_share: GPUs beside a host with experts share each layer (tensor) and its "
                f"experts' width, and nothing else: got {across}"
            )
        if self.host_share and (not self.shape.experts or self.machines > 1):
            raise ConfigError(
                f"host_share: {self.shape.experts} experts are for {self.machines} hosts, not for "
                "one: take a model with experts, or fewer GPUs"
            )
        if self.deferred_experts and not self.host_share:
            raise ConfigError("deferred_experts: only those on the host are deferred")

    def _check_experts(self, copies: int, gpus: int) -> None:
        if not self.shape.experts:
            raise ConfigError("parallelism.whole_experts: the model has no experts")
        if copies % gpus:
            more = self.parallelism.redundant_experts + gpus - copies % gpus
            raise ConfigError(
                f"parallelism: {copies} experts of a layer are not alike for {gpus} GPUs; "
                f"{more} redundant ones would be"
            )

    @property
    def is_assumed(self) -> bool:
        """Whether nobody has measured what kernels reach on its GPUs."""
        return self.machine.gpus[0].efficiency == Efficiency()

    @cached_property
    def gpu(self) -> Device:
        """Each of its GPUs, with `core.hardware.assumed_efficiency` where nobody has measured."""
        gpu = self.machine.gpus[0]
        return replace(gpu, efficiency=assumed_efficiency()) if self.is_assumed else gpu

    @property
    def machines(self) -> int:
        """That it stands on, the last one perhaps in part."""
        return self.machines_of(self.parallelism.gpus)

    @property
    def hosts(self) -> float:
        """How many machines' memory and processors it has: with experts there one, else as much as
        it has of their GPUs."""
        return 1.0 if self.host_share else self.parallelism.gpus / len(self.machine.gpus)

    def machines_of(self, gpus: int) -> int:
        """On how many machines so many neighbouring GPUs are."""
        return -(-gpus // len(self.machine.gpus))

    @cached_property
    def rank_shape(self) -> ModelShape:
        """What a GPU computes of each layer; whole experts are whole."""
        rank = shape_of_rank(self.shape, self.parallelism.tensor)
        if self.parallelism.whole_experts:
            return replace(rank, moe_intermediate=self.shape.moe_intermediate)
        return rank


def file_formats(shape: ModelShape, kv: str = "bfloat16") -> Formats:
    """How a model's files hold its matrices, and the cache in `kv`."""
    stored = shape.quantization
    return Formats(
        experts=stored.weight_format if stored else shape.dtype,
        mlp=(stored and stored.rest) or shape.dtype,
        attention=(stored and stored.attention) or shape.dtype,
        latent=shape.dtype,
        router="float32" if shape.router.exact else shape.dtype,
        head=(stored and stored.head) or shape.dtype,
        embedding=shape.dtype,
        kv=kv,
    )
