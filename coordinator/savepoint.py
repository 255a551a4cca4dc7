"""Savepoints: a point of every pipeline under a name, to restore from. One is asked for at once and taken as each
pipeline commits its next checkpoint; the job goes on, or ends with it.

Pure decisions over a Draft.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinator.checkpoint import committed_point, is_uncommitted, pipeline_of
from coordinator.draft import Draft
from coordinator.state import JobView, PipelineView
from events.keys import named
from events.records import Event, Savepoint


def savepoint_of(event: Event) -> Savepoint:
    assert isinstance(event.state, Savepoint)
    return event.state


def begin_savepoint(draft: Draft, job: JobView, savepoint: str) -> None:
    """Only checkpoints that are triggered from now on count: a savepoint holds what was so when it was asked for."""
    assert job.event is not None
    after = tuple(pipeline_of(p)[1].next_checkpoint - 1 for _, p in sorted(job.pipelines.items()))
    begun = Savepoint(name=savepoint, begun_at=draft.now, after=after)
    draft.emit(named("savepoint", job.event.job, savepoint), "begun", begun, incarnation=job.event.incarnation)


def is_kept(job: JobView, savepoint: str) -> bool:
    event = job.savepoints.get(savepoint)
    return event is not None and event.to == "KEPT"


def wants_point(job: JobView, number: int) -> bool:
    """Whether a savepoint that is being taken lacks this pipeline."""
    return any(
        number not in {point.pipeline for point in savepoint_of(event).points}
        for event in job.savepoints.values()
        if event.to == "TAKING"
    )


def add_points(draft: Draft, job: JobView) -> None:
    """State-triggered: every pipeline that has committed since adds its point; the last one completes the savepoint."""
    for savepoint, event in sorted(job.savepoints.items()):
        if event.to != "TAKING":
            continue
        known = savepoint_of(event)
        points = {point.pipeline: point for point in known.points}
        for number, pipeline in sorted(job.pipelines.items()):
            if number not in points and _counts(pipeline, known.after[number]):
                points[number] = committed_point(number, pipeline)
        if len(points) == len(known.points):
            continue
        kept = len(points) == len(job.pipelines)
        in_order = tuple(points[number] for number in sorted(points))
        moved = replace(known, points=in_order, kept_at=draft.now if kept else 0)
        draft.emit(named("savepoint", event.job, savepoint), "kept" if kept else "added", moved,
                   incarnation=event.incarnation)  # fmt: skip


def _counts(pipeline: PipelineView, after: int) -> bool:
    """A pipeline that stands still is where its committed checkpoint is, however old."""
    if pipeline.checkpoint is None or is_uncommitted(pipeline):
        return False
    still = pipeline.event is not None and pipeline.event.to in ("FINISHED", "SUSPENDED")
    return still or committed_point(0, pipeline).checkpoint > after


def fail_savepoints(draft: Draft, job: JobView, name: str) -> None:
    """The job has ended: what is not taken by now never will be."""
    for savepoint, event in sorted(job.savepoints.items()):
        if event.to == "TAKING":
            missed = replace(savepoint_of(event), reason="the job ended before it was taken")
            draft.emit(named("savepoint", name, savepoint), "failed", missed, incarnation=event.incarnation)
