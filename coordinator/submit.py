"""A new job, with a new incarnation: created whole, in one transaction; from the beginning, or from kept points.

Pure decisions over a Draft.
"""

from __future__ import annotations

from coordinator.draft import Draft
from coordinator.specification import FORMAT, plan
from events.keys import named
from events.outcomes import digest
from events.records import Ack, Checkpoint, Job, Pipeline, RestorePoint, Specification, Task


def submit(draft: Draft, name: str, body: str, by: str) -> str:
    return f"incarnation {create(draft, name, body, by)}"


def create(draft: Draft, name: str, body: str, by: str, points: tuple[RestorePoint, ...] = (), origin: str = "") -> int:
    """Returns the incarnation. Raises SpecificationError."""
    planned = plan(body)
    incarnation = draft.state.incarnations + 1
    kept = Specification(format=FORMAT, body=body, digest=digest(body), submitted_by=by)
    draft.emit(named("specification", name), "kept", kept, incarnation=incarnation)
    job = Job(pipelines=len(planned.tasks), submitted_at=draft.now, origin=origin)
    draft.emit(named("job", name), "restored" if points else "submitted", job, incarnation=incarnation)
    from_point = {point.pipeline: point for point in points}
    for number, tasks in enumerate(planned.tasks):
        point = from_point.get(number, RestorePoint(pipeline=number, checkpoint=0))
        pipeline = Pipeline(tasks=tasks, next_checkpoint=point.checkpoint + 1)
        draft.emit(named("pipeline", name, number), "created", pipeline, incarnation=incarnation)
        if point.positions:
            draft.emit(named("checkpoint", name, number), "restored", _restored(point), incarnation=incarnation)
        for index in range(tasks):
            task = Task(since=draft.now)
            draft.emit(named("task", name, number, index), "created", task, incarnation=incarnation, attempt=1)
    return incarnation


def _restored(point: RestorePoint) -> Checkpoint:
    """A checkpoint that the tasks of the new incarnation start from, as they would from one of its own."""
    acks = tuple(
        Ack(checkpoint=point.checkpoint, task=index, attempt=0, position=position, acked_at=0)
        for index, position in enumerate(point.positions)
    )
    return Checkpoint(id=point.checkpoint, purpose="RESTORED", triggered_at=0, acks=acks)
