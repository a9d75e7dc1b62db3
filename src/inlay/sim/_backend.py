"""The compiled world and links, or stand-ins that say why there are none."""

from typing import TYPE_CHECKING, Any

from inlay.core.errors import InlayError
from inlay.core.settings import read_settings

if TYPE_CHECKING:
    from inlay._native import sim as native

    World = native.World
    run_rails = native.run_rails
else:

    class _Missing:
        problem = ""

        def __init__(self, **kwargs: Any) -> None:
            raise InlayError(f"the simulator needs the compiled extension: {self.problem}")

    try:
        if not read_settings().native:
            raise ImportError("switched off by INLAY_NATIVE=0")
        from inlay._native import sim
    except ImportError as error:
        _Missing.problem = str(error)
        World = run_rails = _Missing
    else:
        World = sim.World
        run_rails = sim.run_rails
