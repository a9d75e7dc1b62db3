"""Machines as data: processors and GPUs of the catalogue, those that were measured, and files.

machine_named("xeon-spr-2s+h800")     two sockets and one GPU of the catalogue
machine_named("epyc-genoa+2x4090")
read_machine(Path("mine.toml"))

Knows rates and sizes, no model (`inlay.core.roofline` puts both together). The catalogue is
`hardware.toml` beside this file; each figure there has its source.
"""

import functools
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from inlay.core.errors import ConfigError
from inlay.core.near_names import did_you_mean
from inlay.core.text_files import read_text

OPERANDS = ("fp32", "bf16", "fp8", "int8", "fp4")
"""What a device multiplies, the keys of `Device.tflops`."""

Origin = Literal["measured", "catalogue", "file"]

_SHARES = ("attention_read", "attention_compute")
_TABLES = ("read", "compute")


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """Shares of a device's rates that kernels reach; 1 where nobody has measured.

    Attributes:
        read: of bandwidth, by products with few tokens: by weight format, or else by operand.
        compute: of the operand's peak, by products with many; as `read`.
        attention_read, attention_compute: the same of attention.
        measured: where the figures come from; empty: nobody measured.
    """

    read: Mapping[str, float] = field(default_factory=dict)
    compute: Mapping[str, float] = field(default_factory=dict)
    attention_read: float = 1.0
    attention_compute: float = 1.0
    measured: str = ""


@dataclass(frozen=True, kw_only=True)
class Device:
    """One memory and what computes on it: a NUMA node, or a GPU.

    Attributes:
        title: its full name.
        memory_gb: 10^9 bytes.
        bandwidth_gbs: what reading this memory reaches (10^9 bytes/s): the probe's figure where one
            read it, else the maker's.
        tflops: 10^12 operations/s per operand, dense.
        cores: of a processor; 0 for a GPU.
        link_gbs: of a GPU to the host's memory, one direction; 0 for a processor.
        peer_gbs: of a GPU to others of its machine, one direction; 0 where nobody says.
        network_gbs: a GPU's share of what its machine has to others, one direction; 0: none.
        price_usd: None where it is not known.
        sources: where each figure comes from.
    """

    title: str
    memory_gb: float
    bandwidth_gbs: float
    tflops: Mapping[str, float]
    cores: int = 0
    link_gbs: float = 0.0
    peer_gbs: float = 0.0
    network_gbs: float = 0.0
    price_usd: float | None = None
    efficiency: Efficiency = Efficiency()
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def memory_bytes(self) -> float:
        """Its size in bytes."""
        return self.memory_gb * 1e9


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Processors and GPUs of one host.

    Attributes:
        name: as the user called it.
        nodes: NUMA nodes; at least one.
        gpus: may be none.
        disk_gb, disk_gbs: 10^9 bytes for a cache, and at which rate they are read; 0: none.
        origin: who says so: a measurement of this machine, the catalogue, or a user's file.
    """

    name: str
    nodes: tuple[Device, ...]
    gpus: tuple[Device, ...] = ()
    disk_gb: float = 0.0
    disk_gbs: float = 0.0
    origin: Origin = "file"

    @property
    def device_names(self) -> tuple[str, ...]:
        """As placements call them: `cpu`, and `cuda:0` and so on for the GPUs."""
        return ("cpu", *(f"cuda:{number}" for number in range(len(self.gpus))))

    @property
    def host(self) -> Device:
        """All nodes as one device: each matrix is cut into even parts, which the nodes read and
        multiply at the same time, so the slowest counts for all."""
        return _together(self.nodes, at_once=len(self.nodes))

    @property
    def gpu(self) -> Device | None:
        """All GPUs as one device: they hold consecutive layers, and work one after the other."""
        return _together(self.gpus, at_once=1) if self.gpus else None


def _together(devices: Sequence[Device], at_once: int) -> Device:
    """Even devices as one; `at_once` of them work at the same time, each as fast as the slowest."""
    first = devices[0]
    operands = set.intersection(*(set(device.tflops) for device in devices))
    prices = [device.price_usd for device in devices]
    return replace(
        first,
        title=first.title if len(devices) == 1 else f"{len(devices)} x {first.title}",
        memory_gb=len(devices) * min(device.memory_gb for device in devices),
        bandwidth_gbs=at_once * min(device.bandwidth_gbs for device in devices),
        tflops={
            operand: at_once * min(device.tflops[operand] for device in devices)
            for operand in OPERANDS
            if operand in operands
        },
        cores=sum(device.cores for device in devices),
        link_gbs=min(device.link_gbs for device in devices),
        peer_gbs=min(device.peer_gbs for device in devices),
        network_gbs=min(device.network_gbs for device in devices),
        price_usd=None if None in prices else sum(price or 0 for price in prices),
    )


@functools.cache
def _catalogue() -> dict[str, Any]:
    return tomllib.loads(files("inlay.core").joinpath("hardware.toml").read_text("utf-8"))


def catalogue_cpus() -> dict[str, Device]:
    """The processors of the catalogue by name, one socket each."""
    return _devices("cpus")


def catalogue_gpus() -> dict[str, Device]:
    """The GPUs of the catalogue by name."""
    return _devices("gpus")


def kernel_efficiency(kind: Literal["cpu", "gpu"]) -> Efficiency:
    """What Inlay's own kernels reach on devices of a kind."""
    return Efficiency(**_catalogue()["efficiency"][kind])


