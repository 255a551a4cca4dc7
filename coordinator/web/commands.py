"""Addresses of commands: publishing one, and what became of it."""

from __future__ import annotations

import uuid

from fastapi import Request

from coordinator.answers import Answers
from coordinator.views import CommandView, Page
from coordinator.web import asked
from coordinator.web.contract import Contract
from coordinator.web.doorway import MOST_BODY_BYTES
from coordinator.web.looking import look, window_of
from coordinator.web.parameters import WAIT_MS, After, At, CommandName, JobName, WaitMs
from coordinator.web.problems import Refused, unknown
from coordinator.web.shapes import CommandOutcome, SentCommand
from coordinator.web.window import NOT_YET
from events.recovery import now_ms

COMMANDS = Contract()


@COMMANDS.post("/jobs/{job}/commands", 403, 413, 415, tag="commands", status=202, takes=asked.CommandAsked)
async def send_command(request: Request, job: JobName) -> SentCommand:
    """Publish a command: submit, cancel, savepoint, restore, stop, pause, resume or repair. It is on the log when this
    is answered, and decided on in its turn; who sent it stands on the log with it."""
    try:
        wanted = asked.read(await _body(request))
        command_id = wanted.id or uuid.uuid4().hex
        command = asked.command_of(job, wanted, command_id, _by(request, wanted.by), now_ms())
    except ValueError as error:
        raise Refused(422, "Not understood", str(error)) from error
    place = await window_of(request).publish(command)
    after = f"{place.partition}:{place.offset}"
    return SentCommand(job=job, id=command_id, shard=place.partition, offset=place.offset, after=after)


@COMMANDS.get("/jobs/{job}/commands", 404, 409, tag="commands")
async def list_commands(
    request: Request, job: JobName, at: At = None, after: After = None, wait_ms: WaitMs = WAIT_MS
) -> Page[CommandView]:
    """The commands that the job was given, with their outcomes, oldest first."""

    def given(answers: Answers) -> Page[CommandView]:
        found = tuple(answers.commands(job))
        if not found and answers.job(job) is None:
            raise unknown("job", job)
        return Page(items=found, total=len(found))

    return await look(request, at, after, wait_ms, given)


@COMMANDS.get("/jobs/{job}/commands/{command}", 404, 409, tag="commands")
async def get_command(
    request: Request, job: JobName, command: CommandName, after: After = None, wait_ms: WaitMs = WAIT_MS
) -> CommandOutcome:
    """What became of a command. With `after`, as its answer gave it, this waits for the outcome; PENDING when there is
    none in time, or when nobody knows of such a command."""
    try:
        return await look(request, None, after, wait_ms, lambda answers: _outcome(answers, job, command))
    except Refused as late:
        if late.title != NOT_YET:
            raise
        return CommandOutcome(job=job, id=command, state="PENDING")


def _outcome(answers: Answers, job: str, command: str) -> CommandOutcome:
    found = next((each for each in answers.commands(job) if each.id == command), None)
    if found is not None:
        return CommandOutcome(
            job=job,
            id=command,
            state=found.state,
            action=found.action,
            by=found.by,
            reason=found.reason,
            decided_at=found.decided_at,
            cause=found.cause,
        )
    # Outcomes go with their job; its summary remembers which commands it was given.
    known = answers.job(job)
    if known is not None and known.summary is not None and command in known.summary.commands:
        reason = f"the job it was given to has ended: {known.summary.state}"
        return CommandOutcome(job=job, id=command, state="ENDED", reason=reason)
    return CommandOutcome(job=job, id=command, state="PENDING")


async def _body(request: Request) -> bytes:
    """However it is sent, no more than so many bytes of it."""
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > MOST_BODY_BYTES:
            raise Refused(413, "Too large", f"a request has at most {MOST_BODY_BYTES:,} bytes")
    return bytes(found)


def _by(request: Request, given: str) -> str:
    """Who asks, for the audit: what they say, and where they are."""
    host = request.client.host if request.client else "somewhere"
    return f"{given or 'web'} from {host}"
