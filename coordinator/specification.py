"""What a user asks for: the job's specification, checked, and what the coordinator makes of it.

Bad input ends in SpecificationError that says which field is wrong and what it may be. Pure.
"""

from __future__ import annotations

import functools
import typing
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from events.errors import DetentError
from events.keys import MAX_NAME_BYTES

FORMAT = 1
MAX_PARALLELISM = 10_000
MAX_TASKS = 100_000
MAX_BODY_BYTES = 1024 * 1024
MAX_STEPS = 1000
MAX_COUNT = 1_000_000
DAY_MS = 86_400_000
MODES = ("BATCH", "STREAMING")

Where = tuple[str | int, ...]


class SpecificationError(DetentError):
    """A specification that can't be run, why, and which part of it: the keys and numbers that lead there."""

    def __init__(self, reason: str, at: Where = ()) -> None:
        super().__init__(reason, at)
        self.reason, self.at = reason, at

    def message(self) -> str:
        return self.reason


def whole(low: int, high: int, says: str) -> Meta:
    """A number with bounds. They are checked here, not by the decoder, which would not say what the number was."""
    return Meta(description=says, extra_json_schema={"minimum": low, "maximum": high})


def said(says: str, **schema: Any) -> Meta:
    return Meta(description=says, extra_json_schema=schema or None)


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all parts of a specification have in common: a field that is not known is an error."""


class CheckpointPolicy(Part, frozen=True):
    """How often the job's progress is made durable."""

    interval_ms: Annotated[int, whole(1, 30 * DAY_MS, "How often a checkpoint is begun.")] = 10_000
    timeout_ms: Annotated[int, whole(1, 30 * DAY_MS, "How long one may take before it is given up.")] = 60_000
    tolerated_failures: Annotated[int, whole(0, MAX_COUNT, "How many may fail in a row before the job fails.")] = 10


class RestartPolicy(Part, frozen=True):
    """What is done when a task fails."""

    retries: Annotated[int, whole(0, MAX_COUNT, "How often the job is restarted within a window.")] = 3
    backoff_ms: Annotated[int, whole(1, 30 * DAY_MS, "The first pause before a restart; it doubles.")] = 1000
    max_backoff_ms: Annotated[int, whole(1, 30 * DAY_MS, "The longest pause before a restart.")] = 60_000
    window_ms: Annotated[int, whole(1, 30 * DAY_MS, "After how long the restarts are counted anew.")] = 600_000


class CommitPolicy(Part, frozen=True):
    """What is done when a checkpoint's output can't be published."""

    retries: Annotated[int, whole(0, MAX_COUNT, "How often it is tried again.")] = 20
    backoff_ms: Annotated[int, whole(1, 30 * DAY_MS, "The first pause before it is tried again; it doubles.")] = 1000
    max_backoff_ms: Annotated[int, whole(1, 30 * DAY_MS, "The longest pause before it is tried again.")] = 60_000


class Environment(Part, frozen=True):
    """How the job runs."""

    mode: Annotated[
        str, said("BATCH ends when its sources do; STREAMING goes on until it is stopped.", enum=list(MODES))
    ] = "BATCH"
    parallelism: Annotated[int, whole(1, MAX_PARALLELISM, "How many tasks share each source.")] = 1
    labels: Annotated[
        dict[str, str], said("The labels that a worker must have to be given its tasks, and what they have staged.")
    ] = {}
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    restart: RestartPolicy = RestartPolicy()
    commit: CommitPolicy = CommitPolicy()
    restart_stalled: Annotated[bool, said("Whether a task that makes no progress is started anew.")] = True
    deploy_timeout_ms: Annotated[int, whole(1, 30 * DAY_MS, "How long a worker may take to start a task.")] = 60_000
    cleanup_delay_ms: Annotated[
        int, whole(0, 3650 * DAY_MS, "How long an ended job stays before its records and staged files are removed.")
    ] = 60_000
    history_ms: Annotated[
        int, whole(0, 3650 * DAY_MS, "How long its summary stays listed, and can be restored from, after that.")
    ] = 7 * DAY_MS


class Step(Part, frozen=True):
    """A source, transform or sink."""

    name: Annotated[str, said("What other steps call it; no two steps have the same.")]
    kind: Annotated[str, said("What it is; the kind says which options it has.")]
    inputs: Annotated[
        list[str], said("The steps that it reads from, by their names; a transform or a sink has at least one.")
    ] = msgspec.field(default=[], name="from")
    parallelism: Annotated[
        int, whole(0, MAX_PARALLELISM, "How many tasks share this source; 0 for as many as env says.")
    ] = 0
    options: Annotated[dict[str, Any], said("The options of its kind.")] = {}


class Specification(Part, frozen=True):
    """A job: what it reads, what becomes of it, where it goes, and how it runs."""

    source: Annotated[list[Step], said("What is read.")]
    sink: Annotated[list[Step], said("Where it goes.")]
    transform: Annotated[list[Step], said("What becomes of it on the way.")] = []
    env: Environment = Environment()