def assumed_efficiency() -> Efficiency:
    """What a simulation starts from where nobody has measured a GPU's kernels."""
    return Efficiency(**_catalogue()["efficiency"]["assumed"])


def _devices(section: str) -> dict[str, Device]:
    kind: Literal["cpu", "gpu"] = "cpu" if section == "cpus" else "gpu"
    return {
        name: _device(entry, kernel_efficiency(kind), f"hardware.toml: {name}")
        for name, entry in _catalogue()[section].items()
    }


def machine_named(name: str) -> Machine:
    """A machine of the catalogue: CPU, CPU-Ns (sockets), and `+GPU` or `+NxGPU` behind it.

    Raises:
        ConfigError: the catalogue lacks a part; the message names what there is.
    """
    cpu_text, *gpu_texts = name.lower().split("+")
    match = re.fullmatch(r"(?P<cpu>.+?)(?:-(?P<sockets>[1-9]\d?)s)?", cpu_text)
    cpus, gpus = catalogue_cpus(), catalogue_gpus()
    cpu = match["cpu"] if match else ""
    if match is None or cpu not in cpus:
        raise ConfigError(_unknown(name, "processor", cpu, list(cpus)))
    found: list[Device] = []
    for text in gpu_texts:
        part = re.fullmatch(r"(?:(?P<count>[1-9]\d?)x)?(?P<gpu>\w+)", text)
        gpu = part["gpu"] if part else text
        if part is None or gpu not in gpus:
            raise ConfigError(_unknown(name, "GPU", gpu, list(gpus)))
        found += [gpus[gpu]] * int(part["count"] or 1)
    return Machine(
        name=name,
        nodes=(cpus[cpu],) * int(match["sockets"] or 1),
        gpus=tuple(found),
        origin="catalogue",
    )


def _unknown(name: str, kind: str, part: str, known: list[str]) -> str:
    meant = did_you_mean(part, known)
    return (
        f"--machine {name}: there is no such file, and the catalogue has no {kind} "
        f"{part!r}{f' ({meant})' if meant else ''}; it has {', '.join(known)}. Write for example "
        "xeon-spr-2s+h800 or epyc-genoa+2x4090, or name a file of `inlay doctor --save`"
    )


def read_machine(file: Path) -> Machine:
    """A machine of a TOML file: `[[nodes]]` and `[[gpus]]`, each with the fields of `Device`.

    Before them `name`, `disk_gb` and `disk_gbs`.
    `like = "h800"` takes what an entry leaves out from the catalogue, `count = 2` repeats it.

    Raises:
        ConfigError: it cannot be read, or a value is missing or impossible.
    """
    try:
        content = tomllib.loads(read_text(file, error=ConfigError))
    except OSError as error:
        raise ConfigError(f"--machine {file}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--machine {file}: not TOML: {error}") from None
    nodes = _listed(content.get("nodes"), "cpu", f"{file}: nodes")
    if not nodes:
        raise ConfigError(f"{file}: needs at least one [[nodes]]: a NUMA node, or a socket")
    origin: Origin = "measured" if content.get("origin") == "measured" else "file"
    return Machine(
        name=str(content.get("name") or file.stem),
        nodes=nodes,
        gpus=_listed(content.get("gpus"), "gpu", f"{file}: gpus"),
        disk_gb=_number(content, "disk_gb", 0.0, where=str(file), least=0),
        disk_gbs=_number(content, "disk_gbs", 0.0, where=str(file), least=0),
        origin=origin,
    )


