"""A stuck job is corrected by an event that says who and why, never by editing state. What a person may decide, and
nothing else, is in REPAIRS.

Pure decisions over a Draft.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinator.checkpoint import abort, checkpoint_of, commit, is_uncommitted
from coordinator.deploy import task_of
from coordinator.draft import Draft
from coordinator.ending import cancel_tasks, cleanup_of, finish_cleanup, job_of
from coordinator.errors import Refused
from coordinator.failure import fail_task
from coordinator.lifecycle import allows
from coordinator.state import JobView, entity_of
from events.errors import UnreadableKey
from events.keys import Entity, parse
from events.records import Event, Repair

# What a person may move to where, and what it means.
REPAIRS = {
    "job": ("FAILING", "it can't go on and is to end"),
    "task": ("FAILED", "its attempt is to be fenced and started anew"),
    "pending": ("ABORTED", "the checkpoint in flight is to be given up"),
    "checkpoint": ("COMMITTED", "its output was published by hand, or is not wanted"),
    "cleanup": ("REMOVED", "what it left in staging was removed by hand, or may stay"),
}


def repair(draft: Draft, name: str, action: Repair, by: str) -> str:
    if not by or not action.reason:
        raise Refused("a repair says who makes it and why")
    entity = _entity(name, action)
    event = draft.state.get(entity)
    if event is None:
        raise Refused(f"{action.entity} is not there")
    if not allows(entity.kind, "repaired", event.to):
        raise Refused(f"{action.entity} is {event.to}: that can't be repaired")
    reason = f"repaired by {by}: {action.reason}"
    draft.cause = replace(draft.cause, note=reason)
    _carry_out(draft, draft.state.jobs[name], entity, event, reason)
    return f"{action.entity} is {action.to}"


def _entity(name: str, action: Repair) -> Entity:
    may = "; ".join(f"{kind} to {to} ({meaning})" for kind, (to, meaning) in REPAIRS.items())
    try:
        entity = parse(action.entity.encode(errors="replace"))
    except UnreadableKey as error:
        raise Refused(f"{error}. What can be repaired: {may}") from error
    if entity.kind not in REPAIRS or action.to != REPAIRS[entity.kind][0]:
        raise Refused(f"a {entity.kind} can't be repaired to {action.to}. What can be: {may}")
    if entity.job != name:
        raise Refused(f"{action.entity} does not belong to {name}")
    return entity


def _carry_out(draft: Draft, job: JobView, entity: Entity, event: Event, reason: str) -> None:
    number = int(entity.parts[1]) if len(entity.parts) > 1 else 0
    if entity.kind == "job":
        draft.emit(entity, "repaired", replace(job_of(job)[1], reason=reason), incarnation=event.incarnation)
        cancel_tasks(draft, event.job, reason)
    elif entity.kind == "task":
        task_of(event)
        fail_task(draft, (event.job, number, int(entity.parts[2])), reason, stop=True, transition="repaired")
    elif entity.kind == "pending":
        abort(draft, job, number, reason, count=False, transition="repaired")
    elif entity.kind == "checkpoint":
        assert is_uncommitted(job.pipelines[number]), checkpoint_of(event)
        commit(draft, job, number, "repaired")
    else:
        repaired = draft.emit(entity_of(event.entity), "repaired", replace(cleanup_of(event), reason=reason),
                              incarnation=event.incarnation)  # fmt: skip
        finish_cleanup(draft, repaired)
