"""What people and programs are shown: frozen values, snake_case in Python and camelCase as JSON.

Times are milliseconds since 1970 UTC, None where there is none. Only shapes are here; `coordinator/viewing.py` makes
them from the coordinator's state, at a time. Pure.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class View(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What all views are."""


class CauseView(View, frozen=True):
    """Why something was written: the input that was decided on, or what else led to it."""

    kind: str  # INPUT, TIMER, DETECTOR, STATE or ELECTION
    text: str  # for people
    topic: str = ""
    partition: int | None = None
    offset: int | None = None


class JobView(View, frozen=True):
    """One incarnation of a job, as a line of a list. Of an ended one that is cleaned up, its summary."""

    id: str
    incarnation: int
    shard: int
    state: str
    is_ended: bool
    mode: str = ""  # BATCH or STREAMING; empty where the log no longer says it
    health: str = "HEALTHY"  # HEALTHY, WAITING (for room, or for a restart), UNHEALTHY or ENDED
    health_reason: str = ""
    reason: str = ""  # why it is in its state
    cause: CauseView | None = None
    since: int | None = None  # when it entered its state
    submitted_at: int | None = None
    submitted_by: str = ""
    started_at: int | None = None
    ended_at: int | None = None
    free_at: int | None = None  # of an ended job: when its id can be used again; None when it can
    listed_until: int | None = None  # of an ended job: when its summary goes
    origin: str = ""  # what it was restored from
    restarts: int = 0
    tasks: dict[str, int] = {}  # how many are in each state
    # What the attempts that run have read, by their last word, and how fast.
    rows: int = 0
    bytes_read: int = 0
    rows_per_second: float = 0.0
    rows_published: int = 0
    # Of the pipeline that is furthest behind.
    last_checkpoint_id: int | None = None
    last_checkpoint_time: int | None = None
    seconds_since_last_checkpoint: float | None = None  # before the first: since the job began
    last_checkpoint_size: int | None = None
    last_checkpoint_duration_ms: int | None = None
    pending_checkpoint_age_ms: int | None = None
    checkpoints: int = 0


class CheckpointView(View, frozen=True):
    """A checkpoint of a pipeline."""

    pipeline: int
    id: int
    state: str  # TRIGGERED, COMPLETED (decided, being published), COMMITTED, ABORTED or ABANDONED
    purpose: str
    triggered_at: int | None = None
    completed_at: int | None = None
    committed_at: int | None = None
    duration_ms: int | None = None  # from trigger to commit
    age_ms: int | None = None  # of one in flight: since its trigger
    rows: int = 0
    size: int = 0
    acked: int = 0
    tasks: int = 0
    waits_for: tuple[int, ...] = ()  # tasks that have not acknowledged it
    tries: int = 0  # at publishing it
    next_try_at: int | None = None
    reason: str = ""


class TaskView(View, frozen=True):
    """One parallel instance of a pipeline: its newest attempt."""

    job: str
    pipeline: int
    task: int
    state: str
    attempt: int
    source: str = ""  # the source that it reads
    worker: str = ""
    since: int | None = None
    rows: int = 0
    bytes_read: int = 0
    rows_per_second: float = 0.0
    progressed_at: int | None = None
    is_ready: bool = False  # its source is exhausted
    is_stalled: bool = False
    is_waiting: bool = False  # for room on a worker
    restarts_at: int | None = None
    reason: str = ""
    cause: CauseView | None = None


class PipelineView(View, frozen=True):
    """One connected graph of a job; it checkpoints on its own."""

    job: str
    pipeline: int
    state: str
    since: int | None = None
    tasks: dict[str, int] = {}
    ready: int = 0  # tasks whose source is exhausted
    rows: int = 0
    bytes_read: int = 0
    rows_per_second: float = 0.0
    rows_published: int = 0
    last_checkpoint_id: int | None = None
    last_checkpoint_time: int | None = None
    seconds_since_last_checkpoint: float | None = None
    newest: CheckpointView | None = None  # the newest completed one, committed or being published
    pending: CheckpointView | None = None  # the one in flight, or the last that was given up
    next_checkpoint_at: int | None = None
    failures: int = 0  # checkpoints failed in a row
    restored_from: int | None = None  # the checkpoint that its attempts started from
    unhealthy: str = ""
    reason: str = ""
    cause: CauseView | None = None


class StepView(View, frozen=True):
    """A source, transform or sink of the job's graph."""

    name: str
    kind: str
    role: str
    inputs: tuple[str, ...] = ()
    pipeline: int = 0
    tasks: tuple[int, ...] = ()  # of a source: the tasks that read it


