"""The compiled classes, or stand-ins that say why there are none."""

from typing import TYPE_CHECKING, Any

from inlay.core.errors import StoreUnavailable
from inlay.core.settings import read_settings

if TYPE_CHECKING:
    from inlay._native import store as native

    Call = native.Call
    Client = native.Client
    Disk = native.Disk
    Link = native.Link
    LocalMaster = native.LocalMaster
    MasterServer = native.MasterServer
    Node = native.Node
    View = native.View
    changes = native.changes
    drain = native.drain
    explain = native.explain
    keys = native.keys
    local_link = native.local_link
    remote_link = native.remote_link
    set_addresses = native.set_addresses
    start_ask = native.start_ask
    start_get = native.start_get
    start_put = native.start_put
    start_stat = native.start_stat
    start_view = native.start_view
    survey = native.survey
else:

    def _missing(name: str, problem: str) -> type:
        def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
            raise StoreUnavailable(f"{name} needs the compiled extension: {problem}")

        return type(name, (), {"__init__": refuse, "__doc__": f"Not there: {problem}."})

    _NAMES = (
        "Call", "Client", "Disk", "Link", "LocalMaster", "MasterServer", "Node", "View", "changes",
        "drain", "explain", "keys", "local_link", "remote_link", "set_addresses", "start_ask",
        "start_get", "start_put", "start_stat", "start_view", "survey",
    )  # fmt: skip
    try:
        if not read_settings().native:
            raise ImportError("switched off by INLAY_NATIVE=0")
        from inlay import _native
    except ImportError as error:
        globals().update({name: _missing(name, str(error)) for name in _NAMES})
    else:
        globals().update({name: getattr(_native.store, name) for name in _NAMES})
