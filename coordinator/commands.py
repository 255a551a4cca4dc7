"""What services ask for. Every command gets exactly one outcome, on the log, under the id that the client chose: asking
again is answered by it, and the same id with other content is refused.

Pure decisions over a Draft.
"""

from __future__ import annotations

import msgspec

from coordinator.draft import Draft
from coordinator.ending import cancel_job, job_of
from coordinator.errors import Refused
from coordinator.lifecycle import TERMINAL_JOB, allows
from coordinator.repair import repair
from coordinator.restore import restore
from coordinator.savepoint import begin_savepoint
from coordinator.specification import SpecificationError
from coordinator.state import State
from coordinator.submit import submit
from coordinator.words import short, shortened
from events.errors import UnreadableKey
from events.keys import Entity, named
from events.outcomes import conflict_entity, digest_of, outcome_entity
from events.records import (
    Cancel,
    Command,
    Outcome,
    Pause,
    Repair,
    Restore,
    Stop,
    Submit,
    Summary,
    TakeSavepoint,
)

OUTCOME_MS = 86_400_000
GOING = frozenset({"CREATED", "SCHEDULED", "RUNNING", "PAUSED"})


def obey(draft: Draft, command: Command) -> None:
    """Carry a command out, or refuse it with a reason. Either way its outcome is decided, once."""
    try:
        entity = outcome_entity(command)
    except UnreadableKey as error:
        draft.note(f"a command without a usable job or id is dropped: {error}")
        return
    content = digest_of(command)
    known = draft.state.get(entity)
    if known is not None:
        assert isinstance(known.state, Outcome)
        if known.state.digest == content:
            return
        entity, conflict = conflict_entity(command), known.state
        if draft.state.get(entity) is not None:
            return
    else:
        conflict = None
    if _was_given(draft.state, command):
        draft.note(f"a late copy of command {command.id}, which an ended {command.job} was given")
        return
    command = msgspec.structs.replace(command, by=short(command.by), action=shortened(command.action))
    try:
        if conflict is not None:
            raise Refused(
                f"the id {command.id} was used by {conflict.by or 'somebody'} for another command ({conflict.action}), "
                "which stands; choose another id"
            )
        _check_free(draft.state, command)
        reason, transition = _carry_out(draft, command), "accepted"
    except (Refused, SpecificationError) as refused:
        reason, transition = str(refused), "refused"
    answer(draft, command, entity, content, transition, reason)


def answer(draft: Draft, command: Command, entity: Entity, content: str, transition: str, reason: str) -> None:
    job = draft.state.jobs.get(command.job)
    incarnation = job.event.incarnation if job and job.event else 0
    action = type(command.action).__name__
    outcome = Outcome(digest=content, action=action, by=short(command.by), reason=short(reason))
    # An outcome goes with its job; where there is none it has an end of its own.
    due_at = 0 if incarnation else draft.now + OUTCOME_MS
    draft.emit(entity, transition, outcome, incarnation=incarnation, due_at=due_at)


def refuse(draft: Draft, command: Command, reason: str) -> None:
    """A command that can't be carried out, through no fault of what it says: it has its outcome all the same."""
    entity = outcome_entity(command)
    if draft.state.get(entity) is None:
        answer(draft, command, entity, digest_of(command), "refused", reason)


def _was_given(state: State, command: Command) -> bool:
    """Outcomes go with their job; the summary remembers the commands, so that a late copy of one is not a new one."""
    ended = state.summaries.get(command.job, {}).values()
    return any(command.id in event.state.commands for event in ended if isinstance(event.state, Summary))


def _check_free(state: State, command: Command) -> None:
    """A submission needs a free id; anything else needs the job."""
    name, job = command.job, state.jobs.get(command.job)
    if job is None or job.event is None:
        if not isinstance(command.action, Submit | Restore | Repair):
            raise Refused(f"there is no job {name}")
    elif isinstance(command.action, Submit):
        if job.event.to in TERMINAL_JOB and job.cleanup is not None:
            raise Refused(
                f"{name} has ended ({job.event.to}) and is free again at {job.cleanup.due_at} at the earliest"
            )
        raise Refused(f"{name} is there already ({job.event.to})")


def _carry_out(draft: Draft, command: Command) -> str:
    """Returns what it led to, in a sentence."""
    action, name = command.action, command.job
    if isinstance(action, Submit):
        return submit(draft, name, action.specification, command.by)
    if isinstance(action, Restore):
        return restore(draft, name, action, command.by)
    if isinstance(action, Repair):
        return repair(draft, name, action, command.by)
    job = draft.state.jobs[name]
    event, known = job_of(job)
    if isinstance(action, Cancel):
        _move(event.to, "cancelling")
        cancel_job(draft, name, action.reason or f"canceled by {command.by or 'a command'}")
        return "it is being canceled"
    if isinstance(action, TakeSavepoint):
        return take_savepoint(draft, name, action)
    if isinstance(action, Stop | Pause):
        transition = "draining" if isinstance(action, Stop) else "pausing"
        _move(event.to, transition)
        state = msgspec.structs.replace(known, reason=action.reason)
        draft.emit(named("job", name), transition, state, incarnation=event.incarnation)
        return f"it is {transition}"
    _move(event.to, "resumed")
    return resume(draft, name)


def take_savepoint(draft: Draft, name: str, action: TakeSavepoint) -> str:
    """Asked for at once, taken with the next checkpoint of every pipeline."""
    job = draft.state.jobs[name]
    event, known = job_of(job)
    try:
        entity = named("savepoint", name, action.name)
    except UnreadableKey as error:
        raise Refused(f"a savepoint needs a name: {error}") from error
    if draft.state.get(entity) is not None:
        raise Refused(f"{name} has a savepoint {action.name} already")
    if action.stop:
        _move(event.to, "savepointing")
    elif event.to not in GOING:
        raise Refused(f"a job that is {event.to} can't take a savepoint")
    begin_savepoint(draft, job, action.name)
    if not action.stop:
        return f"savepoint {action.name} is being taken"
    state = msgspec.structs.replace(known, savepoint=action.name, reason="ends with a savepoint")
    draft.emit(named("job", name), "savepointing", state, incarnation=event.incarnation)
    return f"it ends with savepoint {action.name}"


def _move(state: str, transition: str) -> None:
    if not allows("job", transition, state):
        raise Refused(f"a job that is {state} can't be {transition}")


def resume(draft: Draft, name: str) -> str:
    job = draft.state.jobs[name]
    event, known = job_of(job)
    state = msgspec.structs.replace(known, reason="")
    draft.emit(named("job", name), "resumed", state, incarnation=event.incarnation)
    for number, pipeline in job.pipelines.items():
        assert pipeline.event is not None
        if pipeline.event.to != "SUSPENDED":
            continue
        draft.emit(named("pipeline", name, number), "resumed", pipeline.event.state, incarnation=event.incarnation)
        for index, task in list(pipeline.tasks.items()):
            if task.to == "SUSPENDED":
                draft.emit(named("task", name, number, index), "resumed", task.state, incarnation=event.incarnation,
                           attempt=task.attempt + 1)  # fmt: skip
    return "it goes on from its last checkpoint"
