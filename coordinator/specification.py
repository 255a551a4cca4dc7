"""What a user asks for: the job's specification, checked, and what the coordinator makes of it.

Bad input ends in SpecificationError that says which field is wrong and what it may be. Pure.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from events.errors import DetentError
from events.keys import MAX_NAME_BYTES

FORMAT = 1
MAX_PARALLELISM = 10_000
MAX_TASKS = 100_000
MAX_BODY_BYTES = 1024 * 1024
MAX_STEPS = 1000
DAY_MS = 86_400_000


class SpecificationError(DetentError):
    """A specification that can't be run, and why."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all parts of a specification have in common: a field that is not known is an error."""


class CheckpointPolicy(Part, frozen=True):
    interval_ms: int = 10_000
    timeout_ms: int = 60_000
    tolerated_failures: int = 10


class RestartPolicy(Part, frozen=True):
    retries: int = 3
    backoff_ms: int = 1000
    max_backoff_ms: int = 60_000
    window_ms: int = 600_000


class CommitPolicy(Part, frozen=True):
    retries: int = 20
    backoff_ms: int = 1000
    max_backoff_ms: int = 60_000


class Environment(Part, frozen=True):
    mode: str = "BATCH"
    parallelism: int = 1
    labels: dict[str, str] = {}
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    restart: RestartPolicy = RestartPolicy()
    commit: CommitPolicy = CommitPolicy()
    restart_stalled: bool = True
    deploy_timeout_ms: int = 60_000
    cleanup_delay_ms: int = 60_000
    history_ms: int = 7 * DAY_MS


class Step(Part, frozen=True):
    """A source, transform or sink."""

    name: str
    kind: str
    inputs: list[str] = msgspec.field(default=[], name="from")
    parallelism: int = 0  # of a source; 0: as in env
    options: dict[str, Any] = {}


class Specification(Part, frozen=True):
    source: list[Step]
    sink: list[Step]
    transform: list[Step] = []
    env: Environment = Environment()


class Plan(msgspec.Struct, frozen=True):
    """What the coordinator needs to know: the tasks of each pipeline, and the policies."""

    env: Environment
    tasks: tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def plan(body: str) -> Plan:
    """Check a specification and cut its graph into pipelines. Raises SpecificationError."""
    if len(body.encode()) > MAX_BODY_BYTES:
        raise SpecificationError(f"the specification has more than {MAX_BODY_BYTES:,} bytes")
    try:
        specification = msgspec.json.decode(body, type=Specification)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise SpecificationError(f"the specification can't be read: {error}") from error
    except RecursionError as error:
        raise SpecificationError("the specification can't be read: its options are nested too deeply") from error
    _check_environment(specification.env)
    _check_steps(specification)
    return Plan(specification.env, tuple(_pipelines(specification)))


def _check_environment(env: Environment) -> None:
    if env.mode not in ("BATCH", "STREAMING"):
        raise SpecificationError(f"env.mode is {env.mode!r}; it may be BATCH or STREAMING")
    _between("env.parallelism", env.parallelism, 1, MAX_PARALLELISM)
    _between("env.deploy_timeout_ms", env.deploy_timeout_ms, 1, 30 * DAY_MS)
    for name in ("cleanup_delay_ms", "history_ms"):
        _between(f"env.{name}", getattr(env, name), 0, 3650 * DAY_MS)
    for group, part in (("checkpoint", env.checkpoint), ("restart", env.restart), ("commit", env.commit)):
        for name in part.__struct_fields__:
            count = name in ("retries", "tolerated_failures")
            low, high = (0, 1_000_000) if count else (1, 30 * DAY_MS)
            _between(f"env.{group}.{name}", getattr(part, name), low, high)


def _between(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise SpecificationError(f"{field} is {value}; it may be {low} to {high}")


def _check_steps(specification: Specification) -> None:
    steps = [*specification.source, *specification.transform, *specification.sink]
    if not specification.source:
        raise SpecificationError("source is empty; a job reads from at least one")
    if not specification.sink:
        raise SpecificationError("sink is empty; a job writes to at least one")
    if len(steps) > MAX_STEPS:
        raise SpecificationError(f"the job has {len(steps)} steps; it may have {MAX_STEPS}")
    names: set[str] = set()
    for step in steps:
        if not 0 < len(step.name.encode(errors="replace")) <= MAX_NAME_BYTES:
            raise SpecificationError(f"the name {step.name[:40]!r}… must have 1 to {MAX_NAME_BYTES} bytes")
        if step.name in names:
            raise SpecificationError(f"two steps are called {step.name!r}")
        names.add(step.name)
    for source in specification.source:
        _between(f"the parallelism of source {source.name!r}", source.parallelism, 0, MAX_PARALLELISM)
        if source.inputs:
            raise SpecificationError(f"source {source.name!r} has `from`; sources have no input")
    _check_edges(specification, names)


def _check_edges(specification: Specification, names: set[str]) -> None:
    """Every input exists, nothing reads from a sink, and nothing reads, by however many steps, from itself."""
    sinks = {sink.name for sink in specification.sink}
    done = {source.name for source in specification.source}
    for step in [*specification.transform, *specification.sink]:
        if not step.inputs:
            raise SpecificationError(f"step {step.name!r} has no `from`; name what it reads")
        for name in step.inputs:
            if name not in names:
                raise SpecificationError(f"step {step.name!r} reads from {name!r}, which is not there")
            if name in sinks:
                raise SpecificationError(f"step {step.name!r} reads from the sink {name!r}")
    left = list(specification.transform)
    while ready := [step for step in left if done.issuperset(step.inputs)]:
        done |= {step.name for step in ready}
        left = [step for step in left if step.name not in done]
    if left:
        raise SpecificationError(f"the steps {', '.join(step.name for step in left)} read from each other in a cycle")


def _pipelines(specification: Specification) -> list[int]:
    """The number of tasks of each connected part of the graph, in the order of its first source."""
    group: dict[str, str] = {}

    def find(name: str) -> str:
        while group.setdefault(name, name) != name:
            group[name] = group[group[name]]  # the way is halved, or long chains take seconds
            name = group[name]
        return name

    for step in [*specification.transform, *specification.sink]:
        for name in step.inputs:
            group[find(name)] = find(step.name)
    tasks: dict[str, int] = {}
    for source in specification.source:
        root = find(source.name)
        tasks[root] = tasks.get(root, 0) + (source.parallelism or specification.env.parallelism)
    if sum(tasks.values()) > MAX_TASKS:
        raise SpecificationError(f"the job has {sum(tasks.values()):,} tasks; it may have {MAX_TASKS:,}")
    roots = {find(sink.name) for sink in specification.sink}
    if without := [source.name for source in specification.source if find(source.name) not in roots]:
        raise SpecificationError(f"nothing that source {without[0]!r} reads reaches a sink")
    return list(tasks.values())
