"""A job's graph as people see it: its steps, the pipeline that each belongs to, and which tasks read a source.

Tasks are numbered as the coordinator numbers them: pipelines are the connected parts of the graph, in the order of
their first sources; the tasks of a pipeline are those of its sources, one source after the other. Pure.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from coordinator.views import StepView

ROLES = ("source", "transform", "sink")


class Step(msgspec.Struct, frozen=True):
    """As much of a step as is shown."""

    name: str
    kind: str
    inputs: list[str] = msgspec.field(default=[], name="from")
    parallelism: int = 0


class Environment(msgspec.Struct, frozen=True):
    mode: str = "BATCH"
    parallelism: int = 1


class Graph(msgspec.Struct, frozen=True):
    source: list[Step] = []
    transform: list[Step] = []
    sink: list[Step] = []
    env: Environment = Environment()


READER = msgspec.json.Decoder(Graph)


@functools.lru_cache(maxsize=4096)
def mode_of(body: str) -> str:
    """BATCH or STREAMING; empty where the specification is gone or can't be read."""
    known = _read(body)
    return known.env.mode if known else ""


@functools.lru_cache(maxsize=1024)
def graph_of(body: str) -> tuple[StepView, ...]:
    """The steps in the order of the specification; none where it can't be read."""
    known = _read(body)
    if known is None:
        return ()
    steps = [(role, step) for role in ROLES for step in getattr(known, role)]
    part = _parts([step for _, step in steps])
    numbers: dict[str, int] = {}
    for source in known.source:
        numbers.setdefault(part[source.name], len(numbers))
    first: dict[int, int] = {}
    found = []
    for role, step in steps:
        number, tasks = numbers.get(part[step.name], 0), range(0)
        if role == "source":
            begin = first.get(number, 0)
            first[number] = begin + (step.parallelism or known.env.parallelism)
            tasks = range(begin, first[number])
        found.append(
            StepView(
                name=step.name,
                kind=step.kind,
                role=role,
                inputs=tuple(step.inputs),
                pipeline=number,
                tasks=tuple(tasks),
            )
        )
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def sources_of(body: str) -> dict[tuple[int, int], str]:
    """Which source a task reads, by pipeline and task."""
    return {(step.pipeline, task): step.name for step in graph_of(body) for task in step.tasks}


def specification_of(body: str) -> dict[str, Any]:
    """The whole specification, for who wants to see it."""
    try:
        return dict(msgspec.json.decode(body, type=dict[str, Any])) if body else {}
    except msgspec.DecodeError:
        return {}


def _read(body: str) -> Graph | None:
    try:
        return READER.decode(body) if body else None
    except msgspec.DecodeError:
        return None


def _parts(steps: list[Step]) -> dict[str, str]:
    """For each step the name that stands for its connected part."""
    group = {step.name: step.name for step in steps}

    def find(name: str) -> str:
        while group.setdefault(name, name) != name:
            group[name] = group[group[name]]
            name = group[name]
        return name

    for step in steps:
        for name in step.inputs:
            group[find(name)] = find(step.name)
    return {step.name: find(step.name) for step in steps}
