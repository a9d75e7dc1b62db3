"""The dashboard of one visitor: what is where on the page, and when it is drawn again."""

import logging
from collections.abc import Callable

from nicegui import ui

from inlay.cluster.status import ClusterStatus
from inlay.serve.dashboard.decisions import decisions, explanation
from inlay.serve.dashboard.instances import instances
from inlay.serve.dashboard.overview import charts, classes, tiles
from inlay.serve.dashboard.pool import paths, pool, refusals
from inlay.serve.dashboard.source import StatusSource
from inlay.serve.page.widgets import LOGO, box, button, raw, text

_REFRESH_S = 1.0
_log = logging.getLogger(__name__)

_PICK = (
    "(e) => { const row = e.target.closest('[data-request]'); if (row) emit(row.dataset.request); }"
)


class DashboardPage:
    """Draws what has changed each second, while the tab is looked at."""

    def __init__(self, source: StatusSource, model: str) -> None:
        self._source = source
        self._model = model
        self._parts: list[tuple[ui.html, Callable[[ClusterStatus], str], str]] = []
        self._picked: str | None = None
        self._held = False
        self._listed: ClusterStatus | None = None  # what the list of decisions shows
        self._failed = False

    async def build(self) -> None:
        """Draw the page into the current client."""
        status = await self._source.take()
        with box("shell dashboard"):
            self._header(status)
            with box("board"):
                self._part(tiles, "tiles")
                with _panel("Instances", "wide"):
                    self._part(instances, "scroll")
                self._part(charts, "charts")
                with _panel("Objectives", "wide"):
                    self._part(classes, "scroll")
                with box("halves"):
                    with _panel("KV pool"):
                        self._part(pool)
                    with box("stack"):
                        with _panel("Paths of KV between instances"):
                            self._part(paths, "scroll")
                        with _panel("Refused requests"):
                            self._part(refusals)
                with box("halves"):
                    with _panel(
                        "Decisions", note="click one to see why; they hold still under the pointer"
                    ):
                        self._list = self._part(self._decisions, "scroll")
                    with _panel("Why this instance"):
                        self._why = raw(
                            '<p class="empty">Click a decision: what it compared is shown here.'
                            "</p>",
                            "why scroll",
                        ).props("role=status")
        self._listen()
        self._draw(status)
        self._timer = ui.timer(_REFRESH_S, self._refresh)
        ui.on("visible", lambda event: self._watch(bool(event.args)))
        ui.context.client.run_javascript('if (document.hidden) emitEvent("visible", false)')

    def _header(self, status: ClusterStatus) -> None:
        with box(tag="header"):
            raw(f"{LOGO}<b>Inlay</b>", "brand")
            text(self._model, "model")
            text(_what(status), "model")
            box("spring")
            self._pulse = raw("", "status").props("role=status")
            raw('<a class="ghost" href="/">Chat</a>')
            button(
                "",
                symbol="theme",
                classes="ghost",
                hint="Light or dark",
                js="() => inlay.toggleDark()",
            )

    def _part(self, draw: Callable[[ClusterStatus], str], classes: str = "") -> ui.html:
        element = raw("", classes)
        self._parts.append((element, draw, ""))
        return element

    def _decisions(self, status: ClusterStatus) -> str:
        self._listed = status
        return decisions(status, self._picked)

    def _listen(self) -> None:
        """Rows hold still under a pointer and while one has the focus."""
        self._list.on("click", self._pick, js_handler=_PICK)
        for event, held in (
            ("mouseenter", True),
            ("mouseleave", False),
            ("focusin", True),
            ("focusout", False),
        ):
            self._list.on(event, lambda held=held: self._hold(held), args=[])

    def _hold(self, held: bool) -> None:
        self._held = held

    def _pick(self, event: object) -> None:
        self._picked = str(getattr(event, "args", ""))
        status = self._listed
        if status is not None:
            entry = self._source.decision(self._picked)
            self._why.set_content(explanation(entry, status.page_tokens))
            self._list.set_content(self._decisions(status))

    def _watch(self, seen: bool) -> None:
        """The page was hidden, or is visible again."""
        self._timer.active = seen

    async def _refresh(self) -> None:
        try:
            status = await self._source.take()
        except Exception:
            if not self._failed:
                _log.exception("the dashboard failed while it took the status")
            self._failed = True
            self._pulse.set_content('<i class="gone"></i><span>no status: see the log</span>')
            return
        self._failed = False
        if not self._pulse.is_deleted:
            self._draw(status)

    def _draw(self, status: ClusterStatus) -> None:
        ready = sum(one.state == "ready" for one in status.instances)
        of = f"{ready} of {len(status.instances)} instances ready"
        mood = "busy" if ready == len(status.instances) and ready else "gone"
        self._pulse.set_content(f'<i class="{mood}"></i><span>{of}</span>')
        for at, (element, draw, shown) in enumerate(self._parts):
            if element is self._list and self._held:
                continue
            html = draw(status)
            if html != shown:
                element.set_content(html)
                self._parts[at] = element, draw, html


def _panel(title: str, classes: str = "", note: str = "") -> ui.element:
    panel = box(f"panel {classes}", tag="section")
    with panel:
        raw(f"{title} <small>{note}</small>", tag="h2")
    return panel


def _what(status: ClusterStatus) -> str:
    return "one engine" if status.server == "engine" else f"policy {status.policy}"
