"""Addresses about who is there: the cluster in a few numbers, shards with their leaders and takeovers, workers."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from coordinator.answers import Answers
from coordinator.past import Past
from coordinator.views import ClusterView, Page, ShardView, WorkerView
from coordinator.web.contract import Contract
from coordinator.web.looking import look, window_of
from coordinator.web.parameters import WAIT_MS, After, At, WaitMs
from coordinator.web.shapes import Mark, OverviewView, TimelineView
from events.records import Event, Leader

CLUSTER = Contract()
MOST_MARKS = 200


@CLUSTER.get("/overview", 409, tag="cluster")
async def get_overview(request: Request, at: At = None, after: After = None, wait_ms: WaitMs = WAIT_MS) -> OverviewView:
    """The cluster in a few numbers."""
    return await look(request, at, after, wait_ms, _in_numbers)


def _in_numbers(answers: Answers) -> OverviewView:
    known = answers.cluster()
    heard = [worker for worker in known.workers if worker.state in ("HEARD", "DRAINING")]
    return OverviewView(
        at=known.at,
        jobs=known.jobs,
        unhealthy=known.unhealthy,
        rows_per_second=answers.rows_per_second(),
        workers=len(heard),
        slots=sum(worker.slots for worker in heard),
        slots_used=sum(worker.used for worker in heard),
        shards=len(known.shards),
        shards_led=sum(shard.state == "LEADING" for shard in known.shards),
    )


@CLUSTER.get("/cluster", 409, tag="cluster")
async def get_cluster(request: Request, at: At = None, after: After = None, wait_ms: WaitMs = WAIT_MS) -> ClusterView:
    """Who leads which shard, the takeovers and where their time went, coordinators and workers."""
    return await look(request, at, after, wait_ms, Answers.cluster)


@CLUSTER.get("/shards", 409, tag="cluster")
async def list_shards(
    request: Request, at: At = None, after: After = None, wait_ms: WaitMs = WAIT_MS
) -> Page[ShardView]:
    """The shards: leader, epoch, who stands by, takeovers."""
    found = await look(request, at, after, wait_ms, Answers.shards)
    return Page(items=tuple(found), total=len(found))


@CLUSTER.get("/workers", 409, tag="cluster")
async def list_workers(
    request: Request, at: At = None, after: After = None, wait_ms: WaitMs = WAIT_MS
) -> Page[WorkerView]:
    """The workers: room, what is placed on them, when they were last heard."""
    found = await look(request, at, after, wait_ms, Answers.workers)
    return Page(items=tuple(found), total=len(found))


@CLUSTER.get("/timeline", 409, tag="cluster")
async def get_timeline(
    request: Request,
    buckets: Annotated[int, Query(ge=1, le=1000, description="How many equal parts of the time.")] = 100,
) -> TimelineView:
    """From when to when the log tells, how much happened in each part of it, and the moments worth seeing: changes of
    leaders and jobs that failed."""
    window = window_of(request)
    with window.model.now() as answers:
        failed = answers.jobs(["FAILED", "FAILING"], limit=MOST_MARKS).items
    marks = [
        Mark(at=job.since or 0, kind="failed", text=f"{job.id} failed: {job.reason}", job=job.id) for job in failed
    ]

    def told(past: Past) -> TimelineView:
        elected = [(shard, each) for shard, each in past.elections() if each.to == "LEADING"][-MOST_MARKS:]
        marks.extend(_takeover(shard, each) for shard, each in elected)
        first, last = past.times()
        counts = past.activity(first, max(first, last), buckets) if first else []
        marks.sort(key=lambda mark: mark.at)
        return TimelineView(from_=first or None, to=last or None, buckets=tuple(counts), marks=tuple(marks))

    return await window.ask_past(told)


def _takeover(shard: int, event: Event) -> Mark:
    who = event.state.coordinator if isinstance(event.state, Leader) else "somebody"
    return Mark(at=event.time, kind="takeover", text=f"{who} leads shard {shard}", shard=shard)
