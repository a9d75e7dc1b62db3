"""A plan for people; `inlay.serve.plan.record` has it for programs."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from inlay.core.hardware import Device, Machine
from inlay.core.offload import MemoryUse, OperatorSize
from inlay.core.placement import PrefillAt
from inlay.core.roofline import Kind, Operator
from inlay.serve.plan.changes import Change
from inlay.serve.plan.make import MOST_REQUESTS, Bound, Plan, Speed
from inlay.serve.plan.modules import ModuleRow, module_rows
from inlay.serve.plan.record import notes
from inlay.serve.plan.together import Together
from inlay.serve.titled_rows import print_titled_rows

_OPERATORS: dict[Operator, str] = {
    "attention": "attention core",
    "linears": "linears",
    "experts": "routed experts",
}
_RULED_PREFILL: dict[PrefillAt, str] = {
    "device": "experts come to the GPU for each step of a prompt, as the rules say",
    "host": "the processors compute the experts of prompts, too, as the rules say",
}
_DEVICES: dict[Kind, str] = {"cpu": "processors", "gpu": "GPU"}


def print_plan(console: Console, plan: Plan, changes: list[Change]) -> None:
    """Write the plan for people."""
    print_titled_rows(console, "Model", _model(plan))
    print_titled_rows(console, "Machine", _machine(plan))
    _print_table(
        console,
        "Operators, in the order in which they leave the GPU: least work per byte held first",
        ("", "elements", "held", "work", "/read", "/held", "where"),
        [_operator(plan, size) for size in reversed(plan.operators)],
    )
    if plan.rules is not None:
        _print_table(
            console,
            "Modules, as the rules place them",
            ("module", "prefill", "decode", "operator", "by"),
            [_module(row) for row in module_rows(plan.rules)],
            texts=True,
        )
    _print_table(
        console,
        "Memory (GB)",
        ("device", "weights", "keys, values", "other", "all", "of"),
        [_memory(use) for use in plan.placement.uses],
    )
    _print_table(
        console,
        "Expected speed",
        ("", "tokens", "time", "tokens/s", "roofline", "bound by (of the time)"),
        [
            *(_speed("prefill", speed) for speed in plan.prefill),
            *(_speed("decode", speed) for speed in plan.decode),
        ],
    )
    if plan.together is not None:
        print_titled_rows(console, "GPU and processors", _together(plan, plan.together))
    _print_table(
        console,
        "What would help most",
        ("change", "decode", "prefill"),
        [
            (
                change.what,
                f"{change.decode_tps:.1f}/s ({change.decode_times:.2f}x)",
                f"{change.prefill_tps:.0f}/s ({change.prefill_times:.2f}x)",
            )
            for change in changes
        ]
        or [("none of what was tried", "", "")],
    )
    console.print(Text("Notes", style="bold"))
    for note in notes(plan):
        console.print(Text(f"  {note}"), soft_wrap=True)


def _model(plan: Plan) -> list[tuple[str, str]]:
    shape = plan.model.shape
    formats = plan.formats
    held = f"experts {formats.experts}, " if shape.experts else ""
    return [
        (
            "model",
            f"{plan.model.name} ({shape.architecture}, {plan.model.origin}): "
            f"{shape.parameters / 1e9:.1f} billion parameters, "
            f"{shape.active_parameters / 1e9:.1f} per token",
        ),
        (
            "formats",
            f"{held}attention {formats.attention}, MLPs {formats.mlp}, output {formats.head}, "
            f"keys and values {formats.kv}",
        ),
        (
            "context",
            f"{plan.context_tokens} tokens: {plan.kv_token_bytes / 1e3:.1f} kB each, "
            f"{plan.kv_token_bytes * plan.context_tokens / 1e9:.2f} GB; {_requests(plan)} at once",
        ),
    ]


def _requests(plan: Plan) -> str:
    count = plan.most_requests
    more = "at least " if count == MOST_REQUESTS else "room for "
    return f"{more}{count} request{'s' if count > 1 else ''}"


def _machine(plan: Plan) -> list[tuple[str, str]]:
    machine = plan.machine
    rows = [("machine", plan.origin), ("processors", _device(machine.host))]
    if len(machine.nodes) > 1:
        rows.append(("NUMA nodes", _nodes(plan)))
    if machine.gpu is not None:
        rows.append(("GPU", _device(machine.gpu) + f", link {machine.gpu.link_gbs:g} GB/s"))
    price = _price(machine)
    if price is not None:
        rows.append(("price", f"about ${price:,.0f} (hardware.toml says where each comes from)"))
    return rows


def _nodes(plan: Plan) -> str:
    """How weights are spread over them."""
    count = len(plan.machine.nodes)
    weights = plan.placement.uses[0].weights_bytes / count
    what = "expert and matrix" if plan.model.shape.experts else "matrix"
    return f"{count}: each has its part of every {what} in its memory, {weights / 1e9:.1f} GB"


def _price(machine: Machine) -> float | None:
    prices = [device.price_usd for device in (*machine.nodes, *machine.gpus)]
    return None if None in prices else sum(price or 0 for price in prices)


def _device(device: Device) -> str:
    rates = ", ".join(
        f"{name} {rate:.0f}" if rate >= 100 else f"{name} {rate:.2g}"
        for name, rate in device.tflops.items()
    )
    return (
        f"{device.title}: {device.memory_gb:.0f} GB at {device.bandwidth_gbs:.0f} GB/s; "
        f"TFLOPS {rates}"
    )


def _operator(plan: Plan, size: OperatorSize) -> tuple[str, ...]:
    return (
        _OPERATORS[size.operator],
        f"{size.elements / 1e9:.2f} B",
        f"{size.stored_bytes / 1e9:.1f} GB",
        f"{size.flops / 1e9:.1f} G",
        f"{size.intensity:.1f}",
        f"{size.per_stored_byte:.2f}",
        _where(plan, size.operator),
    )


def _where(plan: Plan, operator: Operator) -> str:
    placement, shape = plan.placement, plan.model.shape
    if not plan.machine.gpus:
        return "processors"
    if operator == "experts":
        if not placement.gpu_experts:
            return "processors"
        if placement.gpu_experts == shape.experts:
            return "GPU"
        return f"{placement.gpu_experts} of {shape.experts} on the GPU"
    if placement.gpu_layers == shape.layers:
        return "GPU"
    return f"{placement.gpu_layers} of {shape.layers} layers on the GPU"


def _module(row: ModuleRow) -> tuple[str, ...]:
    operators = dict.fromkeys((row.prefill.operator, row.decode.operator))
    return row.modules, row.prefill.device, row.decode.device, "; ".join(operators), row.why


def _memory(use: MemoryUse) -> tuple[str, ...]:
    other = use.working_bytes + use.reserve_bytes
    sizes = (use.weights_bytes, use.kv_bytes, other, use.total_bytes)
    return (
        use.name if use.device == "gpu" and use.name else _DEVICES[use.device],
        *(f"{size / 1e9:.2f}" for size in sizes),
        f"{use.capacity_bytes / 1e9:.1f}",
    )


def _speed(what: str, speed: Speed) -> tuple[str, ...]:
    time = f"{speed.seconds:.2f} s" if speed.seconds >= 1 else f"{speed.seconds * 1e3:.1f} ms"
    return (
        what,
        str(speed.tokens) if speed.requests == 1 else f"{speed.requests} x {speed.tokens}",
        time,
        f"{speed.tokens_per_s:.1f}",
        f"{speed.tokens_per_s / speed.roofline_tps:.0%}",
        _bound(speed.bound),
    )


def _bound(bound: Bound) -> str:
    if bound.limit == "link":
        what = "link to the GPU"
    else:
        what = f"{bound.device.upper()} {bound.limit}"
    return f"{what} ({bound.operator} {bound.share:.0%})"


def _together(plan: Plan, found: Together) -> list[tuple[str, str]]:
    per_token = plan.model.shape.experts_per_token
    decode_tps = plan.decode[0].tokens_per_s * found.deferral_times
    deferral = "none: it gains nothing here"
    if found.deferred:
        deferral = (
            f"{found.deferred} of a token's {per_token} experts: decode "
            f"{decode_tps:.1f} tokens/s ({found.deferral_times:.2f}x), processors busy "
            f"{found.host_busy:.0%} of the time, GPU {found.gpu_busy:.0%}"
        )
    streaming = "never: the link is too slow for it"
    if found.stream_tokens is not None:
        streaming = f"experts come to the GPU from {found.stream_tokens} tokens of a step on"
    ruled = _RULED_PREFILL.get(plan.placement.prefill)
    return [("deferral", deferral), ("prefill", ruled or streaming)]


def _print_table(
    console: Console,
    title: str,
    headings: tuple[str, ...],
    rows: list[tuple[str, ...]],
    *,
    texts: bool = False,
) -> None:
    """Columns between the first and the last are numbers, unless all are `texts`."""
    console.print(Text(title, style="bold"))
    table = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=True)
    last = len(headings) - 1
    for index, heading in enumerate(headings):
        numbers = not texts and (0 < index < last or heading in ("of", "prefill"))
        table.add_column(
            heading,
            justify="right" if numbers else "left",
            overflow="fold",
            no_wrap=texts and not index,
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
