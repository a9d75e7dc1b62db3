"""The doctor's report: stable JSON for machines, tables for people."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from inlay.core.units import format_bytes
from inlay.serve.doctor.advice import Facts, Finding, Plan
from inlay.serve.doctor.store import StoreRoom
from inlay.serve.titled_rows import print_titled_rows

# Raised when a field changes its meaning or goes; new fields do not raise it.
SCHEMA = 2

_STYLES = {"problem": "bold red", "warning": "yellow", "note": "cyan"}


def as_dict(facts: Facts, plan: Plan, findings: list[Finding]) -> dict[str, Any]:
    """The whole report. Sizes are bytes, bandwidths 10^9 bytes/s, what is unknown is null."""
    return {
        "schema": SCHEMA,
        "software": asdict(facts.software),
        "cpu": asdict(facts.cpu),
        "kernels": asdict(facts.kernels),
        "memory": asdict(facts.memory),
        "bandwidth": asdict(facts.bandwidth) if facts.bandwidth else None,
        "gpu": asdict(facts.gpus),
        "disk": asdict(facts.disk),
        "transports": [asdict(transport) for transport in facts.transports],
        "store": asdict(facts.store) if facts.store else None,
        "weights": asdict(facts.weights) if facts.weights else None,
        "plan": asdict(plan),
        "findings": [asdict(finding) for finding in findings],
    }


def print_report(console: Console, facts: Facts, plan: Plan, findings: list[Finding]) -> None:
    """Write the report for people."""
    for title, rows in (
        ("Machine", _machine(facts)),
        ("Software", _software(facts)),
        ("Transfers", _transports(facts)),
        ("Inlay will use", _plan(plan)),
    ):
        print_titled_rows(console, title, rows)
    if facts.kernels.variants:
        console.print(Text("Kernels", style="bold"))
        console.print(_kernels(facts))
    console.print(Text("Findings", style="bold"))
    for finding in findings:
        _print_finding(console, finding)
    if not any(finding.level != "note" for finding in findings):
        console.print(Text("  nothing holds Inlay back here", style="green"))


def _print_finding(console: Console, finding: Finding) -> None:
    line = Text("  ")
    line.append(f"{finding.level}: ", style=_STYLES[finding.level])
    line.append(f"{finding.topic}: {finding.message}")
    console.print(line, soft_wrap=True)
    if finding.fix:
        console.print(Text(f"    fix: {finding.fix}", style="green"), soft_wrap=True)


def _machine(facts: Facts) -> list[tuple[str, str]]:
    cpu, memory, disk = facts.cpu, facts.memory, facts.disk
    quota = "" if cpu.quota_cores is None else f", quota {cpu.quota_cores:g}"
    caches = [
        f"{name} {format_bytes(size)}"
        for name, size in (("L2", cpu.l2_bytes), ("L3", cpu.l3_bytes))
        if size
    ]
    rows = [
        ("cpu", f"{cpu.model} ({cpu.architecture})"),
        (
            "cores",
            f"{cpu.usable_cores} usable: {cpu.affinity_cores} of {cpu.cores_online} processors by "
            f"affinity{quota}" + (f"; {', '.join(caches)}" if caches else ""),
        ),
        ("features", " ".join(cpu.features) or "none that kernels use"),
        (
            "memory",
            f"{format_bytes(memory.available_bytes)} available of "
            f"{format_bytes(memory.total_bytes)}"
            + ("" if memory.limit_bytes is None else f", limit {format_bytes(memory.limit_bytes)}"),
        ),
        ("huge pages", _huge_pages(facts)),
    ]
    for node in memory.numa_nodes:
        total = format_bytes(node.total_bytes) if node.total_bytes is not None else "?"
        free = format_bytes(node.free_bytes) if node.free_bytes is not None else "?"
        rows.append((f"numa {node.node}", f"cpus {node.cpus}, {free} free of {total}"))
    rows.append(("bandwidth", _bandwidth(facts)))
    for gpu in facts.gpus.devices:
        rows.append(
            (
                "gpu",
                f"{gpu.name}, {format_bytes(gpu.memory_free_bytes)} free of "
                f"{format_bytes(gpu.memory_total_bytes)}, compute {gpu.compute_capability}, "
                f"driver {gpu.driver}",
            )
        )
    if not facts.gpus.devices:
        rows.append(("gpu", "none"))
    speed = (
        f"; write {disk.write_gbs:.2f}, read {disk.read_gbs:.2f} GB/s"
        if disk.write_gbs is not None and disk.read_gbs is not None
        else ""
    )
    rows.append(
        (
            "disk",
            f"{format_bytes(disk.free_bytes)} free of {format_bytes(disk.total_bytes)}"
            f"{f' ({disk.filesystem})' if disk.filesystem else ''} at {disk.cache_dir}{speed}",
        )
    )
    if facts.store is not None and facts.store.problem is None:
        rows.append(("store", _store(facts.store)))
    weights = facts.weights
    if weights is not None and weights.problem is None:
        rows.append(
            (
                "weights",
                f"{weights.file} fits its checksums ({format_bytes(weights.size_bytes)} read in "
                f"{weights.seconds:.1f} s)",
            )
        )
    return rows


def _transports(facts: Facts) -> list[tuple[str, str]]:
    rows = []
    for transport in facts.transports:
        state = transport.problem or "works"
        found = f" (found: {', '.join(transport.ports)})" if transport.ports else ""
        lacks = f", but {transport.lacks}" if transport.lacks and not transport.problem else ""
        rows.append((transport.name, state + found + lacks))
    return rows or [("none", "needs the compiled extension")]


def _huge_pages(facts: Facts) -> str:
    memory = facts.memory
    transparent = memory.transparent_huge_pages or "unknown"
    return (
        f"transparent: {transparent}; reserved: {memory.huge_pages_free} free of "
        f"{memory.huge_pages_total} x {format_bytes(memory.huge_page_bytes)}"
    )


def _store(room: StoreRoom) -> str:
    held = f", {format_bytes(room.left_bytes)} held by nodes" if room.left_bytes else ""
    return (
        f"{format_bytes(room.free_bytes)} free of {format_bytes(room.total_bytes)} for nodes at "
        f"{room.directory}{held}; huge pages of shared memory: {room.huge_pages or 'unknown'}"
    )


def _bandwidth(facts: Facts) -> str:
    measured = facts.bandwidth
    if measured is None:
        return "not measured"
    return (
        f"read {measured.read_gbs:.1f} GB/s with {measured.threads} threads, "
        f"{measured.read_one_core_gbs:.1f} GB/s with one"
    )


def _software(facts: Facts) -> list[tuple[str, str]]:
    software = facts.software
    shown = ("torch", "numpy", "tokenizers", "safetensors", "fastapi", "pyzmq", "llguidance")
    packages = ", ".join(f"{name} {software.packages.get(name) or 'missing'}" for name in shown)
    cuda = f" for CUDA {software.torch_cuda}" if software.torch_cuda else ""
    return [
        ("inlay", f"{software.inlay} on Python {software.python}, {software.kernel}"),
        ("packages", packages.replace(",", f"{cuda},", 1)),
    ]


def _kernels(facts: Facts) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim", pad_edge=True)
    for heading in ("variant", "integers", "bf16", "fp32", "here"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "variant")
    for variant in facts.kernels.variants:
        if variant.name == facts.kernels.selected:
            here = Text("selected", style="green")
        else:
            here = Text(variant.problem or "available")
        table.add_row(
            variant.name, variant.integer_products, variant.bf16_products, variant.fp32, here
        )
    return table


def _plan(plan: Plan) -> list[tuple[str, str]]:
    rows = [
        ("device", f"{plan.device} ({plan.device_name})"),
        ("kernels", plan.kernels),
        (
            "threads",
            str(plan.threads)
            + (f", spread over {plan.nodes} NUMA nodes" if plan.nodes > 1 else ""),
        ),
        (
            "memory",
            f"up to {format_bytes(plan.memory_bytes)}: bf16 models of up to about "
            f"{plan.largest_bf16_parameters / 1e9:.1f} billion parameters"
            + (", larger ones with the CPU beside it" if plan.device == "cuda" else ""),
        ),
    ]
    if plan.decode_ceiling_tps is not None:
        rows.append(
            (
                "ceiling",
                f"{plan.decode_ceiling_tps:.1f} tokens/s per stream for each 10^9 active bf16 "
                "parameters (memory bandwidth alone)",
            )
        )
    return rows
