"""What commands print: plain lines for people, or one JSON document for programs. Logs go elsewhere (stderr)."""

from __future__ import annotations

import sys
from typing import Annotated, Any, NamedTuple

import msgspec
import typer
from rich.console import Console

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def console() -> Console:
    """For people. A pipe has no width of its own: lines are not cut there."""
    made = Console(highlight=False, soft_wrap=True)
    if not made.is_terminal:
        made.width = 200
    return made


def say(text: str) -> None:
    """A line as it is: nothing in it is markup."""
    Console(highlight=False, markup=False, soft_wrap=True).print(text)


def camel(it: NamedTuple) -> dict[str, Any]:
    """A value as views are said in JSON."""
    return {_camel(name): value for name, value in it._asdict().items()}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def say_json(value: Any) -> None:
    """One document on a line of its own."""
    sys.stdout.write(msgspec.json.encode(value, enc_hook=str).decode() + "\n")
    sys.stdout.flush()
