"""One unreadable record or one impossible job must not stop a shard: that job ends, with the reason, and all others go
on. What can't be read is never taken for what stood there before, nor for nothing.

Pure decisions over a Draft.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from coordinator.draft import Draft
from coordinator.ending import cancel_tasks, job_of
from coordinator.lifecycle import ENDING_JOB, TERMINAL_JOB
from coordinator.state import JobView
from events.keys import WITHOUT_JOB, Entity, named
from events.records import Cleanup, Event, Job


class Unreadable(NamedTuple):
    """An entity whose newest record can't be read: its bytes are in dead letters. Its incarnation, or 0 if unknown."""

    entity: Entity
    incarnation: int
    reason: str


class Impossible(NamedTuple):
    """A job that can't be decided on: a fault of ours, or of what is on the log."""

    job: str
    reason: str


def set_aside(draft: Draft, given: Unreadable) -> None:
    """The record goes, and with it the job that it belongs to: its state is not known any more."""
    entity = given.entity
    draft.note(f"{entity.text} can't be read: {given.reason}")
    draft.forget_unreadable(entity, given.incarnation or draft.state.incarnations)
    if entity.kind == "cleanup":
        promise_again(draft, entity)
    elif entity.kind not in WITHOUT_JOB | {"summary"}:
        quarantine(draft, Impossible(entity.job, f"{entity.text} can't be read: {given.reason}"))


def promise_again(draft: Draft, entity: Entity) -> None:
    """A promise of cleanup is all in its key: whose staging is to go. Of a job that still stands, its state calls for
    one by itself; one of the same id that was restored since is another's."""
    owner = int(entity.parts[1])
    job = draft.state.jobs.get(entity.job)
    if job is None or job.event is None or job.event.incarnation != owner:
        draft.emit(entity, "promised", Cleanup(owner=owner, ended=""), incarnation=owner, due_at=draft.now)


def quarantine(draft: Draft, given: Impossible) -> None:
    job = draft.state.jobs.get(given.job)
    incarnation = max((event.incarnation for event in _events(job)), default=0) if job else 0
    if job is None or not incarnation:
        draft.note(f"nothing else is known of {given.job}")
        return
    if job.event is not None and job.event.to in TERMINAL_JOB:
        return
    known = job_of(job)[1] if job.event else Job(pipelines=len(job.pipelines), submitted_at=draft.now)
    if known.quarantined:
        return
    reason = f"quarantined: {given.reason}"
    if job.event is not None and job.event.to in ENDING_JOB:  # it still ends, but nobody may go on from what it left
        reason = f"{known.reason}; {reason}"
    draft.emit(
        named("job", given.job),
        "quarantined",
        replace(known, quarantined=True, reason=reason),
        incarnation=incarnation,
    )
    cancel_tasks(draft, given.job, reason)


def _events(job: JobView) -> list[Event]:
    """All that is known of the job itself; not what incarnations before it left."""
    found = [job.event, job.specification, *job.commands.values(), *job.savepoints.values()]
    for pipeline in job.pipelines.values():
        found += [pipeline.event, pipeline.pending, pipeline.checkpoint]
        found += [*pipeline.tasks.values(), *pipeline.ready.values(), *pipeline.acks.values()]
    return [event for event in found if event is not None]
