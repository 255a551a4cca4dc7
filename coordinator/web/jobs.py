"""Addresses about jobs: lists, a job with all that belongs to it, its history, and why it is as it is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Annotated, Literal

import msgspec
from fastapi import Query, Request
from pydantic import AfterValidator, WithJsonSchema

from coordinator.answers import Answers
from coordinator.explain import Explanation
from coordinator.explaining import Question, ask, tell
from coordinator.history import Seen, Transition, checkpoints, transitions
from coordinator.lifecycle import states as states_of
from coordinator.past import Past
from coordinator.views import CheckpointView, JobDetail, JobView, Page, PipelineView, TaskView
from coordinator.web.contract import Contract
from coordinator.web.looking import look, look_back, window_of
from coordinator.web.parameters import PAGE, WAIT_MS, After, At, Incarnation, JobName, Limit, Search, Start, WaitMs
from coordinator.web.problems import Refused, unknown
from coordinator.web.redact import redacted
from events.keys import KINDS
from events.recovery import now_ms

JOBS = Contract()
STATES = ["running", "ended", *states_of("job")]


def _known_state(given: str) -> str:
    if given not in STATES:
        raise ValueError(f"it may be {', '.join(STATES)}")
    return given


def _known_kind(given: str) -> str:
    if given not in KINDS:
        raise ValueError(f"it may be {', '.join(KINDS)}")
    return given


State = Annotated[str, AfterValidator(_known_state), WithJsonSchema({"type": "string", "enum": STATES})]
Kind = Annotated[str, AfterValidator(_known_kind), WithJsonSchema({"type": "string", "enum": list(KINDS)})]
States = Annotated[
    list[State],
    Query(description="States of the life cycle, or `running` (all that have not ended), or `ended`; several: any."),
]


@JOBS.get("/jobs", 404, 409, tag="jobs")
async def list_jobs(
    request: Request,
    state: States = [],  # noqa: B006  FastAPI copies it
    search: Search = "",
    unhealthy: Annotated[bool, Query(description="Only those that are not well.")] = False,
    start: Start = 0,
    limit: Limit = PAGE,
    at: At = None,
    after: After = None,
    wait_ms: WaitMs = WAIT_MS,
) -> Page[JobView]:
    """All jobs, newest submission first. An ended job is listed until its summary goes; it is never among `running`."""

    def listed(answers: Answers) -> Page[JobView]:
        return answers.jobs(state, search, start, limit, unhealthy=unhealthy)

    return await look(request, at, after, wait_ms, listed)


@JOBS.get("/jobs/{job}", 404, 409, tag="jobs")
async def get_job(
    request: Request,
    job: JobName,
    incarnation: Incarnation = 0,
    at: At = None,
    after: After = None,
    wait_ms: WaitMs = WAIT_MS,
) -> JobDetail:
    """A job with its pipelines, tasks, graph, commands, savepoints and specification, secrets masked."""
    return await _detail(request, job, incarnation, at, after, wait_ms)


@JOBS.get("/jobs/{job}/pipelines", 404, 409, tag="jobs")
async def list_pipelines(
    request: Request, job: JobName, at: At = None, after: After = None, wait_ms: WaitMs = WAIT_MS
) -> Page[PipelineView]:
    """The job's pipelines, with lastCheckpointTime and secondsSinceLastCheckpoint of each."""
    found = (await _detail(request, job, 0, at, after, wait_ms)).pipelines
    return Page(items=found, total=len(found))


@JOBS.get("/jobs/{job}/tasks", 404, 409, tag="jobs")
async def list_tasks(
    request: Request,
    job: JobName,
    start: Start = 0,
    limit: Limit = 1000,
    at: At = None,
    after: After = None,
    wait_ms: WaitMs = WAIT_MS,
) -> Page[TaskView]:
    """The job's tasks: state, attempt, worker and progress of each."""
    found = (await _detail(request, job, 0, at, after, wait_ms)).tasks
    return Page(items=found[start : start + limit], total=len(found), start=start)


