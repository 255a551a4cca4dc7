"""Checkpoints: triggered, acknowledged by every task, completed (the decision, durable), committed (its output is
published; repeated until it has happened). At most one is in flight per pipeline, and its deadline is on the log.

Pure decisions over a Draft.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinator.deploy import choose_worker, task_of, usable
from coordinator.draft import Draft
from coordinator.lifecycle import WORKING_TASK
from coordinator.state import JobView, PipelineView
from events.keys import Entity
from events.records import Ack, Checkpoint, CheckpointAcked, CommitCheckpoint, Event, Pipeline, TriggerCheckpoint

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
    draft.emit(Entity("pending", (name, number)), "triggered", pending, incarnation=event.incarnation, due_at=due_at)
    moved = replace(known, next_checkpoint=checkpoint + 1)
    draft.emit(Entity("pipeline", (name, number)), "checkpointed", moved, incarnation=event.incarnation)
    completed = checkpoint_of(pipeline.checkpoint).id if pipeline.checkpoint else 0
    action = TriggerCheckpoint(checkpoint=checkpoint, completed=completed, purpose=purpose)
    for index, task in pipeline.tasks.items():
        if task.to in WORKING_TASK:
            draft.order(job, number, index, task.attempt, task_of(task).worker, action)


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
    )
    entity = Entity("ack", (pending.job, number, index))
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
    done = replace(known, completed_at=draft.now, acks=tuple(gathered[index] for index in sorted(gathered)))
    draft.emit(Entity("checkpoint", (pending.job, number)), "completed", done, incarnation=pending.incarnation)
    slim = replace(known, completed_at=draft.now)
    draft.emit(Entity("pending", (pending.job, number)), "completed", slim, incarnation=pending.incarnation)


def order_commit(draft: Draft, job: JobView, number: int) -> None:
    """Have one worker publish what the completed checkpoint names. Asked again until it is reported."""
    pipeline = job.pipelines[number]
    event = pipeline.checkpoint
    assert event is not None
    known = checkpoint_of(event)
    here = sorted({task_of(t).worker for t in pipeline.tasks.values() if usable(draft.state, task_of(t).worker)})
    worker = here[known.tries % len(here)] if here else choose_worker(draft.state, {}, ())
    policy = job.plan.env.commit
    wait = min(policy.backoff_ms << min(known.tries, 20), policy.max_backoff_ms) if worker else NOBODY_MS
    held = known.held_by if worker is None or worker in known.held_by else (*known.held_by, worker)
    reason = known.reason if worker else "no worker is there to publish it"
    moved = replace(known, tries=known.tries + bool(worker), held_by=held, reason=reason)
    entity = Entity("checkpoint", (event.job, number))
    draft.emit(entity, "ordered", moved, incarnation=event.incarnation, due_at=draft.now + wait)
    if worker is not None:
        staged = tuple(piece for ack in known.acks for piece in ack.staged)
        action = CommitCheckpoint(checkpoint=known.id, specification=job.body, staged=staged)
        draft.order(job, number, COMMIT_TASK, 0, worker, action)


def commit(draft: Draft, job: JobView, number: int) -> None:
    """Its output is published: from now on this is history, and the next one is due."""
    pipeline = job.pipelines[number]
    event = pipeline.checkpoint
    assert event is not None
    known = checkpoint_of(event)
    for worker in known.held_by:
        draft.withdraw(worker, event.job, number, COMMIT_TASK)
    done = replace(known, committed_at=draft.now, held_by=(), reason="")
    draft.emit(Entity("checkpoint", (event.job, number)), "committed", done, incarnation=event.incarnation)
    schedule_next(draft, job, number, failures=0)


def schedule_next(draft: Draft, job: JobView, number: int, *, failures: int) -> None:
    """A running pipeline always has its next checkpoint due."""
    pipeline = job.pipelines[number]
    event, known = pipeline_of(pipeline)
    if event.to == "RUNNING" and job.event is not None and job.event.to not in ("FAILING", "CANCELLING"):
        due_at = draft.now + job.plan.env.checkpoint.interval_ms
        moved = replace(known, failures=failures)
        entity = Entity("pipeline", (event.job, number))
        draft.emit(entity, "delayed", moved, incarnation=event.incarnation, due_at=due_at)


def abort(draft: Draft, job: JobView, number: int, reason: str, *, count: bool = True) -> int:
    """Give the checkpoint in flight up; the next is due. Returns how many have failed in a row."""
    pipeline = job.pipelines[number]
    pending = pipeline.pending
    assert pending is not None
    gone = replace(checkpoint_of(pending), reason=reason)
    draft.emit(Entity("pending", (pending.job, number)), "aborted", gone, incarnation=pending.incarnation)
    failures = pipeline_of(pipeline)[1].failures + count
    schedule_next(draft, job, number, failures=failures)
    return failures
