"""The kinds of sources, transforms and sinks that Detent has, with the options of each: what job files are checked
against, and what the job schema and docs/jobs.md are made from. The options themselves are the engines' own."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from workers import lines, trial
from workers.spark import kinds as spark

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
    tables: dict[Role, Mapping[str, spark.Kind]] = {
        "source": spark.SOURCES,
        "transform": spark.TRANSFORMS,
        "sink": spark.SINKS,
    }
    found = [
        *(
            Kind(role, name, "spark", kind.options, _first_sentences(kind.options))
            for role, table in tables.items()
            for name, kind in table.items()
        ),
        Kind("source", trial.KIND, "trial", trial.SourceOptions, "Numbered rows, for trying everything else."),
        Kind("sink", lines.KIND, "trial", lines.SinkOptions, "Rows as lines of text files, for the same."),
    ]
    return {(kind.role, kind.name): kind for kind in found}


def _first_sentences(options: type[msgspec.Struct]) -> str:
    """What the options' struct says of its kind."""
    return " ".join((options.__doc__ or "").split("\n\n")[0].split())


def names(role: str) -> list[str]:
    return sorted(name for of, name in kinds() if of == role)
