"""The compiled classes, or the references where there is no extension that has them."""

from typing import TYPE_CHECKING

from inlay.core.settings import read_settings

if TYPE_CHECKING:
    from inlay._native import cluster as native

    PrefixIndex = native.PrefixIndex
    SeenPrompts = native.SeenPrompts
    State = native.State
    Timing = native.Timing
else:
    try:
        if not read_settings().native:
            raise ImportError("switched off by INLAY_NATIVE=0")
        from inlay._native import cluster
    except ImportError:
        from inlay.cluster._reference import PrefixIndex
        from inlay.cluster._reference_seen import SeenPrompts
        from inlay.cluster._reference_state import State
        from inlay.cluster._reference_timing import Timing
    else:
        PrefixIndex = cluster.PrefixIndex
        SeenPrompts = cluster.SeenPrompts
        State = cluster.State
        Timing = cluster.Timing
