"""From the coordinator's state, at a time, to what people are shown (`coordinator/views.py`). The same whether the
state is now's, a standby's, or that of a moment long past. It decides nothing and changes nothing. Pure.

`progress` is soft state, by task: what workers said last. Where it is not known (the past), what is on the log counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from coordinator import health
from coordinator import state as known_as
from coordinator.checkpoint import checkpoint_of, published_rows
from coordinator.deploy import WAITS, task_of
from coordinator.ending import job_of
from coordinator.graph import graph_of, mode_of, sources_of, specification_of
from coordinator.lifecycle import TERMINAL_JOB
from coordinator.phrases import told
from coordinator.reports import STALLED
from coordinator.state import State, TaskId
from coordinator.views import (
    CauseView,
    CheckpointView,
    CommandView,
    JobDetail,
    JobView,
    PipelineView,
    Progress,
    RetryView,
    SavepointView,
    SummaryView,
    TaskView,
)
from events.records import Ack, Cause, Event, Outcome, Savepoint, Specification, Summary

Heard = Mapping[TaskId, Progress]
NOTHING: Heard = {}


def cause_text(cause: Cause) -> str:
    """Why, in a few words."""
    if cause.kind == "INPUT":
        place = f"{cause.topic}/{cause.partition}@{cause.offset}"
        return f"{place} ({cause.note})" if cause.note else place
    if cause.kind == "TIMER":
        return f"the deadline of {cause.note}"
    if cause.kind == "ELECTION":
        return f"election: {cause.note}" if cause.note else "election"
    return cause.note or cause.kind.lower()


def cause_view(cause: Cause) -> CauseView:
    return CauseView(
        kind=cause.kind,
        text=cause_text(cause),
        topic=cause.topic,
        partition=cause.partition if cause.partition >= 0 else None,
        offset=cause.offset if cause.offset >= 0 else None,
    )


def job_view(state: State, name: str, now: int, heard: Heard = NOTHING) -> JobView | None:
    """The job of this id that lives, or has ended and is not cleaned up yet; None where there is none."""
    job = state.jobs.get(name)
    if job is None or job.event is None:
        return None
    event, known = job_of(job)
    ended = event.to in TERMINAL_JOB
    pipelines = [_pipeline(name, job, number, now, heard) for number in sorted(job.pipelines)]
    behind = min(pipelines, key=_freshness, default=None)
    tasks: dict[str, int] = {}
    for to, count in (each for one in job.pipelines.values() for each in one.counts.items()):
        tasks[to] = tasks.get(to, 0) + count
    ages = [each.pending.age_ms for each in pipelines if each.pending and each.pending.age_ms is not None]
    well, why = ("ENDED", "") if ended else _health(job, pipelines, now)
    spec = job.specification.state if job.specification else None
    newest = behind.newest if behind else None
    summary = state.summaries.get(name, {}).get(event.incarnation)
    return JobView(
        id=name,
        incarnation=event.incarnation,
        shard=state.shard,
        state=event.to,
        is_ended=ended,
        mode=mode_of(job.body),
        health=well,
        health_reason=why,
        reason=known.reason,
        cause=cause_view(event.cause),
        since=event.time,
        submitted_at=known.submitted_at,
        submitted_by=spec.submitted_by if isinstance(spec, Specification) else "",
        started_at=known.started_at or None,
        ended_at=known.ended_at or None,
        free_at=job.cleanup.due_at if ended and job.cleanup else None,
        listed_until=summary.due_at if summary else None,
        origin=known.origin,
        restarts=known.restarts,
        tasks=tasks,
        rows=sum(each.rows for each in pipelines),
        bytes_read=sum(each.bytes_read for each in pipelines),
        rows_per_second=sum(each.rows_per_second for each in pipelines),
        rows_published=sum(each.rows_published for each in pipelines),
        last_checkpoint_id=behind.last_checkpoint_id if behind else None,
        last_checkpoint_time=behind.last_checkpoint_time if behind else None,
        seconds_since_last_checkpoint=None if ended or behind is None else behind.seconds_since_last_checkpoint,
        last_checkpoint_size=newest.size if newest else None,
        last_checkpoint_duration_ms=newest.duration_ms if newest else None,
        pending_checkpoint_age_ms=max(ages, default=None),
        checkpoints=sum(each.last_checkpoint_id or 0 for each in pipelines),
    )


def _freshness(pipeline: PipelineView) -> tuple[bool, int]:
    """Those that run come first, and of them the one whose last checkpoint is oldest."""
    return pipeline.state in ("FINISHED", "CANCELED"), pipeline.last_checkpoint_time or 0


def _health(job: known_as.JobView, pipelines: list[PipelineView], now: int) -> tuple[str, str]:
    """As `health.health` has it, but cheaper: lists ask this of many jobs."""
    ills = [f"pipeline {one.pipeline} {one.unhealthy}" for one in pipelines if one.unhealthy]
    waiting, back = 0, list[str]()
    for pipeline in job.pipelines.values():
        for event in pipeline.tasks.values():
            reason = task_of(event).reason
            if not reason:
                continue
            if event.to == "CREATED" and reason == WAITS:
                waiting += 1
            elif event.to == "CREATED" and event.due_at:
                back.append(reason)
            elif event.to in ("DEPLOYING", "RUNNING") and reason.startswith(STALLED):
                name = "/".join(event.entity.rsplit("/", 2)[1:])
                ills.append(f"task {name} is stalled: {reason.removeprefix(STALLED)}")
    if not ills and (retry := next(health.retries(job), None)):
        ills = [f"{retry.what} of {retry.entity} is tried again: {retry.error or 'no answer yet'}"]
    if ills:
        return "UNHEALTHY", told("; ".join(ills), now)
    if waiting:
        return "WAITING", f"{_count(waiting, 'task')} for room on a worker"
    if back:
        return "WAITING", f"{_count(len(back), 'task')} to be started again: {back[0]}"
    return "HEALTHY", ""


def _count(number: int, what: str) -> str:
    return f"{number} {what} waits" if number == 1 else f"{number} {what}s wait"


def summary_view(event: Event) -> SummaryView:
    """What stays of an ended job. Its state is the first word of its reason."""
    assert isinstance(event.state, Summary)
    known = event.state
    state, _, reason = known.reason.partition(": ")
    points = any(point.checkpoint for point in known.points)
    return SummaryView(
        job=event.job,
        incarnation=event.incarnation,
        state=state,
        reason=reason,
        submitted_at=known.submitted_at,
        ended_at=known.ended_at,
        rows=known.rows,
        checkpoints=known.checkpoints,
        restarts=known.restarts,
        savepoints=tuple(savepoint.name for savepoint in known.savepoints),
        can_be_restored=bool(known.specification) and (points or bool(known.savepoints)),
        commands=known.commands,
        listed_until=event.due_at or None,
    )


def ended_view(state: State, event: Event) -> JobView:
    """A line for an ended job of which only the summary is left."""
    known = summary_view(event)
    assert isinstance(event.state, Summary)
    return JobView(
        id=known.job,
        incarnation=known.incarnation,
        shard=state.shard,
        state=known.state,
        is_ended=True,
        mode=mode_of(event.state.specification),
        health="ENDED",
        reason=known.reason,
        cause=cause_view(event.cause),
        since=known.ended_at,
        submitted_at=known.submitted_at,
        ended_at=known.ended_at,
        listed_until=known.listed_until,
        restarts=known.restarts,
        rows_published=known.rows,
        checkpoints=known.checkpoints,
    )


def job_detail(state: State, name: str, now: int, heard: Heard = NOTHING, incarnation: int = 0) -> JobDetail | None:
    """The job with all that belongs to it; without an incarnation the newest one of this id. None where there is no
    such job, not even the summary of one."""
    job = state.jobs.get(name)
    summaries = state.summaries.get(name, {})
    living = job.event.incarnation if job is not None and job.event is not None else 0
    known = tuple(sorted({*summaries, *([living] if living else [])}))
    wanted = incarnation or max(known, default=0)
    if wanted not in known:
        return None
    summary = summary_view(summaries[wanted]) if wanted in summaries else None
    if job is None or wanted != living:
        event = summaries[wanted]
        assert isinstance(event.state, Summary)
        body = event.state.specification
        line = ended_view(state, event)
        return JobDetail(
            job=line,
            summary=summary,
            incarnations=known,
            graph=graph_of(body),
            specification=specification_of(body),
        )
    found = job_view(state, name, now, heard)
    assert found is not None
    return JobDetail(
        job=found,
        pipelines=tuple(_pipeline(name, job, number, now, heard) for number in sorted(job.pipelines)),
        tasks=tuple(task_views(state, name, heard)),
        graph=graph_of(job.body),
        commands=tuple(command_views(state, name)),
        savepoints=tuple(_savepoint(event) for _, event in sorted(job.savepoints.items())),
        retrying=tuple(
            RetryView(entity=r.entity, what=r.what, tries=r.tries, error=r.error, next_at=r.next_at or None)
            for r in health.retries(job)
        ),
        summary=summary,
        incarnations=known,
        specification=specification_of(job.body),
    )


def _pipeline(name: str, job: known_as.JobView, number: int, now: int, heard: Heard = NOTHING) -> PipelineView:
    pipeline = job.pipelines[number]
    found = health.pipeline_health(job, number, now) if job.event else None
    if found is None or pipeline.event is None:
        return PipelineView(job=name, pipeline=number, state="")
    rows = read = 0
    rate = 0.0
    for index, task in pipeline.tasks.items():
        said = _progress(pipeline, (name, number, index), task, heard)
        rows, read, rate = rows + said.rows, read + said.bytes_read, rate + said.rows_per_second
    event = pipeline.event
    restored = getattr(event.state, "restored", 0)
    return PipelineView(
        job=name,
        pipeline=number,
        state=event.to,
        since=event.time,
        tasks=dict(pipeline.counts),
        ready=len(pipeline.ready),
        rows=rows,
        bytes_read=read,
        rows_per_second=rate,
        rows_published=published_rows(pipeline),
        last_checkpoint_id=found.last or None,
        last_checkpoint_time=found.last_at or None,
        seconds_since_last_checkpoint=found.since_last_ms / 1000,
        newest=checkpoint_view(number, pipeline.checkpoint, now, pipeline) if pipeline.checkpoint else None,
        pending=checkpoint_view(number, pipeline.pending, now, pipeline) if _shows_pending(pipeline) else None,
        next_checkpoint_at=found.next_at or None,
        failures=found.failures,
        restored_from=restored or None,
        unhealthy=found.unhealthy,
        reason=getattr(event.state, "reason", ""),
        cause=cause_view(event.cause),
    )


def _shows_pending(pipeline: known_as.PipelineView) -> bool:
    return pipeline.pending is not None and pipeline.pending.to != "COMPLETED"


def checkpoint_view(
    number: int, event: Event | None, now: int, pipeline: known_as.PipelineView | None = None
) -> CheckpointView:
    """One checkpoint, pending or completed. With its pipeline, who has acknowledged a pending one."""
    assert event is not None
    known = checkpoint_of(event)
    acks = known.acks
    pending = event.to == "TRIGGERED"
    if pending and pipeline is not None:
        said = (each.state for each in pipeline.acks.values())
        acks = tuple(ack for ack in said if isinstance(ack, Ack) and ack.checkpoint == known.id)
    done = {ack.task for ack in acks}
    open_ = pending or event.to == "COMPLETED"
    return CheckpointView(
        pipeline=number,
        id=known.id,
        state=event.to,
        purpose=known.purpose,
        triggered_at=known.triggered_at or None,
        completed_at=known.completed_at or None,
        committed_at=known.committed_at or None,
        duration_ms=known.committed_at - known.triggered_at if known.committed_at and known.triggered_at else None,
        age_ms=max(0, now - known.triggered_at) if open_ and known.triggered_at else None,
        rows=sum(piece.rows for ack in acks for piece in ack.staged),
        size=sum(piece.size for ack in acks for piece in ack.staged),
        acked=len(done),
        tasks=pipeline.size if pipeline is not None else len(acks),
        waits_for=tuple(sorted(set(pipeline.tasks) - done)) if pending and pipeline is not None else (),
        tries=known.tries,
        next_try_at=event.due_at or None if event.to == "COMPLETED" else None,
        reason=known.reason,
    )


def checkpoint_views(state: State, name: str, now: int) -> list[CheckpointView]:
    """What the state knows of a job's checkpoints: of each pipeline the newest completed one and the one in flight.
    All of them are in the history."""
    job = state.jobs.get(name)
    found = []
    for number, pipeline in sorted(job.pipelines.items() if job else ()):
        if pipeline.checkpoint is not None:
            found.append(checkpoint_view(number, pipeline.checkpoint, now, pipeline))
        if _shows_pending(pipeline):
            found.append(checkpoint_view(number, pipeline.pending, now, pipeline))
    return found


def task_views(state: State, name: str, heard: Heard = NOTHING) -> Iterator[TaskView]:
    job = state.jobs.get(name)
    if job is None:
        return
    sources = sources_of(job.body)
    for number, pipeline in sorted(job.pipelines.items()):
        for index, event in sorted(pipeline.tasks.items()):
            known, said = task_of(event), _progress(pipeline, (name, number, index), event, heard)
            yield TaskView(
                job=name,
                pipeline=number,
                task=index,
                state=event.to,
                attempt=event.attempt,
                source=sources.get((number, index), ""),
                worker=known.worker,
                since=known.since or None,
                rows=said.rows,
                bytes_read=said.bytes_read,
                rows_per_second=said.rows_per_second,
                progressed_at=said.progressed_at or None,
                is_ready=index in pipeline.ready,
                is_stalled=event.to in ("DEPLOYING", "RUNNING") and known.reason.startswith(STALLED),
                is_waiting=event.to == "CREATED" and known.reason == WAITS,
                restarts_at=event.due_at or None if event.to == "CREATED" else None,
                reason=told(known.reason, event.time),
                cause=cause_view(event.cause),
            )


def _progress(pipeline: known_as.PipelineView, task: TaskId, event: Event, heard: Heard) -> Progress:
    """What the attempt has read: by its worker's last word, or by what is on the log if that is more."""
    known, ack = task_of(event), pipeline.acks.get(task[2])
    acked = ack.state if ack is not None and ack.attempt == event.attempt and isinstance(ack.state, Ack) else None
    rows, read = max(known.rows, acked.rows if acked else 0), max(known.bytes_read, acked.bytes_read if acked else 0)
    said = heard.get(task)
    if said is None or (said.incarnation, said.attempt) != (event.incarnation, event.attempt):
        return Progress(event.incarnation, event.attempt, rows, read, acked.acked_at if acked else 0)
    runs = event.to in ("DEPLOYING", "RUNNING", "READY_TO_CLOSE")
    rate = said.rows_per_second if runs else 0.0
    return Progress(
        event.incarnation, event.attempt, max(rows, said.rows), max(read, said.bytes_read), said.progressed_at, rate
    )


def command_views(state: State, name: str) -> Iterator[CommandView]:
    """The commands of a job whose outcome is on the log, oldest first."""
    job = state.jobs.get(name)
    for event in sorted(job.commands.values() if job else (), key=lambda each: each.sequence):
        if isinstance(event.state, Outcome):
            known = event.state
            yield CommandView(
                job=name,
                id=str(known_as.entity_of(event.entity).parts[1]),
                state=event.to,
                action=known.action,
                by=known.by,
                reason=known.reason,
                decided_at=event.time,
                cause=cause_view(event.cause),
            )


def _savepoint(event: Event) -> SavepointView:
    assert isinstance(event.state, Savepoint)
    known = event.state
    return SavepointView(
        name=known.name,
        state=event.to,
        begun_at=known.begun_at or None,
        kept_at=known.kept_at or None,
        checkpoints={point.pipeline: point.checkpoint for point in known.points},
        reason=known.reason,
    )
