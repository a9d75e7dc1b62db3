"""The Grafana dashboard asks only for metrics and labels that there are."""

import json
import re
from pathlib import Path
from typing import Any

from inlay.core import cluster_metrics, metrics
from inlay.core.metrics import Metric

FILE = Path(__file__).parents[3] / "examples" / "grafana" / "inlay-cluster.json"
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
METRICS = {
    metric.name + suffix: metric
    for module in (metrics, cluster_metrics)
    for metric in vars(module).values()
    if isinstance(metric, Metric) and metric.kind != "info"
    for suffix in SUFFIXES[metric.kind]
}


def panels() -> list[dict[str, Any]]:
    document = json.loads(FILE.read_text())
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def test_every_expression_asks_for_what_there_is() -> None:
    expressions = [target["expr"] for panel in panels() for target in panel["targets"]]
    assert len(expressions) > 25
    for expression in expressions:
        names = re.findall(r"\b(inlay_\w+)", expression)
        assert names, expression
        labels = {"le"} if "_bucket" in expression else set()
        for name in names:
            assert name in METRICS, f"{name} in {expression}"
            labels |= set(METRICS[name].labels)
            if METRICS[name].kind == "counter":
                assert re.search(rf"(rate|increase)\({name}", expression), expression
        grouped = re.findall(r"\bby \(([^)]*)\)", expression)
        asked = {label.strip() for group in grouped for label in group.split(",")}
        asked |= set(re.findall(r'(\w+)=~?"', expression))
        assert asked <= labels, f"{asked - labels} in {expression}"


def test_legends_name_labels_that_are_left() -> None:
    for panel in panels():
        for target in panel["targets"]:
            wanted = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            kept = re.search(r"\bby \(([^)]*)\)", target["expr"])
            have = {label.strip() for label in kept[1].split(",")} if kept else set()
            assert wanted <= have, (panel["title"], target)


def test_panels_say_what_they_show_and_lie_side_by_side() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in json.loads(FILE.read_text())["panels"]]
    assert len(set(numbers)) == len(numbers)
