"""What the state says about how jobs fare: pure functions over `State` and a time, for whoever shows it to people.

A job that has not committed a checkpoint for too long is unhealthy, and the reason is said. An ended job is never among
those that run. Nothing here decides or changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from coordinator.checkpoint import checkpoint_of, committed_point, is_uncommitted, pipeline_of
from coordinator.deploy import WAITS, task_of
from coordinator.ending import cleanup_of, job_of
from coordinator.lifecycle import TERMINAL_JOB
from coordinator.reports import STALLED
from coordinator.state import JobView, PipelineView, State
from events.records import Ack, Event, Summary

INTERVALS = 3  # without a checkpoint for longer than this many intervals, and a timeout, a running job is unhealthy
NAMED = 5  # of many tasks only the first are named


class PipelineHealth(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline's checkpoints. Times are milliseconds since 1970 UTC, 0 where there is none."""

    pipeline: int
    state: str
    last: int = 0  # the id of the newest committed checkpoint; 0 before the first
    # When its output was published. While the next one is being published the log no longer says it, and this is when
    # that one was triggered: not earlier than the truth.
    last_at: int = 0
    since_last_ms: int = 0  # since then; before the first checkpoint: since the job began
    # Of the newest completed checkpoint, committed or not: from trigger to commit or until now, and what it publishes.
    duration_ms: int = 0
    rows: int = 0
    size: int = 0
    # The one in flight, for how long, and which tasks have not acknowledged it.
    pending: int = 0
    pending_ms: int = 0
    waits_for: tuple[int, ...] = ()
    failures: int = 0  # checkpoints failed in a row
    next_at: int = 0  # when the next one is due
    unhealthy: str = ""


class TaskTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """A task that is stalled, or that waits for room on a worker."""

    job: str
    pipeline: int
    task: int
    attempt: int
    worker: str
    since: int
    reason: str


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Publishing or cleaning up that has not worked yet, and is tried again."""

    entity: str
    what: str  # "commit" or "cleanup"
    tries: int
    error: str
    next_at: int


class JobHealth(msgspec.Struct, frozen=True, kw_only=True):
    """A job that has not ended."""

    job: str
    incarnation: int
    state: str
    submitted_at: int
    started_at: int
    restarts: int
    reason: str
    pipelines: tuple[PipelineHealth, ...]
    stalled: tuple[TaskTrouble, ...]
    waiting: tuple[TaskTrouble, ...]
    retrying: tuple[Retry, ...]
    unhealthy: str  # why, in a sentence; empty for a job that is well


class EndedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that has ended and is not cleaned up yet: its id is taken until then."""

    job: str
    incarnation: int
    state: str
    ended_at: int
    reason: str
    free_at: int  # when its cleanup is due


