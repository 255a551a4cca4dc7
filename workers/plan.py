"""Which part of a job's specification a task runs: its source, its share of it, and the sinks its rows reach.

Tasks are numbered as the coordinator numbers them: pipelines are the connected parts of the graph, in the order of
their first sources; the tasks of a pipeline are those of its sources, one source after the other. Pure.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import msgspec

from events.errors import DetentError

Options = TypeVar("Options", bound=msgspec.Struct)


class PlanError(DetentError):
    """A specification that no task can be found in."""


class OptionsRefused(DetentError):
    """Options that a step can't have. Trying again is pointless."""


class Step(msgspec.Struct, frozen=True):
    """A source, transform or sink."""

    name: str
    kind: str
    inputs: list[str] = msgspec.field(default=[], name="from")
    parallelism: int = 0
    options: dict[str, Any] = {}


class Environment(msgspec.Struct, frozen=True):
    parallelism: int = 1


class Specification(msgspec.Struct, frozen=True):
    """As much of it as a worker needs; the coordinator has checked the whole."""

    source: list[Step]
    sink: list[Step]
    transform: list[Step] = []
    env: Environment = Environment()


class TaskPlan(msgspec.Struct, frozen=True):
    """What one task does."""

    source: Step
    share: int  # which of the source's tasks it is
    shares: int  # of how many
    transforms: tuple[Step, ...]  # of its pipeline, each after those that it reads from
    sinks: tuple[Step, ...]  # of its pipeline


def options_of(step: Step, kind: type[Options]) -> Options:
    """The step's options, checked. Raises OptionsRefused."""
    try:
        return msgspec.convert(step.options, kind)
    except msgspec.ValidationError as error:
        known = ", ".join(field.name for field in msgspec.structs.fields(kind))
        reason = f"the options of {step.name!r} ({step.kind}) can't be used: {error}. It has the options {known}."
        raise OptionsRefused(reason) from error


@functools.lru_cache(maxsize=256)
def specification_of(body: str) -> Specification:
    try:
        return msgspec.json.decode(body, type=Specification)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise PlanError(f"the job's specification can't be read: {error}") from error


def task_plan(body: str, pipeline: int, task: int) -> TaskPlan:
    """Raises PlanError where there is no such task."""
    specification = specification_of(body)
    parts = pipelines(specification)
    if not 0 <= pipeline < len(parts):
        raise PlanError(f"the job has no pipeline {pipeline}; it has {len(parts)}, numbered from 0")
    names = parts[pipeline]
    first = 0
    for source in specification.source:
        if source.name in names:
            shares = source.parallelism or specification.env.parallelism
            if first <= task < first + shares:
                return TaskPlan(
                    source=source,
                    share=task - first,
                    shares=shares,
                    transforms=tuple(_in_order(specification, names)),
                    sinks=tuple(step for step in specification.sink if step.name in names),
                )
            first += shares
    raise PlanError(f"pipeline {pipeline} has no task {task}; it has {first}, numbered from 0")


def sinks_of(body: str, pipeline: int | None = None) -> list[Step]:
    """The sinks of a pipeline, or of the whole job."""
    specification = specification_of(body)
    if pipeline is None:
        return list(specification.sink)
    parts = pipelines(specification)
    if not 0 <= pipeline < len(parts):
        raise PlanError(f"the job has no pipeline {pipeline}; it has {len(parts)}, numbered from 0")
    return [step for step in specification.sink if step.name in parts[pipeline]]


def pipelines(specification: Specification) -> list[set[str]]:
    """The names of the steps of each connected part, in the order of its first source."""
    parts: dict[str, set[str]] = {step.name: {step.name} for step in _steps(specification)}
    for step in _steps(specification):
        for name in step.inputs:
            if name not in parts:
                raise PlanError(f"step {step.name!r} reads from {name!r}, which is not there")
            if parts[name] is not parts[step.name]:
                parts[step.name] |= parts[name]
                for member in parts[name]:
                    parts[member] = parts[step.name]
    found: list[set[str]] = []
    for source in specification.source:
        if not any(parts[source.name] is known for known in found):
            found.append(parts[source.name])
    return found


def _steps(specification: Specification) -> list[Step]:
    return [*specification.source, *specification.transform, *specification.sink]


def _in_order(specification: Specification, names: set[str]) -> list[Step]:
    done = {source.name for source in specification.source}
    left = [step for step in specification.transform if step.name in names]
    ordered: list[Step] = []
    while ready := [step for step in left if done.issuperset(step.inputs)]:
        ordered += ready
        done |= {step.name for step in ready}
        left = [step for step in left if step.name not in done]
    if left:
        raise PlanError(f"the steps {', '.join(step.name for step in left)} read from each other in a cycle")
    return ordered
