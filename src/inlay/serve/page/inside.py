"""What happened inside, as HTML and SVG: the timeline, the pages, the experts.

Strings in, strings out; colours come from the style sheet by class name.

Shapes: L MoE layers, E experts.
"""

from html import escape

from inlay.core.messages import RequestTrace
from inlay.serve.page.conversation import Answer
from inlay.serve.page.figures import Phases, phases, seconds

_LEVELS = 9  # shades of the heat map; 0 is "never chosen"
_TITLED_CELLS = 1200  # above this, cells carry no title: the page stays light
_PHASES = (
    ("queued", "waiting for a place in the batch"),
    ("prefill", "reading the prompt, until the first token"),
    ("decode", "writing the tokens after the first"),
)


def inside(answer: Answer, page_tokens: int) -> str:
    """The whole panel; what is not known is left out."""
    spans, trace = phases(answer), answer.trace
    parts = []
    if spans is not None:
        parts.append(_section("Timeline", f"{seconds(spans.total_s)} in all", timeline(spans)))
    if trace is not None:
        note = f"pages of {page_tokens} tokens"
        parts.append(_section("Pages of the KV cache", note, pages(trace)))
        if trace.expert_counts_LE:
            parts.append(_experts_section(trace.expert_counts_LE))
    return "".join(parts)


def _experts_section(counts_LE: list[list[int]]) -> str:
    layers, experts = len(counts_LE), len(counts_LE[0])
    return _section(
        "Experts",
        f"how often the computed tokens chose each, {layers} layers × {experts} experts",
        heat_map(counts_LE),
    )


def _section(title: str, note: str, body: str) -> str:
    return f"<section><h4>{escape(title)} <small>{escape(note)}</small></h4>{body}</section>"


def timeline(spans: Phases) -> str:
    """A bar divided by time, with a legend in ms. Every phase stays visible, however short."""
    lengths = (spans.queued_s, spans.prefill_s, spans.decode_s)
    total_s = max(spans.total_s, 1e-9)
    bar, legend = [], []
    for (name, meaning), length_s in zip(_PHASES, lengths, strict=True):
        bar.append(f'<i class="{name}" style="flex-grow:{length_s / total_s * 1000:.3f}"></i>')
        legend.append(
            f'<li title="{meaning}"><i class="{name}"></i>{name} <b>{seconds(length_s)}</b></li>'
        )
    label = ", ".join(
        f"{name} {seconds(length_s)}" for (name, _), length_s in zip(_PHASES, lengths, strict=True)
    )
    return (
        f'<div class="timeline" role="img" aria-label="{label}">{"".join(bar)}</div>'
        f'<ul class="legend">{"".join(legend)}</ul>'
    )


def pages(trace: RequestTrace) -> str:
    """One square per page: those found in the cache, then those filled by this request."""
    used, reused = max(trace.pages_used, trace.pages_reused), trace.pages_reused
    shown = min(used, 400)
    shown_reused = min(reused, shown)
    squares = '<i class="reused"></i>' * shown_reused + "<i></i>" * (shown - shown_reused)
    more = f"<span>and {used - shown:,} more</span>" if used > shown else ""
    return (
        f'<div class="pages" aria-hidden="true">{squares}{more}</div>'
        f'<ul class="legend"><li><i class="reused"></i>reused <b>{reused:,}</b></li>'
        f'<li><i class="new"></i>new <b>{used - reused:,}</b></li>'
        '<li title="How often its pages went to other requests, and it had to start over">'
        f"preemptions <b>{trace.preemptions}</b></li></ul>"
    )


def heat_map(counts_LE: list[list[int]]) -> str:
    """Layers down, experts across; the darker, the more often chosen."""
    layers, experts = len(counts_LE), len(counts_LE[0])
    top = max(1, max(max(row) for row in counts_LE))
    gap = 0.12 if experts <= 32 else 0.06
    edge = max(0.8, experts / 32)  # room for the numbers of rows and columns
    cells: list[list[str]] = [[] for _ in range(_LEVELS + 1)]
    titled = layers * experts <= _TITLED_CELLS
    for layer, row in enumerate(counts_LE):
        total = max(1, sum(row))
        for expert, count in enumerate(row):
            level = -(-count * _LEVELS // top)  # rounded up: once is more than never
            if titled:
                title = (
                    f"layer {layer}, expert {expert}: chosen {count:,}× ({count / total:.1%} "
                    "of this layer)"
                )
                cells[level].append(
                    f'<rect x="{expert + gap / 2:g}" y="{layer + gap / 2:g}" '
                    f'width="{1 - gap:g}" height="{1 - gap:g}" rx=".14"><title>{title}</title>'
                    "</rect>"
                )
            else:
                side = f"{1 - gap:g}"
                cells[level].append(f"M{expert} {layer}h{side}v{side}h-{side}z")
    groups = []
    for level, marks in enumerate(cells):
        if marks:
            drawn = "".join(marks) if titled else f'<path d="{"".join(marks)}"/>'
            groups.append(f'<g class="heat{level}">{drawn}</g>')
    scale = "".join(f'<i class="heat{level}"></i>' for level in range(_LEVELS + 1))
    return (
        f'<svg class="heat" viewBox="{-edge:g} {-edge:g} {experts + edge:g} {layers + edge:g}" '
        f'role="img" style="max-width:{min(100, max(28, experts * 2.6)):g}em" '
        f'aria-label="Heat map of {layers} layers by {experts} experts; the most used cell was '
        f'chosen {top} times">{_axes(layers, experts, edge)}{"".join(groups)}</svg>'
        f'<ul class="legend scale"><li>never <span>{scale}</span> {top:,}×</li>'
        "<li>rows are layers, columns are experts</li></ul>"
    )


def _axes(layers: int, experts: int, edge: float) -> str:
    """Numbers beside every row and column, or every eighth of many."""
    size = edge * 0.5
    columns = range(0, experts, 1 if experts <= 32 else 8)
    rows = range(0, layers, 1 if layers <= 32 else 8)
    marks = [f'<text x="{e + 0.5}" y="{-0.35 * edge:g}">{e}</text>' for e in columns]
    marks += [f'<text x="{-0.45 * edge:g}" y="{r + 0.5 + size / 3:g}">{r}</text>' for r in rows]
    return f'<g class="axes" font-size="{size:g}" text-anchor="middle">{"".join(marks)}</g>'
