"""What benchmarks of the command line share: points are measured one by one, and then printed."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

Point = TypeVar("Point")  # a dataclass


def print_points(
    points: Iterable[Point],
    columns: Mapping[str, Callable[[Point], str]],
    *,
    status: str,
    about: Mapping[str, object],
    as_json: bool,
) -> None:
    """Take all points; interrupted, print those that are done, and go on with the interrupt.

    Args:
        points: each is measured when it is asked for.
        columns: of the table, by their heads.
        status: shown meanwhile.
        about: stands in front of the points in JSON.
        as_json: instead of a table.
    """
    import json
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table

    from inlay import __version__

    done: list[Point] = []
    try:
        with Console(stderr=True).status(status):
            for point in points:
                done.append(point)  # one by one: an interrupt leaves those that are done
    finally:
        if as_json:
            rows: list[Any] = list(done)
            record = {"version": __version__, **about, "points": [asdict(row) for row in rows]}
            print(json.dumps(record, indent=2))
        elif done:
            table = Table()
            for index, name in enumerate(columns):
                table.add_column(name, justify="right" if index else "left", no_wrap=True)
            for point in done:
                table.add_row(*(text_of(point) for text_of in columns.values()))
            Console().print(table)
