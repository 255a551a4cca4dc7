"""What the coordinator knows: the fold of its shard's events, with the indexes that keep decisions cheap.

`fold` is the only thing that changes hard state, live and in recovery alike. It decides nothing. Soft state (what
workers said in their heartbeats) is kept apart in `heard`: it is not on the log, and a new leader starts without it.

Pure: no broker, no clock, no disk.
"""

from __future__ import annotations

import functools
import heapq
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from coordinator.lifecycle import ACTIVE_TASK
from coordinator.specification import Environment, Plan, plan
from events.keys import Entity, parse, shard_of
from events.records import Cursor, Event, Heartbeat, Specification, Task

TaskId = tuple[str, int, int]
LOGIC = 1  # the version of the decision logic, written into every event


@functools.lru_cache(maxsize=262_144)
def entity_of(text: str) -> Entity:
    return parse(text.encode())


@dataclass(slots=True)
class PipelineView:
    """A pipeline and all that belongs to it."""

    event: Event | None = None
    tasks: dict[int, Event] = field(default_factory=dict)
    ready: dict[int, Event] = field(default_factory=dict)
    acks: dict[int, Event] = field(default_factory=dict)
    pending: Event | None = None
    checkpoint: Event | None = None
    # How many tasks are in each state: so that "all tasks are …" costs the same whatever their number.
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def size(self) -> int:
        return len(self.tasks)

    @property
    def is_empty(self) -> bool:
        one = self.event or self.pending or self.checkpoint
        return one is None and not (self.tasks or self.ready or self.acks)


@dataclass(slots=True)
class JobView:
    """A job and all that belongs to it."""

    event: Event | None = None
    specification: Event | None = None
    cleanups: dict[int, Event] = field(default_factory=dict)  # by the incarnation that owns it
    pipelines: dict[int, PipelineView] = field(default_factory=dict)
    commands: dict[str, Event] = field(default_factory=dict)
    savepoints: dict[str, Event] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        """Of a job whose specification could not be read: the defaults, to end it by."""
        return plan(self.body) if self.body else Plan(Environment(), ())

    @property
    def body(self) -> str:
        known = self.specification.state if self.specification else None
        return known.body if isinstance(known, Specification) else ""

    @property
    def cleanup(self) -> Event | None:
        """The job's own; those of incarnations before it are their own affair."""
        return self.cleanups.get(self.event.incarnation) if self.event else None

    @property
    def is_orphaned(self) -> bool:
        """Parts without the job they belong to. Outcomes and old cleanups stand by themselves."""
        return self.event is None and bool(self.specification or self.pipelines or self.savepoints)

    @property
    def is_empty(self) -> bool:
        one = self.event or self.specification
        return one is None and not (self.cleanups or self.pipelines or self.commands or self.savepoints)


@dataclass(frozen=True, slots=True)
class Heard:
    """What a worker said last, and when the leader heard it."""

    heartbeat: Heartbeat
    at: int


@dataclass
class State:
    """One shard. `epoch` is the reign it was last written in."""

    shard: int
    shards: int = 1  # how many there are
    epoch: int = 0
    sequence: int = 0
    incarnations: int = 0  # the last one given to a job
    logic: int = 0  # the newest version of the decision logic that has written here
    jobs: dict[str, JobView] = field(default_factory=dict)
    summaries: dict[str, dict[int, Event]] = field(default_factory=dict)  # by job and incarnation
    workers: dict[str, Event] = field(default_factory=dict)
    leader: Event | None = None
    cursor: Event | None = None
    # Indexes.
    tasks_on: dict[str, set[TaskId]] = field(default_factory=dict)
    waiting: dict[str, dict[TaskId, None]] = field(default_factory=dict)  # by job, for room on a worker
    timers: list[tuple[int, str]] = field(default_factory=list)
    # Soft state. `writes` is the version of the decision logic that this process runs.
    writes: int = LOGIC
    heard: dict[str, Heard] = field(default_factory=dict)
    led_since: int = 0
    lease_ms: int = 10_000  # how long a worker may be silent before it is given up

    def get(self, entity: Entity) -> Event | None:
        kind, parts = entity.kind, entity.parts
        if kind == "cursor":
            return self.cursor
        if kind == "worker":
            return self.workers.get(parts[0])
        if kind == "leader":
            return self.leader
        if kind == "summary":
            return self.summaries.get(parts[0], {}).get(parts[1])
        job = self.jobs.get(parts[0])
        return None if job is None else _of_job(job, kind, parts)

    def owns(self, job: str) -> bool:
        return shard_of(job, self.shards) == self.shard

    def due(self, now: int, limit: int = 1000) -> list[tuple[int, str]]:
        """The deadlines that have come, oldest first; each is an input. They stay until an event moves them on."""
        found: list[tuple[int, str]] = []
        while self.timers and self.timers[0][0] <= now and len(found) < limit:
            due_at, text = heapq.heappop(self.timers)
            event = self.get(entity_of(text))
            if event is not None and event.due_at == due_at and (due_at, text) not in found:
                found.append((due_at, text))
        for timer in found:
            heapq.heappush(self.timers, timer)
        return found

    def next_due(self) -> int | None:
        while self.timers:
            due_at, text = self.timers[0]
            event = self.get(entity_of(text))
            if event is not None and event.due_at == due_at:
                return due_at
            heapq.heappop(self.timers)  # superseded
        return None