def _listed(entries: Any, kind: Literal["cpu", "gpu"], where: str) -> tuple[Device, ...]:
    if entries is None:
        return ()
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{where}: write one [[{where.rsplit(' ', 1)[1]}]] table per device")
    known = catalogue_cpus() if kind == "cpu" else catalogue_gpus()
    found: list[Device] = []
    for entry in entries:
        given = dict(entry)
        like, count = given.pop("like", None), given.pop("count", 1)
        if like is not None and like not in known:
            raise ConfigError(f"{where}: like = {like!r} is not one of {', '.join(known)}")
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 64:
            raise ConfigError(f"{where}: count is {count!r}, not a whole number in 1..64")
        base = known[like] if like else None
        found += [_device(given, kernel_efficiency(kind), where, base)] * count
    return tuple(found)


def _device(
    entry: Mapping[str, Any], efficiency: Efficiency, where: str, base: Device | None = None
) -> Device:
    """A device of a table; what it leaves out is taken from `base`."""
    given = dict(entry)
    number = functools.partial(_number, given, where=where)
    bandwidth = number("bandwidth_gbs", base.bandwidth_gbs if base else None)
    read = number("read_gbs", bandwidth)
    tflops = given.pop("tflops", base.tflops if base else None)
    if not isinstance(tflops, Mapping) or not tflops or set(tflops) - set(OPERANDS):
        raise ConfigError(f"{where}: tflops must give some of {', '.join(OPERANDS)}")
    shares = given.pop("efficiency", None)
    price = given.pop("price_usd", base.price_usd if base else None)
    device = Device(
        title=str(given.pop("title", base.title if base else "unnamed")),
        memory_gb=number("memory_gb", base.memory_gb if base else None),
        bandwidth_gbs=read,
        tflops={key: _positive(tflops[key], f"{where}: tflops.{key}") for key in tflops},
        cores=int(number("cores", base.cores if base else 0, least=0)),
        link_gbs=number("link_gbs", base.link_gbs if base else 0.0, least=0),
        peer_gbs=number("peer_gbs", base.peer_gbs if base else 0.0, least=0),
        network_gbs=number("network_gbs", base.network_gbs if base else 0.0, least=0),
        price_usd=None if price is None else _positive(price, f"{where}: price_usd"),
        efficiency=_efficiency(shares, base.efficiency if base else efficiency, where),
        sources=given.pop("sources", base.sources if base else {}),
    )
    if given:
        raise ConfigError(f"{where}: unknown field {sorted(given)[0]!r}")
    return device


def _efficiency(shares: Any, base: Efficiency, where: str) -> Efficiency:
    if shares is None:
        return base
    known = {*_SHARES, *_TABLES, "measured"}
    if not isinstance(shares, Mapping) or set(shares) - known:
        raise ConfigError(f"{where}: efficiency is a table of {', '.join(sorted(known))}")
    for name in _SHARES:
        _positive(shares.get(name, 1.0), f"{where}: efficiency.{name}")
    for table in _TABLES:
        if not isinstance(shares.get(table, {}), Mapping):
            raise ConfigError(f"{where}: efficiency.{table} is a table of shares by weight format")
        for name, share in shares.get(table, {}).items():
            _positive(share, f"{where}: efficiency.{table}.{name}")
    return replace(base, **shares)


def _number(
    given: dict[str, Any],
    key: str,
    default: float | None,
    *,
    where: str,
    least: float | None = None,
) -> float:
    value = given.pop(key, default)
    if value is None:
        raise ConfigError(f"{where}: {key} is missing")
    if least is not None and value == least:
        return float(value)
    return _positive(value, f"{where}: {key}")


def _positive(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"{where} is {value!r}, not a number above 0")
    return float(value)


def write_machine(machine: Machine, file: Path) -> None:
    """Write what `read_machine` reads.

    Raises:
        OSError: it cannot be written there.
    """
    lines = [
        f"{key} = {_toml(getattr(machine, key))}"
        for key in ("name", "origin", "disk_gb", "disk_gbs")
    ]
    for section, devices in (("nodes", machine.nodes), ("gpus", machine.gpus)):
        for device in devices:
            lines += ["", f"[[{section}]]", *_device_lines(device)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", "utf-8")


def _device_lines(device: Device) -> list[str]:
    efficiency = device.efficiency
    values: dict[str, Any] = {
        "title": device.title,
        "memory_gb": device.memory_gb,
        "bandwidth_gbs": device.bandwidth_gbs,
        "cores": device.cores,
        "link_gbs": device.link_gbs,
        "peer_gbs": device.peer_gbs,
        "network_gbs": device.network_gbs,
        "price_usd": device.price_usd,
        "tflops": device.tflops,
        "efficiency": {
            name: getattr(efficiency, name) for name in (*_TABLES, *_SHARES, "measured")
        },
        "sources": device.sources,
    }
    return [f"{key} = {_toml(value)}" for key, value in values.items() if value is not None]


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_toml(key)} = {_toml(one)}" for key, one in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, str):
        # A basic string of TOML is one of JSON, but for DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
