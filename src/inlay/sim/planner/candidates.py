"""Instances that a fleet may be made of: hardware, how GPUs share the model, and a role."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from inlay.core.errors import ConfigError, ResourceError
from inlay.core.hardware import Machine, catalogue_gpus, machine_named
from inlay.core.instance_messages import ROLES, Role
from inlay.core.model_shape import ModelShape
from inlay.core.near_names import did_you_mean
from inlay.sim.design import InstanceDesign, Parallelism, file_formats
from inlay.sim.forms import form
from inlay.sim.hardware import instance_of, price_usd
from inlay.sim.planner.demand import Demand
from inlay.sim.roofline_time import step_time
from inlay.sim.world import InstanceConfig

HOST = "xeon-spr-2s"
HOST_GPUS = 8
"""Machines are taken to be such hosts with so many GPUs, where a GPU alone is named."""

_CHUNKS = (8192, 4096, 2048, 1024, 512, 256)
_CHUNK_SHARE = 0.5  # of the TBT objective that a chunk takes where answers are produced beside it
_EXPERT_GROUPS = (8, 16, 32)
_STAGES = (2, 4)


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """An instance that may be bought, any number of times.

    Attributes:
        hardware: its GPUs, as the catalogue or a machine's file calls them.
        machine: what it stands on, as `inlay simulate` takes it.
        price_usd: of its GPUs and its share of hosts.
    """

    hardware: str
    machine: str
    role: Role
    design: InstanceDesign
    instance: InstanceConfig
    price_usd: float

    @property
    def gpus(self) -> int:
        """Of an instance."""
        return self.design.parallelism.gpus

    @property
    def name(self) -> str:
        """Its hardware and what its GPUs share, for people."""
        across = self.design.parallelism
        stages = f" in {across.pipeline} stages" if across.pipeline > 1 else ""
        experts = ", whole experts" if across.whole_experts else ""
        return f"{self.gpus} {self.hardware}{stages}{experts}"


def machines_of(
    names: Sequence[str] | None, find_machine: Callable[[str], Machine]
) -> dict[str, tuple[str, Machine]]:
    """Machines by the names of hardware: what `find_machine` takes, and what it gives.

    Args:
        names: GPUs of the catalogue, machines such as `epyc-genoa-2s+4xh20`, or machines' files.
            None: all GPUs of the catalogue that have a price.

    Raises:
        ConfigError: there is no such hardware; suggests near names. Or it has no GPU.
    """
    known = catalogue_gpus()
    if names is None:
        names = [name for name, gpu in known.items() if gpu.price_usd is not None]
    found = {}
    for name in names:
        if name in known:
            machine = f"{HOST}+{HOST_GPUS}x{name}"
            found[name] = machine, machine_named(machine)
        elif "+" in name or Path(name).expanduser().is_file():
            found[Path(name).stem] = name, find_machine(name)
        else:
            meant = did_you_mean(name, known)
            raise ConfigError(
                f"--hardware {name}: the catalogue has no such GPU, and there is no such machine; "
                f"{meant}{' ' if meant else ''}It has {', '.join(known)}"
            )
    for name, (_, machine_found) in found.items():
        if not machine_found.gpus:
            raise ConfigError(f"--hardware {name}: it has no GPU, and fleets are made of GPUs")
    return found


def candidates_of(
    shape: ModelShape,
    machines: dict[str, tuple[str, Machine]],
    demand: Demand,
    *,
    tensor_only: bool = False,
) -> tuple[list[Candidate], dict[str, str]]:
    """All that the model fits on, and why it does not fit on other hardware.

    Args:
        demand: whose blocks are the pages, and for which chunks are chosen.
        tensor_only: whether GPUs share layers and nothing else, as Inlay's own engine has it.

    Raises:
        ConfigError: hardware has no price.
    """
    found: list[Candidate] = []
    unfit: dict[str, str] = {}
    for hardware, (machine_name, machine) in machines.items():
        before, why = len(found), ""
        for across in _parallelisms(shape, machine, tensor_only):
            if across.pipeline > 1 and len(found) > before:
                continue  # stages are for models that do not fit otherwise
            try:
                design = InstanceDesign(
                    shape=shape,
                    formats=file_formats(shape),
                    machine=machine,
                    parallelism=across,
                )
                price = price_usd(design)
                if price is None:
                    raise _unpriced(hardware)
                for role in ROLES:
                    chunk = _chunk(design, demand) if role == "both" else 8192
                    own = replace(design, chunk_tokens=chunk)
                    instance = instance_of(own, page_tokens=demand.block_tokens)
                    found.append(
                        Candidate(
                            hardware=hardware,
                            machine=machine_name,
                            role=role,
                            design=own,
                            instance=instance,
                            price_usd=price,
                        )
                    )
            except ResourceError as error:
                why = str(error)
        if len(found) == before:
            unfit[hardware] = why or "its GPUs cannot share this model"
    return found, unfit


def _parallelisms(shape: ModelShape, machine: Machine, tensor_only: bool) -> Iterator[Parallelism]:
    """Those that the model can be divided by, few GPUs first."""
    powers = [1 << power for power in range(len(machine.gpus).bit_length())]
    asked = [Parallelism(tensor=tensor) for tensor in powers]
    if not tensor_only:
        asked += [
            Parallelism(data=data, whole_experts=True)
            for data in _EXPERT_GROUPS
            if shape.experts and shape.experts % data == 0
        ]
        asked += [Parallelism(tensor=powers[-1], pipeline=stages) for stages in _STAGES]
    for across in asked:
        try:
            InstanceDesign(
                shape=shape, formats=file_formats(shape), machine=machine, parallelism=across
            )
        except ConfigError:
            continue
        yield across


def _chunk(design: InstanceDesign, demand: Demand) -> int:
    """The longest chunk of a prompt whose step leaves time to others' tokens."""
    mean_context = float(demand.pairs_R.sum() / demand.new_R.sum())
    for chunk in _CHUNKS:
        own = replace(design, chunk_tokens=chunk)
        tokens = chunk * design.parallelism.data * design.parallelism.pipeline
        x_F = form(
            prefill_step=1,
            prefill_token=tokens,
            prefill_pair=tokens * mean_context,
            expert=design.shape.experts,
        )
        if step_time(own).seconds(x_F[None])[0] <= _CHUNK_SHARE * demand.gap_s:
            return chunk
    return _CHUNKS[-1]


def _unpriced(hardware: str) -> ConfigError:
    return ConfigError(
        f"--hardware {hardware}: a GPU or a processor of it has no price: set price_usd in a "
        "machine file"
    )