class Plan(msgspec.Struct, frozen=True):
    """What the coordinator needs to know: the tasks of each pipeline, and the policies."""

    env: Environment
    tasks: tuple[int, ...]


# Made here, by whoever imports this, and not by the threads that meet the first bodies (events/structs.py).
READER = msgspec.json.Decoder(Specification)


@functools.lru_cache(maxsize=4096)
def plan(body: str) -> Plan:
    """Check a specification and cut its graph into pipelines. Raises SpecificationError."""
    if len(body.encode()) > MAX_BODY_BYTES:
        raise SpecificationError(f"the specification has more than {MAX_BODY_BYTES:,} bytes")
    try:
        specification = READER.decode(body)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise SpecificationError(f"the specification can't be read: {error}") from error
    except RecursionError as error:
        raise SpecificationError("the specification can't be read: its options are nested too deeply") from error
    _check_environment(specification.env)
    _check_steps(specification)
    return Plan(specification.env, tuple(_pipelines(specification)))


def _check_environment(env: Environment) -> None:
    if env.mode not in MODES:
        raise SpecificationError(f"env.mode is {env.mode!r}; it may be BATCH or STREAMING", ("env", "mode"))
    _check_numbers(env, ("env",))


def _check_numbers(part: Part, at: Where) -> None:
    for name, (low, high) in _bounds(type(part)).items():
        where = (*at, name)
        _between(".".join(map(str, where)), getattr(part, name), low, high, where)
    for name in part.__struct_fields__:
        if isinstance(inner := getattr(part, name), Part):
            _check_numbers(inner, (*at, name))


@functools.cache
def _bounds(part: type[Part]) -> dict[str, tuple[int, int]]:
    """The least and the most that the numbers of a part may be."""
    found = {}
    for field in msgspec.structs.fields(part):
        if typing.get_origin(field.type) is Annotated:
            schema = field.type.__metadata__[0].extra_json_schema or {}
            if "minimum" in schema:
                found[field.name] = (schema["minimum"], schema["maximum"])
    return found


def _between(field: str, value: int, low: int, high: int, at: Where) -> None:
    if not low <= value <= high:
        raise SpecificationError(f"{field} is {value}; it may be {low} to {high}", at)


def _check_steps(specification: Specification) -> None:
    if not specification.source:
        raise SpecificationError("source is empty; a job reads from at least one", ("source",))
    if not specification.sink:
        raise SpecificationError("sink is empty; a job writes to at least one", ("sink",))
    steps = placed_steps(specification)
    if len(steps) > MAX_STEPS:
        raise SpecificationError(f"the job has {len(steps)} steps; it may have {MAX_STEPS}")
    names: set[str] = set()
    for at, step in steps:
        if not 0 < len(step.name.encode(errors="replace")) <= MAX_NAME_BYTES:
            reason = f"the name {step.name[:40]!r}… must have 1 to {MAX_NAME_BYTES} bytes"
            raise SpecificationError(reason, (*at, "name"))
        if step.name in names:
            raise SpecificationError(f"two steps are called {step.name!r}", (*at, "name"))
        names.add(step.name)
        if at[0] == "source":
            what, field = f"the parallelism of source {step.name!r}", (*at, "parallelism")
            _between(what, step.parallelism, 0, MAX_PARALLELISM, field)
            if step.inputs:
                raise SpecificationError(f"source {step.name!r} has `from`; sources have no input", (*at, "from"))
    _check_edges(specification, names)


def placed_steps(specification: Specification) -> list[tuple[Where, Step]]:
    """Every step with where it stands."""
    parts = (("source", specification.source), ("transform", specification.transform), ("sink", specification.sink))
    return [((part, number), step) for part, steps in parts for number, step in enumerate(steps)]


def _check_edges(specification: Specification, names: set[str]) -> None:
    """Every input exists, nothing reads from a sink, and nothing reads, by however many steps, from itself."""
    sinks = {sink.name for sink in specification.sink}
    done = {source.name for source in specification.source}
    for at, step in placed_steps(specification):
        if at[0] == "source":
            continue
        if not step.inputs:
            raise SpecificationError(f"step {step.name!r} has no `from`; name what it reads", at)
        for number, name in enumerate(step.inputs):
            where = (*at, "from", number)
            if name not in names:
                raise SpecificationError(f"step {step.name!r} reads from {name!r}, which is not there", where)
            if name in sinks:
                raise SpecificationError(f"step {step.name!r} reads from the sink {name!r}", where)
    left = list(specification.transform)
    while ready := [step for step in left if done.issuperset(step.inputs)]:
        done |= {step.name for step in ready}
        left = [step for step in left if step.name not in done]
    if left:
        reason = f"the steps {', '.join(step.name for step in left)} read from each other in a cycle"
        raise SpecificationError(reason, ("transform", specification.transform.index(left[0]), "from"))


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
    for number, source in enumerate(specification.source):
        if find(source.name) not in roots:
            reason = f"nothing that source {source.name!r} reads reaches a sink"
            raise SpecificationError(reason, ("source", number))
    return list(tasks.values())
