"""Addresses about who is there: the cluster in a few numbers, shards with their leaders and takeovers, workers."""

from __future__ import annotations

from fastapi import Request

from coordinator.views import ClusterView, Page, ShardView, WorkerView
from coordinator.web.contract import Contract
from coordinator.web.looking import look
from coordinator.web.parameters import WAIT_MS, After, At, WaitMs
from coordinator.web.shapes import OverviewView

CLUSTER = Contract()


@CLUSTER.get("/overview", 409, tag="cluster")
async def get_overview(request: Request, at: At = None, after: After = None, wait_ms: WaitMs = WAIT_MS) -> OverviewView:
    """The cluster in a few numbers."""
    sight = await look(request, at, after, wait_ms)
    known = sight.cluster_view()
    heard = [worker for worker in known.workers if worker.state in ("HEARD", "DRAINING")]
    return OverviewView(
        at=known.at,
        jobs=known.jobs,
        unhealthy=known.unhealthy,
        rows_per_second=sight.rows_per_second(),
        workers=len(heard),
        slots=sum(worker.slots for worker in heard),
        slots_used=sum(worker.used for worker in heard),
        shards=len(known.shards),
        shards_led=sum(shard.state == "LEADING" for shard in known.shards),
    )


@CLUSTER.get("/cluster", 409, tag="cluster")
async def get_cluster(request: Request, at: At = None, after: After = None, wait_ms: WaitMs = WAIT_MS) -> ClusterView:
    """Who leads which shard, the takeovers and where their time went, coordinators and workers."""
    return (await look(request, at, after, wait_ms)).cluster_view()


@CLUSTER.get("/shards", 409, tag="cluster")
async def list_shards(
    request: Request, at: At = None, after: After = None, wait_ms: WaitMs = WAIT_MS
) -> Page[ShardView]:
    """The shards: leader, epoch, who stands by, takeovers."""
    found = (await look(request, at, after, wait_ms)).cluster_view().shards
    return Page(items=found, total=len(found))


@CLUSTER.get("/workers", 409, tag="cluster")
async def list_workers(
    request: Request, at: At = None, after: After = None, wait_ms: WaitMs = WAIT_MS
) -> Page[WorkerView]:
    """The workers: room, what is placed on them, when they were last heard."""
    found = (await look(request, at, after, wait_ms)).cluster_view().workers
    return Page(items=found, total=len(found))
