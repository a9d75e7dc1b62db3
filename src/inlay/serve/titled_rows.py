"""Names and values under a title, as reports in a terminal have them."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_titled_rows(console: Console, title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Write each name beside its value, which is folded where the line ends."""
    console.print(Text(title, style="bold"))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", min_width=12)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(f"  {name}", Text(value))
    console.print(grid)
