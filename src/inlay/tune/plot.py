"""Curves of losses as pictures.

They are drawn by vl-convert, which the reports of `inlay simulate` stand on, too: one wheel without
dependencies, where matplotlib would bring ten.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from inlay.core.errors import ConfigError
from inlay.tune.folders import write_whole

_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_VERSION = "6.4"
_KINDS = {"loss": "training_loss.png", "eval_loss": "training_eval_loss.png"}


def check_plots() -> None:
    """Refuse before hours are lost.

    Raises:
        ConfigError: what draws is not installed; says how to.
    """
    _drawing()


def plot_losses(log: Sequence[Mapping[str, Any]], directory: Path) -> list[Path]:
    """Draw a picture for each kind of loss that the log has at least two of.

    Raises:
        ConfigError: as `check_plots`.
    """
    made = []
    for key, name in _KINDS.items():
        points = [(int(entry["step"]), float(entry[key])) for entry in log if key in entry]
        if len(points) < 2:
            continue
        png = cast(bytes, _drawing().vegalite_to_png(_curve(key, points), _VERSION, scale=2))
        write_whole(directory / name, png)
        made.append(directory / name)
    return made


def smoothed(values: Sequence[float]) -> list[float]:
    """A moving average, which forgets the less the more values there are.

    Source: the weight is LLaMA-Factory's, so that curves can be compared.
    """
    weight = 1.8 * (1 / (1 + math.exp(-0.05 * len(values))) - 0.5)
    last, found = values[0], []
    for value in values:
        last = weight * last + (1 - weight) * value
        found.append(last)
    return found


def _curve(key: str, points: Sequence[tuple[int, float]]) -> dict[str, Any]:
    average = smoothed([loss for _, loss in points])
    rows = [
        {"step": step, "loss": loss, "smoothed": mean}
        for (step, loss), mean in zip(points, average, strict=True)
    ]
    words = key.replace("_", " ")

    def line(field: str, opacity: float) -> dict[str, Any]:
        return {
            "mark": {"type": "line", "opacity": opacity, "color": "#2f6db3"},
            "encoding": {
                "x": {"field": "step", "type": "quantitative", "title": "step"},
                "y": {
                    "field": field,
                    "type": "quantitative",
                    "title": words,
                    "scale": {"zero": False},
                },
            },
        }

    return {
        "$schema": _SCHEMA,
        "title": f"{words} by step, and its moving average",
        "width": 560,
        "height": 320,
        "data": {"values": rows},
        "layer": [line("loss", 0.4), line("smoothed", 1.0)],
    }


def _drawing() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise ConfigError(
            'plot_loss needs vl-convert, which is not installed: pip install "inlay[tune]", or set '
            "plot_loss=false"
        ) from None
    return vl_convert
