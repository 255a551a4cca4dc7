"""Tables and pairs on a terminal, with colours; through a pipe the same as plain text, every column as wide as it
needs to be, so that it can be read by people and cut by tools."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from detent.output import console, say

COLOURS = {
    **dict.fromkeys(("RUNNING", "FINISHED", "HEALTHY", "HEARD", "LEADING", "COMMITTED", "ACCEPTED"), "green"),
    **dict.fromkeys(("FAILED", "FAILING", "UNHEALTHY", "LOST", "ABANDONED", "REFUSED", "VACANT", "SILENT"), "red"),
    **dict.fromkeys(("WAITING", "CANCELED", "CANCELLING", "ABORTED", "DRAINING", "PAUSED", "SUSPENDED"), "yellow"),
    **dict.fromkeys(("CREATED", "SCHEDULED", "DEPLOYING", "TRIGGERED", "COMPLETED", "READY_TO_CLOSE"), "cyan"),
}
RIGHT = frozenset({"rows", "rows/s", "size", "took", "offset", "epoch", "attempt", "slots", "id", "tries", "age",
                   "checkpoint", "since last", "restarts", "tasks"})  # fmt: skip


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], on: Console | None = None) -> None:
    """Columns that are empty in every row are left out."""
    kept = [i for i in range(len(columns)) if any(row[i] for row in rows)] if rows else list(range(len(columns)))
    columns, rows = [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]
    screen = on or console()
    if not screen.is_terminal:
        _plain(columns, rows)
        return
    drawn = Table(box=None, pad_edge=False, header_style="bold dim", padding=(0, 2, 0, 0))
    for name in columns:
        last = name == columns[-1]
        drawn.add_column(name.upper(), justify="right" if name in RIGHT else "left", overflow="fold", no_wrap=not last)
    for row in rows:
        drawn.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in row))
    screen.print(drawn, soft_wrap=False)


def _plain(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [[name.upper() for name in columns], *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = [
            cell.rjust(width) if name in RIGHT else cell.ljust(width)
            for name, cell, width in zip(columns, line, widths, strict=True)
        ]
        say("  ".join(cells).rstrip())


def pairs(found: Sequence[tuple[str, str]]) -> None:
    """Names and values below each other; those without a value are left out."""
    known = [(name, value) for name, value in found if value]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        say(f"  {name.ljust(width)}  {value}")


def number(value: float) -> str:
    return f"{value:,.0f}"


def size(count: int | None) -> str:
    """Bytes, as people say them."""
    if count is None:
        return ""
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
