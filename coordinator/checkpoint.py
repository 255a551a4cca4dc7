"""Checkpoints: triggered, acknowledged by every task, completed (the decision, durable), committed (its output is
published; repeated until it has happened). At most one is in flight per pipeline, and its deadline is on the log.

Pure decisions over a Draft.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinator.deploy import choose_worker, is_lost, task_of, usable
from coordinator.draft import Draft
from coordinator.lifecycle import WORKING_TASK
from coordinator.state import JobView, PipelineView
from events.keys import named
from events.records import (
    Ack,
    Checkpoint,
    CheckpointAcked,
    CommitCheckpoint,
    Event,
    Pipeline,
    RestorePoint,
    TriggerCheckpoint,
)

COMMIT_TASK = -1  # orders to commit are the pipeline's, not a task's
NOBODY_MS = 1000  # how long to wait when no worker is there


def checkpoint_of(event: Event) -> Checkpoint:
    assert isinstance(event.state, Checkpoint)
    return event.state


def pipeline_of(pipeline: PipelineView) -> tuple[Event, Pipeline]:
    assert pipeline.event is not None
    assert isinstance(pipeline.event.state, Pipeline)
    return pipeline.event, pipeline.event.state


def in_flight(pipeline: PipelineView) -> bool:
    """Triggered and not yet completed, or completed and not yet committed."""
    return (pipeline.pending is not None and pipeline.pending.to == "TRIGGERED") or is_uncommitted(pipeline)


def is_uncommitted(pipeline: PipelineView) -> bool:
    return pipeline.checkpoint is not None and pipeline.checkpoint.to == "COMPLETED"


def trigger(draft: Draft, job: JobView, number: int, purpose: str) -> None:
    """Ask every task for its part."""
    pipeline = job.pipelines[number]
    event, known = pipeline_of(pipeline)
    name, checkpoint = event.job, known.next_checkpoint
    due_at = draft.now + job.plan.env.checkpoint.timeout_ms
    pending = Checkpoint(id=checkpoint, purpose=purpose, triggered_at=draft.now)
    draft.emit(named("pending", name, number), "triggered", pending, incarnation=event.incarnation, due_at=due_at)
    moved = replace(known, next_checkpoint=checkpoint + 1)
    draft.emit(named("pipeline", name, number), "checkpointed", moved, incarnation=event.incarnation)
    completed = checkpoint_of(pipeline.checkpoint).id if pipeline.checkpoint else 0
    action = TriggerCheckpoint(checkpoint=checkpoint, completed=completed, purpose=purpose)
    for index, task in pipeline.tasks.items():
        if task.to in WORKING_TASK:
            draft.order(task, number, index, task_of(task).worker, action)


def acknowledge(draft: Draft, job: JobView, number: int, index: int, attempt: int, said: CheckpointAcked) -> None:
    """Each acknowledgement is an event of its own, at once."""
    pipeline = job.pipelines[number]
    pending = pipeline.pending
    if pending is None or pending.to != "TRIGGERED" or checkpoint_of(pending).id != said.checkpoint:
        draft.note(f"late ack of checkpoint {said.checkpoint} by task {number}/{index}")
        return
    if index in acks(pipeline, said.checkpoint):
        return  # the same again
    ack = Ack(
        checkpoint=said.checkpoint,
        task=index,
        attempt=attempt,
        position=said.position,
        staged=said.staged,
        acked_at=draft.now,
        rows=said.rows,
        bytes_read=said.bytes_read,
    )
    entity = named("ack", pending.job, number, index)
    draft.emit(entity, "acked", ack, incarnation=pending.incarnation, attempt=attempt)


def acks(pipeline: PipelineView, checkpoint: int) -> dict[int, Ack]:
    """What the attempts that run have acknowledged of this checkpoint."""
    found = {}
    for index, event in pipeline.acks.items():
        task = pipeline.tasks.get(index)
        current = task is not None and task.attempt == event.attempt
        if current and isinstance(event.state, Ack) and event.state.checkpoint == checkpoint:
            found[index] = event.state
    return found


def complete_when_all_acked(draft: Draft, job: JobView, number: int) -> None:
    """State-triggered: the last acknowledgement completes it, whoever leads."""
    pipeline = job.pipelines[number]
    pending = pipeline.pending
    if pending is None or pending.to != "TRIGGERED":
        return
    known = checkpoint_of(pending)
    gathered = acks(pipeline, known.id)
    if len(gathered) < pipeline.size:
        return
    point = committed_point(number, pipeline)
    done = replace(
        known,
        completed_at=draft.now,
        acks=tuple(gathered[index] for index in sorted(gathered)),
        before=(point,) if point.checkpoint else (),
        published_rows=published_rows(pipeline) + sum(p.rows for ack in gathered.values() for p in ack.staged),
    )
    draft.emit(named("checkpoint", pending.job, number), "completed", done, incarnation=pending.incarnation)
    slim = replace(known, completed_at=draft.now)
    draft.emit(named("pending", pending.job, number), "completed", slim, incarnation=pending.incarnation)


def committed_point(number: int, pipeline: PipelineView) -> RestorePoint:
    """The newest point whose output is published, to go on from without losing or doubling a row."""
    event = pipeline.checkpoint
    if event is not None and event.to == "COMMITTED":
        known = checkpoint_of(event)
        return RestorePoint(pipeline=number, checkpoint=known.id, positions=tuple(a.position for a in known.acks))
    before = checkpoint_of(event).before if event is not None else ()
    return before[0] if before else RestorePoint(pipeline=number, checkpoint=0)


def published_rows(pipeline: PipelineView) -> int:
    """Rows of the pipeline that this incarnation has published for sure."""
    if pipeline.checkpoint is None:
        return 0
    known = checkpoint_of(pipeline.checkpoint)
    open_rows = 0 if pipeline.checkpoint.to == "COMMITTED" else sum(p.rows for ack in known.acks for p in ack.staged)
    return known.published_rows - open_rows


def committers(draft: Draft, job: JobView, pipeline: PipelineView) -> list[str]:
    """Workers to choose from for publishing: those that have its tasks, else one with its labels. Once one has failed
    for good: those that were told before and may still be at it; only when there is none left can anybody's word be
    the last."""
    assert pipeline.checkpoint is not None
    known = checkpoint_of(pipeline.checkpoint)
    if known.refused and (at_it := holders(draft, pipeline)):
        return sorted(worker for worker in at_it if usable(draft.state, worker))
    here = sorted({task_of(t).worker for t in pipeline.tasks.values() if usable(draft.state, task_of(t).worker)})
    other = None if here else choose_worker(draft.state, job.plan.env.labels, ())
    return [other] if other else here


def holders(draft: Draft, pipeline: PipelineView) -> set[str]:
    """Workers that may still publish it: told to, not given up, and not failed for good."""
    assert pipeline.checkpoint is not None
    known = checkpoint_of(pipeline.checkpoint)
    lost = {worker for worker in known.held_by if is_lost(draft.state, worker)}
    return set(known.held_by) - set(known.refused_by) - lost


def order_commit(draft: Draft, job: JobView, number: int) -> None:
    """Have one worker publish what the completed checkpoint names. Asked again until it is reported."""
    pipeline = job.pipelines[number]
    event = pipeline.checkpoint
    assert event is not None
    known = checkpoint_of(event)
    among = committers(draft, job, pipeline)
    worker = among[known.tries % len(among)] if among else None
    policy = job.plan.env.commit
    wait = min(policy.backoff_ms << min(known.tries, 20), policy.max_backoff_ms) if worker else NOBODY_MS
    tries = known.tries + bool(worker)
    held = dict(zip(known.held_by, known.held_tries, strict=True)) | ({worker: tries} if worker else {})
    moved = replace(
        known,
        tries=tries,
        held_by=tuple(held),
        held_tries=tuple(held.values()),
        refused_by=tuple(other for other in known.refused_by if other != worker),  # asked again, its word is open
        reason=known.reason if worker else "no worker is there to publish it",
    )
    entity = named("checkpoint", event.job, number)
    draft.emit(entity, "ordered", moved, incarnation=event.incarnation, due_at=draft.now + wait)
    if worker is not None:
        staged = tuple(piece for ack in known.acks for piece in ack.staged)
        conclusive = known.refused and not holders(draft, pipeline) - {worker}
        said = draft.state.heard[worker].heartbeat
        action = CommitCheckpoint(checkpoint=known.id, specification=job.body, staged=staged, tries=tries,
                                  conclusive=conclusive, instance=said.instance, lease=said.lease)  # fmt: skip
        draft.order(event, number, COMMIT_TASK, worker, action)


def commit(draft: Draft, job: JobView, number: int, transition: str = "committed") -> None:
    """Its output is published: from now on this is history, and the next one is due."""
    pipeline = job.pipelines[number]
    event = pipeline.checkpoint
    assert event is not None
    known = checkpoint_of(event)
    withdraw_commit(draft, event, number)
    done = replace(
        known, committed_at=draft.now, held_by=(), held_tries=(), refused=False, refused_by=(), before=(), reason=""
    )
    draft.emit(named("checkpoint", event.job, number), transition, done, incarnation=event.incarnation)
    schedule_next(draft, job, number, failures=0)


def withdraw_commit(draft: Draft, event: Event, number: int) -> None:
    for worker in checkpoint_of(event).held_by:
        draft.withdraw(worker, event.job, number, COMMIT_TASK)


def give_up(draft: Draft, job: JobView, number: int, transition: str, reason: str) -> None:
    """It is not published and never will be: what it names goes with the staging."""
    event = job.pipelines[number].checkpoint
    assert event is not None
    withdraw_commit(draft, event, number)
    given_up = replace(checkpoint_of(event), held_by=(), held_tries=(), reason=reason)
    draft.emit(named("checkpoint", event.job, number), transition, given_up, incarnation=event.incarnation)


def schedule_next(draft: Draft, job: JobView, number: int, *, failures: int) -> None:
    """A running pipeline always has its next checkpoint due."""
    pipeline = job.pipelines[number]
    if pipeline.event is None or job.event is None or job.event.to in ("FAILING", "CANCELLING"):
        return  # nothing follows; of a quarantined job the pipeline itself may not be known
    event, known = pipeline_of(pipeline)
    if event.to == "RUNNING":
        due_at = draft.now + job.plan.env.checkpoint.interval_ms
        moved = replace(known, failures=failures)
        entity = named("pipeline", event.job, number)
        draft.emit(entity, "delayed", moved, incarnation=event.incarnation, due_at=due_at)


def abort(
    draft: Draft, job: JobView, number: int, reason: str, *, count: bool = True, transition: str = "aborted"
) -> int:
    """Give the checkpoint in flight up; the next is due. Returns how many have failed in a row."""
    pipeline = job.pipelines[number]
    pending = pipeline.pending
    assert pending is not None
    gone = replace(checkpoint_of(pending), reason=reason)
    draft.emit(named("pending", pending.job, number), transition, gone, incarnation=pending.incarnation)
    failures = pipeline_of(pipeline)[1].failures + count
    schedule_next(draft, job, number, failures=failures)
    return failures
