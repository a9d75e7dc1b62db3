"""The chat page at `/`: a window on one engine, for people who have just started it.

Talks to `Service` in the server's process. Everything it shows comes from the server itself; it
loads nothing from outside. `app` mounts it, `view` is the page, `thread` one turn; `conversation`,
`figures`, `inside`, `markdown`, `notices` and `prompts` are plain data and text.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI

    from inlay.serve.config import ServeConfig
    from inlay.serve.dashboard.source import StatusSource
    from inlay.serve.service import Service

__all__ = ["mount_page"]


def mount_page(
    app: "FastAPI", service: "Service", config: "ServeConfig", status: "StatusSource"
) -> None:
    """Put the chat page at `/` of `app`, the dashboard at `/dashboard`; call it after all routes.

    Cost: imports NiceGUI, about half a second; import `page.app` while the engine loads.
    """
    from inlay.serve.page.app import mount

    mount(app, service, config, status)
