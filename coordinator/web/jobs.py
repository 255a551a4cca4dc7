"""Addresses about jobs: lists, a job with all that belongs to it, its history, and why it is as it is."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import Query, Request
from pydantic import AfterValidator, WithJsonSchema

from coordinator.lifecycle import states as states_of
from coordinator.views import JobDetail, JobView, Page, PipelineView, TaskView
from coordinator.web.contract import Contract
from coordinator.web.looking import look
from coordinator.web.parameters import WAIT_MS, After, At, Incarnation, JobName, Limit, Search, Start, WaitMs
from coordinator.web.problems import Refused
from coordinator.web.redact import redacted

JOBS = Contract()
STATES = ["running", "ended", *states_of("job")]


def _known_state(given: str) -> str:
    if given not in STATES:
        raise ValueError(f"it may be {', '.join(STATES)}")
    return given


State = Annotated[str, AfterValidator(_known_state), WithJsonSchema({"type": "string", "enum": STATES})]
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
    limit: Limit = 50,
    at: At = None,
    after: After = None,
    wait_ms: WaitMs = WAIT_MS,
) -> Page[JobView]:
    """All jobs, newest submission first. An ended job is listed until its summary goes; it is never among `running`."""
    sight = await look(request, at, after, wait_ms)
    return sight.jobs(state, search, start, limit, unhealthy=unhealthy)


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


async def _detail(
    request: Request, job: str, incarnation: int, at: str | None, after: str | None, wait_ms: int
) -> JobDetail:
    sight = await look(request, at, after, wait_ms)
    found = sight.job(job, incarnation)
    if found is None:
        near = ", ".join(sight.near(job))
        hint = f"; there are {near}" if near else ""
        raise Refused(404, "No such job", f"there is no job {job[:200]!r}{hint}")
    return msgspec.structs.replace(found, specification=redacted(found.specification))