class CommandView(View, frozen=True):
    """A command and its one answer."""

    job: str
    id: str
    state: str  # ACCEPTED or REFUSED
    action: str
    by: str = ""
    reason: str = ""
    decided_at: int | None = None
    cause: CauseView | None = None


class SavepointView(View, frozen=True):
    name: str
    state: str  # TAKING, KEPT or FAILED
    begun_at: int | None = None
    kept_at: int | None = None
    checkpoints: dict[int, int] = {}  # by pipeline
    reason: str = ""


class RetryView(View, frozen=True):
    """Publishing or cleaning up that has not worked yet."""

    entity: str
    what: str
    tries: int
    error: str
    next_at: int | None = None


class SummaryView(View, frozen=True):
    """What stays listed of an ended job after its cleanup."""

    job: str
    incarnation: int
    state: str
    reason: str
    submitted_at: int
    ended_at: int
    rows: int
    checkpoints: int
    restarts: int
    savepoints: tuple[str, ...] = ()
    can_be_restored: bool = False
    commands: tuple[str, ...] = ()
    listed_until: int | None = None


class JobDetail(View, frozen=True):
    """A job with all that belongs to it. Of one that is cleaned up only `job` and `summary` say something."""

    job: JobView
    pipelines: tuple[PipelineView, ...] = ()
    tasks: tuple[TaskView, ...] = ()
    graph: tuple[StepView, ...] = ()
    commands: tuple[CommandView, ...] = ()
    savepoints: tuple[SavepointView, ...] = ()
    retrying: tuple[RetryView, ...] = ()
    summary: SummaryView | None = None
    incarnations: tuple[int, ...] = ()  # all of this id that are known
    specification: dict[str, Any] = {}


class WorkerView(View, frozen=True):
    """A worker: what it said last, and what the coordinators make of it."""

    id: str
    state: (
        str  # HEARD, DRAINING, SILENT (longer than its lease), LOST (given up by a coordinator), UNKNOWN (in the past)
    )
    instance: str = ""
    host: str = ""
    version: str = ""
    slots: int = 0
    used: int = 0
    labels: dict[str, str] = {}
    heard_at: int | None = None
    seconds_since_heard: float | None = None
    tasks: tuple[str, ...] = ()  # job/pipeline/task that are placed on it; of very many the first
    reason: str = ""


class TakeoverView(View, frozen=True):
    """A change of a shard's leader, and where its time went. The parts are None where nobody has told them."""

    shard: int
    epoch: int
    at: int
    leader: str
    before: str = ""  # who led until then
    reason: str = ""
    detect_ms: float | None = None
    fence_ms: float | None = None
    replay_ms: float | None = None
    first_commit_ms: float | None = None
    total_ms: float | None = None


class ShardView(View, frozen=True):
    """A shard of the log and who leads it."""

    shard: int
    state: str  # LEADING, VACANT, or empty before its first leader
    leader: str = ""
    epoch: int = 0
    since: int | None = None
    address: str = ""
    instance: str = ""
    version: str = ""
    reason: str = ""
    standing_by: tuple[str, ...] = ()
    jobs: int = 0  # that have not ended
    next_offset: int = 0
    takeovers: tuple[TakeoverView, ...] = ()  # newest last


class CoordinatorView(View, frozen=True):
    """A coordinator's process, as it last said."""

    id: str
    instance: str
    address: str = ""
    version: str = ""
    leads: dict[int, int] = {}  # shard and epoch
    standing_by: tuple[int, ...] = ()
    started_at: int | None = None
    heard_at: int | None = None
    seconds_since_heard: float | None = None


class ClusterView(View, frozen=True):
    """Everything but the jobs themselves."""

    at: int
    shards: tuple[ShardView, ...]
    coordinators: tuple[CoordinatorView, ...]
    workers: tuple[WorkerView, ...]
    jobs: dict[str, int]  # how many are in each state
    unhealthy: int = 0


class Page(View, Generic[T], frozen=True):
    """A part of a list. `total` is how many there are in all that the filter lets through."""

    items: tuple[T, ...]
    total: int
    start: int = 0
    counts: dict[str, int] = {}  # of all jobs, by state, whatever the filter


class Progress(msgspec.Struct, frozen=True):
    """Soft state: how far a task's attempt has come, by the worker's last word."""

    incarnation: int
    attempt: int
    rows: int
    bytes_read: int
    progressed_at: int
    rows_per_second: float = 0.0
