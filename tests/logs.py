"""What tests on a real broker share: a cluster of their own, a leader's writes, and waiting on conditions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import TypeVar

from events.cluster import Cluster
from events.codec import Codec
from events.follower import Applied, Follower
from events.records import Cursor, Event, EventState, Task
from events.table import Table
from events.writer import Outgoing, TransactionalWriter, outgoing_events
from tests.strategies import an_event

T = TypeVar("T")


def until(wanted: Callable[[], T], what: str, limit_s: float = 60.0) -> T:
    """Wait for a condition; its value when it holds. The limit is for hanging, not for judging speed."""
    deadline = time.monotonic() + limit_s
    while not (value := wanted()):
        assert time.monotonic() < deadline, f"waited {limit_s:g} s for {what}"
        time.sleep(0.02)
    return value


def own_cluster(bootstrap_servers: str, shards: int = 1, properties: Mapping[str, str] | None = None) -> Cluster:
    """A cluster whose topics nobody else uses."""
    return Cluster(bootstrap_servers, f"t-{uuid.uuid4().hex[:10]}", shards, properties or {})


def tasks(start: int, stop: int, *, epoch: int = 1, rows: int = 0) -> list[Event]:
    return [an_event(f"task/job-{i}/0/0", epoch, 1, 1, i, Task(rows=rows)) for i in range(start, stop)]


def cursor(epoch: int = 1, sequence: int = 0) -> Event:
    state: EventState = Cursor(positions=())
    return an_event("cursor/0", epoch, 0, 0, sequence, state)


def transaction(codec: Codec, events: list[Event], *, epoch: int = 1) -> list[Outgoing]:
    return outgoing_events(codec, 0, [*events, cursor(epoch)])


def a_writer(cluster: Cluster, **options: float) -> TransactionalWriter:
    return TransactionalWriter(cluster, cluster.transactional_id(0), **options)  # type: ignore[arg-type]


def settle(cluster: Cluster) -> None:
    """Fence the shard's writer, as a new leader does. A commit is durable when it is answered, but visible only when
    its markers are written, some milliseconds later: without fencing first, the end may be measured before that."""
    a_writer(cluster).close()


def replayed(cluster: Cluster, codec: Codec, end: int | None = None) -> Table:
    """The table of a full replay: up to `end`, or, after fencing, of everything."""
    if end is None:
        settle(cluster)
    follower = Follower(cluster, Table("events", 0, codec))
    try:
        follower.catch_up(end)
    finally:
        follower.close()
    return follower.table


def followed(follower: Follower, count: int, limit: int = 2000) -> list[Applied]:
    """The next transactions, waited for."""
    found: list[Applied] = []

    def enough() -> bool:
        found.extend(follower.advance(0.1, limit))
        return len(found) >= count

    until(enough, f"{count} transactions")
    return found