class PastJob(msgspec.Struct, frozen=True, kw_only=True):
    """A summary: what stays listed of an ended job."""

    job: str
    incarnation: int
    summary: Summary


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs of a shard. `running` are those that have not ended, whatever they do right now."""

    running: tuple[JobHealth, ...] = ()
    ended: tuple[EndedJob, ...] = ()
    history: tuple[PastJob, ...] = ()
    retrying: tuple[Retry, ...] = ()  # of all jobs, ended ones too


def overview(state: State, now: int, intervals: int = INTERVALS) -> Overview:
    running, ended, retrying = list[JobHealth](), list[EndedJob](), list[Retry]()
    for name, job in sorted(state.jobs.items()):
        retrying += retries(job)
        if job.event is None:
            continue  # what is left of it are answers to commands, or a cleanup
        if job.event.to in TERMINAL_JOB:
            ended.append(_ended(job))
        else:
            running.append(health(name, job, now, intervals))
    history = tuple(
        PastJob(job=name, incarnation=incarnation, summary=event.state)
        for name, of_job in sorted(state.summaries.items())
        for incarnation, event in sorted(of_job.items())
        if isinstance(event.state, Summary)
    )
    return Overview(running=tuple(running), ended=tuple(ended), history=history, retrying=tuple(retrying))


def health(name: str, job: JobView, now: int, intervals: int = INTERVALS) -> JobHealth:
    event, known = job_of(job)
    pipelines = tuple(pipeline_health(job, number, now, intervals) for number in sorted(job.pipelines))
    stalled = tuple(_trouble(name, job, _is_stalled))
    ills = [f"pipeline {one.pipeline} {one.unhealthy}" for one in pipelines if one.unhealthy]
    ills += [f"task {task.pipeline}/{task.task} is stalled: {task.reason}" for task in stalled]
    return JobHealth(
        job=name,
        incarnation=event.incarnation,
        state=event.to,
        submitted_at=known.submitted_at,
        started_at=known.started_at,
        restarts=known.restarts,
        reason=known.reason,
        pipelines=pipelines,
        stalled=stalled,
        waiting=tuple(_trouble(name, job, _is_waiting)),
        retrying=tuple(retries(job)),
        unhealthy="; ".join(ills),
    )


def pipeline_health(job: JobView, number: int, now: int, intervals: int = INTERVALS) -> PipelineHealth:
    pipeline = job.pipelines[number]
    if pipeline.event is None:  # it could not be read; the job is quarantined
        return PipelineHealth(pipeline=number, state="")
    event, known = pipeline_of(pipeline)
    last_at = _last_at(pipeline)
    begun = job_of(job)[1].started_at or job_of(job)[1].submitted_at
    newest = checkpoint_of(pipeline.checkpoint) if pipeline.checkpoint else None
    staged = [piece for ack in (newest.acks if newest else ()) for piece in ack.staged]
    pending = pipeline.pending if pipeline.pending is not None and pipeline.pending.to == "TRIGGERED" else None
    found = PipelineHealth(
        pipeline=number,
        state=event.to,
        last=committed_point(number, pipeline).checkpoint,
        last_at=last_at,
        since_last_ms=max(0, now - (last_at or begun)),
        duration_ms=max(0, (newest.committed_at or now) - newest.triggered_at) if newest and newest.triggered_at else 0,
        rows=sum(piece.rows for piece in staged),
        size=sum(piece.size for piece in staged),
        pending=checkpoint_of(pending).id if pending else 0,
        pending_ms=max(0, now - checkpoint_of(pending).triggered_at) if pending else 0,
        waits_for=_waits_for(pipeline, checkpoint_of(pending).id) if pending else (),
        failures=known.failures,
        next_at=event.due_at,
    )
    return msgspec.structs.replace(found, unhealthy=_unhealthy(job, pipeline, found, intervals))


def retries(job: JobView) -> Iterator[Retry]:
    """Commits and cleanups of the job that are being tried again."""
    for _, pipeline in sorted(job.pipelines.items()):
        if pipeline.checkpoint is not None and is_uncommitted(pipeline):
            known = checkpoint_of(pipeline.checkpoint)
            if known.tries > 1 or known.reason:
                yield _retry(pipeline.checkpoint, "commit", known.tries, known.reason)
    for _, event in sorted(job.cleanups.items()):
        cleanup = cleanup_of(event)
        if cleanup.tries > 1 or cleanup.reason:
            yield _retry(event, "cleanup", cleanup.tries, cleanup.reason)


def _retry(event: Event, what: str, tries: int, error: str) -> Retry:
    return Retry(entity=event.entity, what=what, tries=tries, error=error, next_at=event.due_at)


def _ended(job: JobView) -> EndedJob:
    event, known = job_of(job)
    return EndedJob(
        job=event.job,
        incarnation=event.incarnation,
        state=event.to,
        ended_at=known.ended_at,
        reason=known.reason,
        free_at=job.cleanup.due_at if job.cleanup else 0,
    )


def _last_at(pipeline: PipelineView) -> int:
    if pipeline.checkpoint is None:
        return 0
    known = checkpoint_of(pipeline.checkpoint)
    if pipeline.checkpoint.to == "COMMITTED":
        return known.committed_at  # 0 for one that the job was restored from: it is not of this incarnation
    return known.triggered_at if known.before else 0


def _waits_for(pipeline: PipelineView, checkpoint: int) -> tuple[int, ...]:
    acked = {
        index
        for index, event in pipeline.acks.items()
        if isinstance(event.state, Ack) and event.state.checkpoint == checkpoint
    }
    return tuple(index for index in sorted(pipeline.tasks) if index not in acked)


def _unhealthy(job: JobView, pipeline: PipelineView, found: PipelineHealth, intervals: int) -> str:
    """Why a pipeline of a running job is not well; empty when it is."""
    policy = job.plan.env.checkpoint
    if job_of(job)[0].to != "RUNNING" or found.state != "RUNNING":
        return ""
    if found.since_last_ms <= intervals * policy.interval_ms + policy.timeout_ms:
        return ""
    said = (
        f"has not committed a checkpoint for {found.since_last_ms / 1000:.1f} s, longer than {intervals} intervals of "
        f"{policy.interval_ms} ms and the timeout of {policy.timeout_ms} ms"
    )
    return f"{said}; {why}" if (why := _why(pipeline, found)) else said


def _why(pipeline: PipelineView, found: PipelineHealth) -> str:
    """What is known of the checkpoint that does not come."""
    if pipeline.checkpoint is not None and is_uncommitted(pipeline):
        known = checkpoint_of(pipeline.checkpoint)
        return f"checkpoint {known.id} is not published after {known.tries} tries: {known.reason or 'no answer yet'}"
    if found.pending:
        named = ", ".join(str(index) for index in found.waits_for[:NAMED])
        more = f" and {len(found.waits_for) - NAMED} more" if len(found.waits_for) > NAMED else ""
        return f"checkpoint {found.pending} waits for tasks {named}{more}"
    if pipeline.pending is not None and pipeline.pending.to == "ABORTED":
        last = checkpoint_of(pipeline.pending)
        return f"checkpoint {last.id} was given up: {last.reason}"
    return ""


def _is_stalled(task: Event) -> bool:
    return task.to in ("DEPLOYING", "RUNNING") and task_of(task).reason.startswith(STALLED)


def _is_waiting(task: Event) -> bool:
    return task.to == "CREATED" and task_of(task).reason == WAITS


def _trouble(name: str, job: JobView, is_troubled: Callable[[Event], bool]) -> Iterator[TaskTrouble]:
    for number, pipeline in sorted(job.pipelines.items()):
        for index, task in sorted(pipeline.tasks.items()):
            if is_troubled(task):
                known = task_of(task)
                yield TaskTrouble(
                    job=name,
                    pipeline=number,
                    task=index,
                    attempt=task.attempt,
                    worker=known.worker,
                    since=known.since,
                    reason=known.reason.removeprefix(STALLED),
                )


def last_checkpoint_ms(job: JobView) -> int:
    """Since when a running job has had no further checkpoint: that of its pipeline which is furthest behind, or its
    start. 0 for a job that does not run."""
    if job.event is None or job.event.to != "RUNNING":
        return 0
    started_at = job_of(job)[1].started_at
    committed = [
        checkpoint_of(p.checkpoint).committed_at or checkpoint_of(p.checkpoint).triggered_at
        for p in job.pipelines.values()
        if p.checkpoint is not None and p.event is not None and p.event.to == "RUNNING"
    ]
    without = any(p.checkpoint is None for p in job.pipelines.values())
    return min([*committed, started_at] if without or not committed else committed)
