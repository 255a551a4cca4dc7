"""What all benchmarks share: alternate measuring, medians, a table for people, one JSON object for machines.

A benchmark is a function that returns a Result. Every bar compares two things measured in the same run; the exit code
is 0 if and only if every bar is met.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

Figure = float | int | str


@dataclass(frozen=True)
class Bar:
    """A value that must not pass its bound: at least it (`>=`) or at most it (`<=`)."""

    name: str
    value: float
    relation: str
    bound: float

    @property
    def met(self) -> bool:
        return self.value >= self.bound if self.relation == ">=" else self.value <= self.bound


@dataclass
class Result:
    name: str
    figures: dict[str, Figure] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)

    def as_json(self) -> str:
        bars = [
            {"name": b.name, "value": round(b.value, 4), "relation": b.relation, "bound": b.bound, "met": b.met}
            for b in self.bars
        ]
        figures = {k: round(v, 4) if isinstance(v, float) else v for k, v in self.figures.items()}
        return json.dumps({"name": self.name, "figures": figures, "bars": bars})


def alternate(
    contenders: Mapping[str, Callable[[], float]], *, warmups: int = 1, repetitions: int = 5
) -> dict[str, list[float]]:
    """Measure the contenders in turns, so that whatever the machine does meanwhile hits all of them alike. The order
    is turned round every time. The results of the warm-up are dropped."""
    measured: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(warmups + repetitions):
        for name in names if turn % 2 == 0 else reversed(names):
            progress(f"{'warm-up' if turn < warmups else f'{turn - warmups + 1} of {repetitions}'}: {name}")
            figure = contenders[name]()
            if turn >= warmups:
                measured[name].append(figure)
    progress("")
    return measured


def medians(measured: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in measured.items()}


def ratio(measured: Mapping[str, list[float]], one: str, other: str) -> float:
    """The median of the ratios of neighbouring measurements: steadier than the ratio of medians where the machine's
    speed drifts."""
    return statistics.median(ratios(measured, one, other))


def ratios(measured: Mapping[str, list[float]], one: str, other: str) -> list[float]:
    return [a / b for a, b in zip(measured[one], measured[other], strict=True)]


def progress(text: str) -> None:
    """What is being done, on a terminal only."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def parser(description: str) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    options.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options.add_argument("--repetitions", type=int, default=5, help="measurements per contender; the median counts")
    return options


def report(result: Result, *, as_json: bool) -> int:
    """Print the result; returns the exit code."""
    console = Console()
    table = Table(title=result.name, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    for name, value in result.figures.items():
        table.add_row(name, value if isinstance(value, str) else f"{value:,.3f}" if value < 100 else f"{value:,.0f}")
    table.add_section()
    for bar in result.bars:
        verdict = "[green]met[/]" if bar.met else "[red]MISSED[/]"
        table.add_row(f"{bar.name} {bar.relation} {bar.bound:g}", f"{bar.value:.3f}  {verdict}")
    console.print(table)
    if as_json:
        print(result.as_json())
    return 0 if all(bar.met for bar in result.bars) else 1
