"""The kinds of sources, transforms and sinks that Detent has, with the options of each: what job files are checked
against, and what the job schema and docs/jobs.md are made from. The options themselves are the engines' own."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from workers import lines, trial

Role = Literal["source", "transform", "sink"]
ROLES: tuple[Role, ...] = ("source", "transform", "sink")


class Kind(NamedTuple):
    """One kind, which engine has it, and the struct of its options."""

    role: Role
    name: str
    engine: str
    options: type[msgspec.Struct]
    says: str


@functools.cache
def kinds() -> Mapping[tuple[str, str], Kind]:
    """All kinds, by role and name."""
    found = [
        Kind("source", trial.KIND, "trial", trial.SourceOptions, "Numbered rows, for trying everything else."),
        Kind("sink", lines.KIND, "trial", lines.SinkOptions, "Rows as lines of text files, for the same."),
    ]
    return {(kind.role, kind.name): kind for kind in found}


def names(role: str) -> list[str]:
    return sorted(name for of, name in kinds() if of == role)
