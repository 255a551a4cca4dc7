"""What services ask for. Every command gets exactly one outcome, on the log, under the id that the client chose: asking
again is answered by it, and the same id with other content is refused.

Pure decisions over a Draft.
"""

from __future__ import annotations

import msgspec

from coordinator.draft import Draft, digest
from coordinator.ending import cancel_job, job_of
from coordinator.lifecycle import TERMINAL_JOB, allows
from coordinator.specification import FORMAT, SpecificationError, plan
from coordinator.state import State
from events.errors import UnreadableKey
from events.keys import Entity
from events.records import (
    Cancel,
    Command,
    Job,
    Outcome,
    Pause,
    Pipeline,
    Resume,
    Specification,
    Stop,
    Submit,
    Summary,
    TakeSavepoint,
    Task,
)

OUTCOME_MS = 86_400_000


class Refused(Exception):
    """A command that is not carried out, and why."""


def obey(draft: Draft, command: Command) -> None:
    """Carry a command out, or refuse it with a reason. Either way its outcome is decided, once."""
    try:
        entity = Entity("command", (command.job, command.id))
    except UnreadableKey as error:
        draft.note(f"a command without a usable job or id is dropped: {error}")
        return
    content = digest(command.job, msgspec.json.encode(command.action).decode())
    known = draft.state.get(entity)
    if known is not None:
        assert isinstance(known.state, Outcome)
        if known.state.digest != content:
            draft.note(f"command {command.id} was sent again with other content: the first one counts")
        return
    if _was_given(draft.state, command):
        draft.note(f"a late copy of command {command.id}, which an ended {command.job} was given")
        return
    action = type(command.action).__name__
    try:
        _check_free(draft.state, command)
        reason, transition = _carry_out(draft, command), "accepted"
    except (Refused, SpecificationError) as refused:
        reason, transition = str(refused), "refused"
    job = draft.state.jobs.get(command.job)
    incarnation = job.event.incarnation if job and job.event else 0
    outcome = Outcome(digest=content, action=action, by=command.by, reason=reason)
    # An outcome goes with its job; where there is none it has an end of its own.
    due_at = 0 if incarnation else draft.now + OUTCOME_MS
    draft.emit(entity, transition, outcome, incarnation=incarnation, due_at=due_at)


def _was_given(state: State, command: Command) -> bool:
    """Outcomes go with their job; the summary remembers the commands, so that a late copy of one is not a new one."""
    ended = state.summaries.get(command.job, {}).values()
    return any(command.id in event.state.commands for event in ended if isinstance(event.state, Summary))


def _check_free(state: State, command: Command) -> None:
    """A submission needs a free id; anything else needs the job."""
    name, job = command.job, state.jobs.get(command.job)
    if job is None or job.event is None:
        if not isinstance(command.action, Submit):
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
    job = draft.state.jobs[name]
    event, known = job_of(job)
    if isinstance(action, Cancel):
        _move(event.to, "cancelling")
        cancel_job(draft, name, action.reason or f"canceled by {command.by or 'a command'}")
        return "it is being canceled"
    if isinstance(action, TakeSavepoint):
        if not action.name:
            raise Refused("a savepoint needs a name")
        if not action.stop:
            raise Refused("a savepoint that lets the job go on is not possible yet in this version")
        _move(event.to, "savepointing")
        state = msgspec.structs.replace(known, savepoint=action.name, reason="ends with a savepoint")
        draft.emit(Entity("job", (name,)), "savepointing", state, incarnation=event.incarnation)
        return f"it ends with savepoint {action.name}"
    if isinstance(action, Stop) and not action.drain:
        raise Refused("stopping without draining is not possible yet in this version; cancel does it")
    if isinstance(action, Stop | Pause):
        transition = "draining" if isinstance(action, Stop) else "pausing"
        _move(event.to, transition)
        state = msgspec.structs.replace(known, reason=action.reason)
        draft.emit(Entity("job", (name,)), transition, state, incarnation=event.incarnation)
        return f"it is {transition}"
    if isinstance(action, Resume):
        _move(event.to, "resumed")
        return resume(draft, name)
    raise Refused(f"{type(action).__name__} is not possible yet in this version")


def _move(state: str, transition: str) -> None:
    if not allows("job", transition, state):
        raise Refused(f"a job that is {state} can't be {transition}")


def submit(draft: Draft, name: str, body: str, by: str) -> str:
    """A new job, with a new incarnation: created whole, in one transaction."""
    planned = plan(body)
    incarnation = draft.state.incarnations + 1
    kept = Specification(format=FORMAT, body=body, digest=digest(body), submitted_by=by)
    draft.emit(Entity("specification", (name,)), "kept", kept, incarnation=incarnation)
    job = Job(pipelines=len(planned.tasks), submitted_at=draft.now)
    draft.emit(Entity("job", (name,)), "submitted", job, incarnation=incarnation)
    for number, tasks in enumerate(planned.tasks):
        draft.emit(Entity("pipeline", (name, number)), "created", Pipeline(tasks=tasks), incarnation=incarnation)
        for index in range(tasks):
            task = Task(since=draft.now)
            draft.emit(Entity("task", (name, number, index)), "created", task, incarnation=incarnation, attempt=1)
    return f"incarnation {incarnation}"


def resume(draft: Draft, name: str) -> str:
    job = draft.state.jobs[name]
    event, known = job_of(job)
    state = msgspec.structs.replace(known, reason="")
    draft.emit(Entity("job", (name,)), "resumed", state, incarnation=event.incarnation)
    for number, pipeline in job.pipelines.items():
        assert pipeline.event is not None
        if pipeline.event.to != "SUSPENDED":
            continue
        draft.emit(Entity("pipeline", (name, number)), "resumed", pipeline.event.state, incarnation=event.incarnation)
        for index, task in list(pipeline.tasks.items()):
            if task.to == "SUSPENDED":
                draft.emit(Entity("task", (name, number, index)), "resumed", task.state, incarnation=event.incarnation,
                           attempt=task.attempt + 1)  # fmt: skip
    return "it goes on from its last checkpoint"
