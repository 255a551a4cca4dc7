"""A stuck job is corrected by an event that says who and why, never by editing state. What a person may decide, and
nothing else, is in REPAIRS.

Pure decisions over a Draft.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinator.checkpoint import abort, commit, give_up
from coordinator.draft import Draft
from coordinator.ending import cancel_tasks, cleanup_of, finish_cleanup, job_of
from coordinator.errors import Refused
from coordinator.failure import fail_task
from coordinator.lifecycle import ENDING_JOB, allows
from coordinator.state import JobView, entity_of
from events.errors import UnreadableKey
from events.keys import Entity, parse
from events.records import Event, Repair

# What a person may move to where: the transition, and what it means.
REPAIRS = {
    ("job", "FAILING"): ("repaired", "it can't go on and is to end"),
    ("task", "FAILED"): ("repaired", "its attempt is to be fenced and started anew"),
    ("pending", "ABORTED"): ("repaired", "the checkpoint in flight is to be given up"),
    ("checkpoint", "COMMITTED"): ("repaired", "its output is published, whatever the workers say"),
    ("checkpoint", "ABANDONED"): ("dropped", "its output is not published and not to be; the job must be ending"),
    ("cleanup", "REMOVED"): ("repaired", "what it left in staging was removed by hand, or may stay"),
}


def repair(draft: Draft, name: str, action: Repair, by: str) -> str:
    if not by or not action.reason:
        raise Refused("a repair says who makes it and why")
    entity = _entity(name, action)
    event = draft.state.get(entity)
    if event is None:
        raise Refused(f"{action.entity} is not there")
    transition, _ = REPAIRS[entity.kind, action.to]
    job = draft.state.jobs[name]
    if not allows(entity.kind, transition, event.to):
        raise Refused(f"{action.entity} is {event.to}: that can't be repaired")
    if transition == "dropped" and job_of(job)[0].to not in ENDING_JOB:
        raise Refused(f"{name} still runs on top of {action.entity}; end the job first")
    reason = f"repaired by {by}: {action.reason}"
    draft.cause = replace(draft.cause, note=reason)
    _carry_out(draft, job, entity, event, transition, reason)
    return f"{action.entity} is {action.to}"


def _entity(name: str, action: Repair) -> Entity:
    may = "; ".join(f"{kind} to {to} ({meaning})" for (kind, to), (_, meaning) in REPAIRS.items())
    try:
        entity = parse(action.entity.encode(errors="replace"))
    except UnreadableKey as error:
        raise Refused(f"{error}. What can be repaired: {may}") from error
    if (entity.kind, action.to) not in REPAIRS:
        raise Refused(f"a {entity.kind} can't be repaired to {action.to}. What can be: {may}")
    if entity.job != name:
        raise Refused(f"{action.entity} does not belong to {name}")
    return entity


def _carry_out(draft: Draft, job: JobView, entity: Entity, event: Event, transition: str, reason: str) -> None:
    number = int(entity.parts[1]) if len(entity.parts) > 1 else 0
    if entity.kind == "job":
        draft.emit(entity, "repaired", replace(job_of(job)[1], reason=reason), incarnation=event.incarnation)
        cancel_tasks(draft, event.job, reason)
    elif entity.kind == "task":
        fail_task(draft, (event.job, number, int(entity.parts[2])), reason, stop=True, transition="repaired")
    elif entity.kind == "pending":
        abort(draft, job, number, reason, count=False, transition="repaired")
    elif transition == "dropped":
        give_up(draft, job, number, transition, reason)
    elif entity.kind == "checkpoint":
        commit(draft, job, number, transition)
    else:
        repaired = draft.emit(entity_of(event.entity), "repaired", replace(cleanup_of(event), reason=reason),
                              incarnation=event.incarnation)  # fmt: skip
        finish_cleanup(draft, repaired)