def _of_job(job: JobView, kind: str, parts: tuple[Any, ...]) -> Event | None:
    if kind == "job":
        return job.event
    if kind == "specification":
        return job.specification
    if kind == "cleanup":
        return job.cleanups.get(parts[1])
    if kind == "command":
        return job.commands.get(parts[1])
    if kind == "savepoint":
        return job.savepoints.get(parts[1])
    pipeline = job.pipelines.get(parts[1])
    if pipeline is None:
        return None
    if kind == "pipeline":
        return pipeline.event
    if kind == "pending":
        return pipeline.pending
    if kind == "checkpoint":
        return pipeline.checkpoint
    held = pipeline.tasks if kind == "task" else pipeline.ready if kind == "ready" else pipeline.acks
    return held.get(parts[2])


def fold(state: State, entity: Entity, event: Event | None) -> Event | None:
    """Take over an event, or (None) that the entity is gone. Returns what was known before, so that
    `fold(state, entity, fold(state, entity, event))` changes nothing."""
    kind, parts = entity.kind, entity.parts
    if event is not None:
        _count_up(state, event)
        if event.due_at:
            heapq.heappush(state.timers, (event.due_at, entity.text))
    if kind == "cursor":
        before, state.cursor = state.cursor, event
    elif kind == "worker":
        before = _exchange(state.workers, parts[0], event)
    elif kind == "leader":
        before, state.leader = state.leader, event
    elif kind == "summary":
        of_job = state.summaries.setdefault(parts[0], {})
        before = _exchange(of_job, parts[1], event)
        if not of_job:
            del state.summaries[parts[0]]
    else:
        job = state.jobs.get(parts[0]) or state.jobs.setdefault(parts[0], JobView())
        before = _fold_into_job(job, kind, parts, event)
        if kind == "task":
            _index_task(state, parts, before, event)
        if event is None and job.is_empty:
            del state.jobs[parts[0]]
    return before


def _count_up(state: State, event: Event) -> None:
    """What only grows, over whatever was ever written here."""
    given = event.state.incarnations if type(event.state) is Cursor else event.incarnation
    if event.sequence > state.sequence:
        state.sequence = event.sequence
    if event.epoch > state.epoch:
        state.epoch = event.epoch
    if event.logic > state.logic:
        state.logic = event.logic
    if given > state.incarnations:
        state.incarnations = given


def _fold_into_job(job: JobView, kind: str, parts: tuple[Any, ...], event: Event | None) -> Event | None:
    if kind == "job":
        before, job.event = job.event, event
    elif kind == "specification":
        before, job.specification = job.specification, event
    elif kind == "cleanup":
        before = _exchange(job.cleanups, parts[1], event)
    elif kind == "command":
        before = _exchange(job.commands, parts[1], event)
    elif kind == "savepoint":
        before = _exchange(job.savepoints, parts[1], event)
    else:
        number = parts[1]
        pipeline = job.pipelines.get(number) or job.pipelines.setdefault(number, PipelineView())
        before = _fold_into_pipeline(pipeline, kind, parts, event)
        if event is None and pipeline.is_empty:
            del job.pipelines[number]
    return before


def _fold_into_pipeline(pipeline: PipelineView, kind: str, parts: tuple[Any, ...], event: Event | None) -> Event | None:
    if kind == "task":
        before = _exchange(pipeline.tasks, parts[2], event)
        counts = pipeline.counts
        if before is not None:
            counts[before.to] -= 1
            if not counts[before.to]:
                del counts[before.to]
        if event is not None:
            counts[event.to] += 1
    elif kind == "pipeline":
        before, pipeline.event = pipeline.event, event
    elif kind == "pending":
        before, pipeline.pending = pipeline.pending, event
    elif kind == "checkpoint":
        before, pipeline.checkpoint = pipeline.checkpoint, event
    else:
        before = _exchange(pipeline.acks if kind == "ack" else pipeline.ready, parts[2], event)
    return before


def _index_task(state: State, task: TaskId, before: Event | None, after: Event | None) -> None:
    """Which tasks are on a worker, and which wait for room."""
    for event, here in ((before, False), (after, True)):
        if event is None or not isinstance(event.state, Task):
            continue
        worker = event.state.worker
        if event.to in ACTIVE_TASK:
            tasks = state.tasks_on.setdefault(worker, set())
            tasks.add(task) if here else tasks.discard(task)
            if not tasks:
                del state.tasks_on[worker]
        elif event.to == "CREATED" and not event.due_at:
            if here:
                state.waiting.setdefault(task[0], {})[task] = None
            else:
                waiting = state.waiting.get(task[0], {})
                waiting.pop(task, None)
                if not waiting:
                    state.waiting.pop(task[0], None)


def _exchange(known: dict[Any, Event], key: str | int, event: Event | None) -> Event | None:
    """Sets the entry of a key; returns what stood there."""
    if event is None:
        return known.pop(key, None)
    before = known.get(key)
    known[key] = event
    return before
