"""Settings of one engine. Imports no torch, so that front ends can make them."""

from dataclasses import dataclass, field
from typing import Literal

from inlay.cache.config import CacheConfig
from inlay.core.errors import ConfigError
from inlay.experts.config import ExpertsConfig, PlacementConfig
from inlay.models.formats import WEIGHT_FORMATS, is_weight_format


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """How much runs at once.

    Attributes:
        max_batch_tokens: tokens of one step, prefill and decode together.
        max_running: choices that decode together.
        max_waiting: requests in the queue; one more is refused.
        prefill_chunk: prompt tokens of one request in one step.
    """

    max_batch_tokens: int = 1024
    max_running: int = 64
    max_waiting: int = 1024
    prefill_chunk: int = 512

    def __post_init__(self) -> None:
        for name in ("max_batch_tokens", "max_running", "max_waiting", "prefill_chunk"):
            if getattr(self, name) < 1:
                raise ConfigError(f"scheduler.{name} must be >= 1, got {getattr(self, name)}")
        if self.max_batch_tokens < self.max_running:
            raise ConfigError(
                f"scheduler.max_batch_tokens ({self.max_batch_tokens}) must be at least "
                f"scheduler.max_running ({self.max_running}): each decode needs one token of it"
            )


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """One engine: a model, where it runs, and how much it may take.

    Attributes:
        model: a directory, a hub name, or None for the demo model.
        device: `cpu`, `cuda` (`cuda:1`), or `auto`: cuda where one is present.
        weight_format: how weights are held; `auto` lets the model choose.
        max_context_tokens: prompt and output together; None takes the model's limit.
        threads: of the CPU kernels; None takes the physical cores.
        seed: makes the seeds that the engine chooses for requests reproducible.
        offline: do not go to the network for models.
        load: `lazy` serves as soon as all but the routed experts is in memory; they follow, those
            that a step needs first. Of packed weights nothing is waited for. `whole` waits for all.
        verify_weights: compare a packed model with its checksums before serving it, which reads
            all of it.
        graph: `auto` replays decode steps from CUDA graphs where that works; `off` launches each
            operation.
        exchange: "host:port" where other instances send the KV of prompts that they compute for
            this one, port 0 for any free one; None: prompts are computed here, and for nobody
            else.
        adapters: LoRA adapters, `name=directory` each; requests choose one by its name.
        placement: what goes to a GPU.
        experts: of the host, and those that a device keeps.
    """

    model: str | None = None
    device: str = "auto"
    weight_format: str = "auto"
    max_context_tokens: int | None = None
    threads: int | None = None
    seed: int | None = None
    offline: bool = False
    load: Literal["lazy", "whole"] = "lazy"
    verify_weights: bool = False
    graph: Literal["auto", "off"] = "auto"
    exchange: str | None = None
    adapters: tuple[str, ...] = ()
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    experts: ExpertsConfig = field(default_factory=ExpertsConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)

    def __post_init__(self) -> None:
        kind, _, number = self.device.partition(":")
        if kind not in ("auto", "cpu", "cuda") or (number and not number.isdigit()):
            raise ConfigError(f"device {self.device!r} is not auto, cpu, cuda or cuda:<number>")
        if not is_weight_format(self.weight_format):
            raise ConfigError(
                f"weight_format {self.weight_format!r} is not one of {', '.join(WEIGHT_FORMATS)}, "
                "or two of them, of experts and of the rest: int4:g32+bfloat16"
            )
        if self.placement.tensor_parallel > 1:
            self._check_shared(number)
        if self.load not in ("lazy", "whole"):
            raise ConfigError(f"load is {self.load!r}: it must be lazy or whole")
        if self.graph not in ("auto", "off"):
            raise ConfigError(f"graph is {self.graph!r}: it must be auto or off")
        if self.max_context_tokens is not None and self.max_context_tokens < 2:
            raise ConfigError(f"max_context_tokens must be >= 2, got {self.max_context_tokens}")
        _ = self.adapter_paths  # refused early
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads must be at least 1, got {self.threads}")

    @property
    def adapter_paths(self) -> dict[str, str]:
        """Directories of the adapters, by name.

        Raises:
            ConfigError: one is not `name=directory`, or two have the same name.
        """
        paths: dict[str, str] = {}
        for one in self.adapters:
            name, _, path = (part.strip() for part in one.partition("="))
            if not name or not path:
                raise ConfigError(f"adapters has {one!r}: write name=directory")
            if name in paths:
                raise ConfigError(f"adapters has {name!r} twice: give each a name of its own")
            paths[name] = path
        return paths

    def _check_shared(self, gpu_number: str) -> None:
        """Of what several processes cannot share."""
        degree = self.placement.tensor_parallel
        if gpu_number:
            raise ConfigError(
                f"device is {self.device}, and placement.tensor_parallel={degree} takes the GPUs "
                f"from cuda:0 to cuda:{degree - 1}: set device=cuda"
            )
        for tier in ("host", "disk", "store"):
            if getattr(self.cache, tier) is not None:
                raise ConfigError(
                    f"cache.{tier} keeps whole pages, and with placement.tensor_parallel={degree} "
                    "each process has a part of them: leave one out"
                )
