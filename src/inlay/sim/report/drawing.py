"""The one door to what draws.

vl-convert is one wheel without dependencies. It has Vega-Lite for pages, and draws the same plots
as PNG and SVG without a browser, so that a plot is said once for all three.
"""

from types import ModuleType
from typing import cast

from inlay.core.errors import ConfigError
from inlay.sim.report.charts import VERSION, Spec


def find_drawing() -> ModuleType:
    """The module that draws.

    Raises:
        ConfigError: it is not installed; says how to.
    """
    try:
        import vl_convert
    except ImportError:
        raise ConfigError(
            'pages and plots need vl-convert, which is not installed: pip install "inlay[report]"'
        ) from None
    return vl_convert


def script() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, 0.9 MB. Cost: some seconds."""
    return cast(str, find_drawing().javascript_bundle(vl_version=VERSION))


def png(spec: Spec) -> bytes:
    """A plot as a picture, two points of a screen per point."""
    return cast(bytes, find_drawing().vegalite_to_png(spec, vl_version=VERSION, scale=2))


def svg(spec: Spec) -> bytes:
    """A plot as a drawing."""
    return cast(str, find_drawing().vegalite_to_svg(spec, vl_version=VERSION)).encode()
