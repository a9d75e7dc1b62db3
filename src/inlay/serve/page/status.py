"""The live line: what the engine is doing now. Asks only while someone looks."""

import asyncio
from html import escape

from nicegui import ui

from inlay.core.errors import InlayError
from inlay.core.messages import EngineInfo, EngineStats
from inlay.serve.page.talk import stats_of
from inlay.serve.page.widgets import raw
from inlay.serve.service import Service

_BUSY_S, _IDLE_S = 1.0, 3.0


class LiveStatus:
    """A dot with words for the header, and the engine's figures for the footer."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._timer: ui.timer | None = None

    def header(self) -> None:
        """Put the short form here."""
        self._pill = raw("", "status").props("role=status")

    def footer(self) -> None:
        """Put the long form here, and start refreshing."""
        raw(engine_words(self._service.info), "engine")
        self._figures = raw("", "engine figures-live")
        self._timer = ui.timer(_IDLE_S, self.refresh)

    def watch(self, seen: bool) -> None:
        """The page was hidden, or is visible again."""
        if self._timer is not None:
            self._timer.active = seen

    async def refresh(self) -> None:
        """Ask the engine once."""
        try:
            stats = await asyncio.wait_for(stats_of(self._service), timeout=5)
        except (InlayError, TimeoutError):
            stats = None
        if self._pill.is_deleted or self._timer is None:
            return
        if stats is None:
            self._pill.set_content('<i class="gone"></i><span>engine gone</span>')
            return
        busy = stats.running + stats.waiting > 0
        self._timer.interval = _BUSY_S if busy else _IDLE_S
        self._pill.set_content(_pill(stats))
        self._figures.set_content(live_figures(stats))


def _pill(stats: EngineStats) -> str:
    if not stats.running and not stats.waiting:
        return "<i></i><span>idle</span>"
    words = f"{stats.running} running"
    if stats.waiting:
        words += f" · {stats.waiting} waiting"
    return f'<i class="busy"></i><span>{words}</span>'


def live_figures(stats: EngineStats) -> str:
    """Pages, hits of the cache, and experts on a GPU, as HTML."""
    used = stats.pages_total - stats.pages_free - stats.pages_cached
    parts = [
        f'<span title="Pages of the KV cache that running requests use">pages in use '
        f"<b>{used:,}</b> of {stats.pages_total:,}</span>",
        f'<span title="Pages that nobody uses now, kept for prompts that begin the same">kept '
        f"<b>{stats.pages_cached:,}</b></span>",
    ]
    if stats.prefix_query_tokens:
        share = stats.prefix_hit_tokens / stats.prefix_query_tokens
        parts.append(
            f'<span title="Share of all prompt tokens found in the cache">cache hit '
            f"<b>{share:.0%}</b></span>"
        )
    if on_device := stats.expert_activations.get("device"):
        share = on_device / sum(stats.expert_activations.values())
        parts.append(
            f'<span title="Share of the experts chosen while decoding that were on the GPU">'
            f"experts on the GPU <b>{share:.0%}</b></span>"
        )
    return "".join(parts)


def engine_words(info: EngineInfo) -> str:
    """What is served, with what and where, as HTML."""
    size = info.parameters
    shown = f"{size / 1e9:.1f} B" if size >= 1e9 else f"{size / 1e6:.1f} M"
    words = [f"{shown} parameters", info.device, info.isa, f"{info.weight_format} weights"]
    if info.experts:
        words.insert(1, f"{info.moe_layers} MoE layers × {info.experts} experts")
    words += info.placement.split(", ")
    if info.deferred:
        words.append(f"{info.deferred} experts deferred")
    return "".join(f"<span>{escape(word)}</span>" for word in dict.fromkeys(words) if word)
