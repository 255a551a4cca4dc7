"""Commands as they come over HTTP, checked, and as they go on the log. Pure.

The specification of a job is an object here and a text on the log; all else is the same.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from coordinator.specification import SpecificationError, plan
from events.errors import UnreadableKey
from events.keys import check_name
from events.records import (
    Cancel,
    Command,
    CommandAction,
    Pause,
    Repair,
    Restore,
    Resume,
    Stop,
    Submit,
    TakeSavepoint,
    TaskPosition,
)

Reason = Annotated[str, Meta(max_length=2000, description="Why, for the record.")]


class Asked(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="type", forbid_unknown_fields=True):
    """What is wanted of a job."""


class SubmitAsked(Asked, frozen=True, tag="submit"):
    """Run a new job."""

    specification: Annotated[dict[str, Any], Meta(description="The job's specification, as docs/jobs.md tells it.")]


class CancelAsked(Asked, frozen=True, tag="cancel"):
    """End a job now; output that no completed checkpoint names is discarded."""

    reason: Reason = ""


class SavepointAsked(Asked, frozen=True, tag="savepoint"):
    """Keep a checkpoint under a name."""

    name: Annotated[str, Meta(min_length=1, max_length=512)]
    stop: Annotated[bool, Meta(description="Whether the job ends with it.")] = False


class Elsewhere(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A position for a task to start from, named explicitly."""

    pipeline: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    task: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    position: Annotated[str, Meta(description="In the form of its source; empty for the source's beginning.")]


class RestoreAsked(Asked, frozen=True, tag="restore"):
    """Run an ended job again from a kept position."""

    savepoint: Annotated[str, Meta(max_length=512, description="Empty: the newest committed checkpoint.")] = ""
    specification: Annotated[
        dict[str, Any] | None, Meta(description="A changed specification; without it the old one is kept.")
    ] = None
    elsewhere: list[Elsewhere] = []


class StopAsked(Asked, frozen=True, tag="stop"):
    """Drain a job: what it has read is published, then it is FINISHED."""

    reason: Reason = ""


class PauseAsked(Asked, frozen=True, tag="pause"):
    """Stop a job's tasks after a checkpoint and keep their place."""

    reason: Reason = ""


class ResumeAsked(Asked, frozen=True, tag="resume"):
    """Let a paused job go on."""

    reason: Reason = ""


class RepairAsked(Asked, frozen=True, tag="repair"):
    """Correct a stuck entity by an event that says who and why."""

    entity: Annotated[str, Meta(min_length=1, max_length=2048, description="As the history names it.")]
    to: Annotated[str, Meta(min_length=1, max_length=64, description="The state it is moved to.")]
    reason: Annotated[str, Meta(min_length=1, max_length=2000, description="Why.")]


AskedAction = (
    SubmitAsked | CancelAsked | SavepointAsked | RestoreAsked | StopAsked | PauseAsked | ResumeAsked | RepairAsked
)


class CommandAsked(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A command. Who got no answer sends it again with the same id: it is never carried out twice."""

    action: AskedAction
    id: Annotated[str, Meta(max_length=256, description="Chosen by the client; empty: the server chooses one.")] = ""
    by: Annotated[str, Meta(max_length=256, description="Who asks, for the audit.")] = ""


READER = msgspec.json.Decoder(CommandAsked)


def read(body: bytes) -> CommandAsked:
    """Raises ValueError that says what is wrong."""
    try:
        return READER.decode(body)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"the body is no command: {error}") from error


def command_of(job: str, asked: CommandAsked, command_id: str, by: str, now: int) -> Command:
    """As it goes on the log. Raises ValueError for what no coordinator could carry out."""
    try:
        check_name(job)
        check_name(command_id)
        action = _action(asked.action)
        msgspec.json.encode((asked.by, action))
        return Command(id=command_id, job=job, by=by, time=now, action=action)
    except (UnreadableKey, SpecificationError, UnicodeEncodeError) as error:
        raise ValueError(str(error)) from error


def _action(asked: AskedAction) -> CommandAction:
    match asked:
        case SubmitAsked():
            return Submit(specification=_body(asked.specification))
        case RestoreAsked():
            moved = (
                TaskPosition(pipeline=e.pipeline, task=e.task, position=e.position.encode()) for e in asked.elsewhere
            )
            changed = "" if asked.specification is None else _body(asked.specification)
            return Restore(savepoint=asked.savepoint, specification=changed, elsewhere=tuple(moved))
        case SavepointAsked():
            return TakeSavepoint(name=asked.name, stop=asked.stop)
        case RepairAsked():
            return Repair(entity=asked.entity, to=asked.to, reason=asked.reason)
        case CancelAsked():
            return Cancel(reason=asked.reason)
        case StopAsked():
            return Stop(reason=asked.reason)
        case PauseAsked():
            return Pause(reason=asked.reason)
        case ResumeAsked():
            return Resume(reason=asked.reason)


def _body(specification: dict[str, Any]) -> str:
    """Checked here already, so that who sends it is told at once."""
    body = msgspec.json.encode(specification).decode()
    plan(body)
    return body
