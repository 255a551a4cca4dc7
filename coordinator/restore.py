"""Running an ended job again from where it was: from a savepoint, or from its newest committed checkpoint. All that it
takes is in the job's summary, which outlives its cleanup.

It is a new incarnation. What the ended one left in staging is still removed, by the cleanup that it owns.

Pure decisions over a Draft.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinator.draft import Draft
from coordinator.ending import delete_job, promise_cleanup
from coordinator.errors import Refused
from coordinator.lifecycle import TERMINAL_JOB
from coordinator.specification import plan
from coordinator.state import State
from coordinator.submit import create
from events.records import Restore, RestorePoint, Summary


def restore(draft: Draft, name: str, action: Restore, by: str) -> str:
    job = draft.state.jobs.get(name)
    if job is not None and job.event is not None and job.event.to not in TERMINAL_JOB:
        raise Refused(f"{name} is {job.event.to}; only a job that has ended is restored")
    incarnation, summary = _ended(draft.state, name, action.savepoint)
    points, origin = _points(name, summary, action.savepoint)
    body = action.specification or summary.specification
    if not body:
        raise Refused(f"the specification of {name} is not kept; give it with the command")
    points = _elsewhere(points, action)
    _check_fit(points, plan(body).tasks)
    if job is not None and job.event is not None:
        promise_cleanup(draft, name)  # as a rule it is promised since the end: what is staged is still to be removed
        delete_job(draft, name)
    origin += f" of incarnation {incarnation}" + (", with positions that the command names" if action.elsewhere else "")
    created = create(draft, name, body, by, points, origin)
    return f"incarnation {created}, from {origin}"


def _ended(state: State, name: str, savepoint: str) -> tuple[int, Summary]:
    """The newest incarnation that has it."""
    for incarnation, event in sorted(state.summaries.get(name, {}).items(), reverse=True):
        assert isinstance(event.state, Summary)
        if not savepoint or any(kept.name == savepoint for kept in event.state.savepoints):
            return incarnation, event.state
    kept = sorted(
        one.name
        for event in state.summaries.get(name, {}).values()
        if isinstance(event.state, Summary)
        for one in event.state.savepoints
    )
    if savepoint and kept:
        raise Refused(f"{name} has no savepoint {savepoint}; it has {', '.join(kept)}")
    if savepoint:
        raise Refused(f"{name} has no savepoint {savepoint}, nor any other")
    raise Refused(f"nothing is kept of {name}: no job of that id has ended here within its history")


def _points(name: str, summary: Summary, savepoint: str) -> tuple[tuple[RestorePoint, ...], str]:
    if savepoint:
        kept = next(one for one in summary.savepoints if one.name == savepoint)
        return kept.points, f"savepoint {savepoint}"
    if not summary.points:
        raise Refused(f"{name} has ended as {summary.reason} and has nothing left to go on with; submit it anew")
    if not any(point.checkpoint for point in summary.points):
        raise Refused(f"{name} never committed a checkpoint: there is nothing to go on from; submit it anew")
    return summary.points, "checkpoint " + ", ".join(str(point.checkpoint) for point in summary.points)


def _elsewhere(points: tuple[RestorePoint, ...], action: Restore) -> tuple[RestorePoint, ...]:
    """With the positions that the command names in place of the kept ones."""
    found = {point.pipeline: list(point.positions) for point in points}
    for other in action.elsewhere:
        positions = found.get(other.pipeline)
        if positions is None or not 0 <= other.task < len(positions):
            raise Refused(f"it has no task {other.pipeline}/{other.task} to start elsewhere")
        positions[other.task] = other.position
    return tuple(replace(point, positions=tuple(found[point.pipeline])) for point in points)


def _check_fit(points: tuple[RestorePoint, ...], tasks: tuple[int, ...]) -> None:
    """Positions are the tasks' own: a job of another shape can't go on from them."""
    if len(points) != len(tasks):
        raise Refused(f"what is kept has {len(points)} pipelines, the specification {len(tasks)}")
    for point, wanted in zip(points, tasks, strict=True):
        if point.checkpoint and len(point.positions) != wanted:
            raise Refused(
                f"what is kept has {len(point.positions)} tasks in pipeline {point.pipeline}, the specification "
                f"{wanted}: restore it with the parallelism it had"
            )