@JOBS.get("/jobs/{job}/history", 404, 409, tag="jobs")
async def list_history(
    request: Request,
    job: JobName,
    incarnation: Incarnation = 0,
    kind: Annotated[
        list[Kind], Query(description="Only of entities of these kinds, such as `job` or `task`; none: all.")
    ] = [],  # noqa: B006  FastAPI copies it
    start: Start = 0,
    limit: Limit = 100,
    order: Annotated[Literal["newest", "oldest"], Query(description="Which come first.")] = "newest",
    at: At = None,
    after: After = None,
    wait_ms: WaitMs = WAIT_MS,
) -> Page[Transition]:
    """Every transition of the job that the log still has: from, to, cause, time, offset, epoch and attempt. Ended jobs
    and cleaned up ones are there too."""

    def told(past: Past, then: Answers | None) -> Page[Transition]:
        found = transitions(_known(past, job, then), job, incarnation)
        wanted = [each for each in found if not kind or each.kind in kind]
        if order == "newest":
            wanted.reverse()
        return Page(items=tuple(wanted[start : start + limit]), total=len(wanted), start=start)

    return await look_back(request, at, after, wait_ms, told)


@JOBS.get("/jobs/{job}/checkpoints", 404, 409, tag="jobs")
async def list_checkpoints(
    request: Request,
    job: JobName,
    incarnation: Incarnation = 0,
    start: Start = 0,
    limit: Limit = 200,
    at: At = None,
    after: After = None,
    wait_ms: WaitMs = WAIT_MS,
) -> Page[CheckpointView]:
    """Every checkpoint of the job that the log still tells of, newest first: state, size, duration, rows, and for one
    in flight its age."""

    def told(past: Past, then: Answers | None) -> Page[CheckpointView]:
        found = checkpoints(_known(past, job, then), job, then.at if then else now_ms(), incarnation)
        found.sort(key=lambda each: (-(each.triggered_at or 0), each.pipeline, -each.id))
        return Page(items=tuple(found[start : start + limit]), total=len(found), start=start)

    return await look_back(request, at, after, wait_ms, told)


@JOBS.get("/jobs/{job}/explain", 404, 409, tag="jobs")
async def explain_job(
    request: Request,
    job: JobName,
    incarnation: Incarnation = 0,
    utc_offset: Annotated[
        int, Query(ge=-1440, le=1440, alias="utcOffset", description="Minutes that the reader's clock is ahead of UTC.")
    ] = 0,
    at: At = None,
    after: After = None,
    wait_ms: WaitMs = WAIT_MS,
) -> Explanation:
    """Why the job is in its state, in plain sentences: the chain of causes to the first one, what happened on the way,
    what it waits for and what would move it, and what was late or ignored."""

    def asked(answers: Answers) -> Question:
        question = ask(answers, job, incarnation)
        if question is None:
            raise unknown("job", job)
        return question

    question = await look(request, at, after, wait_ms, asked)
    return await window_of(request).ask_past(lambda past: tell(past, question, clock_of(utc_offset, question.at)))


def clock_of(utc_offset: int, now: int) -> Callable[[int], str]:
    """Times as somebody there reads them: of today without the day."""
    zone = timezone(timedelta(minutes=utc_offset))
    today = datetime.fromtimestamp(now / 1000, zone).date()

    def when(time: int) -> str:
        read = datetime.fromtimestamp(time / 1000, zone)
        return f"{read:%H:%M:%S}" if read.date() == today else f"{read:%Y-%m-%d %H:%M:%S}"

    return when


def _known(past: Past, job: str, then: Answers | None) -> list[Seen]:
    """What the log tells of a job, up to a moment."""
    found = past.history(job)
    if then is not None:
        found = [each for each in found if each.offset < then.offsets[each.shard]]
    if not any(each.entity.job == job for each in found):
        raise unknown("job", job)
    return found


async def _detail(
    request: Request, job: str, incarnation: int, at: str | None, after: str | None, wait_ms: int
) -> JobDetail:
    def detailed(answers: Answers) -> JobDetail:
        found = answers.job(job, incarnation)
        if found is None:
            near = ", ".join(answers.near(job))
            hint = f"; there are {near}" if near else ""
            raise Refused(404, "No such job", f"there is no job {job[:200]!r}{hint}")
        return found

    found = await look(request, at, after, wait_ms, detailed)
    return msgspec.structs.replace(found, specification=redacted(found.specification))
