"""Proxies of foreign engines as processes of their own, without a supervisor."""

from pathlib import Path
from typing import Any

from inlay.cluster.control import Member
from inlay.connect.foreign.setup import MODULE
from tests.support.cluster import SECRET, Process


class RunningProxy(Process):
    """A proxy that has bound its socket; it may still wait for its engine.

    Attributes:
        member: as a roster has it.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        model: Path,
        page_tokens: int | None = None,
        run: int = 1,
        **engine: Any,
    ) -> None:
        setup = {
            "instance": {"name": name, "listen": "127.0.0.1:0"},
            "engine": engine,
            "model": str(model),
            "secret": SECRET,
            "page_tokens": page_tokens,
        }
        super().__init__(MODULE, setup, directory / f"{name}.log")
        bound = self.line()
        assert bound["state"] == "bound", bound
        address = bound["address"]
        self.member = Member(name=name, role="both", address=address, run=run, state="ready")

    def wait_ready(self) -> "RunningProxy":
        line = self.line()
        assert line["state"] == "ready", (line, self.log.read_text())
        return self
