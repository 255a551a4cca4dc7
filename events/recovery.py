"""From nothing to a table at the end of the log: the mirror where it can be trusted, the log for the rest."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from events.cluster import FETCH_WAIT_MS, Cluster
from events.codec import Codec
from events.follower import Follower, log_poison
from events.mirror import Mirror, MirrorRefused
from events.table import Poison, Table

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """A follower at the end of the log, and how it got there."""

    follower: Follower
    from_mirror: bool
    replayed: int
    took_s: float


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def recover(
    cluster: Cluster,
    shard: int,
    codec: Codec,
    mirror: Mirror | None = None,
    *,
    poison: Callable[[Poison], None] = log_poison,
    clock: Callable[[], int] = now_ms,
    wait_ms: int = FETCH_WAIT_MS,
) -> Recovered:
    """Fold the shard's events up to their end. A leader fences its predecessor first, then calls this."""
    started = time.monotonic()
    table = _mirrored(mirror, codec, clock()) if mirror is not None else None
    if mirror is not None and table is not None:
        follower = Follower(cluster, table, poison=poison, wait_ms=wait_ms)
        end = follower.reader.start_and_end()[1]
        if table.next_offset > end:
            LOG.warning("%s shard=%d", MirrorRefused(mirror.path, "it is ahead of the log, which was cut"), shard)
        else:
            replayed = follower.catch_up(end, remember=True)
            if not mirror.is_outdated(clock()):
                changed = {key: table.values.get(key) for key in follower.touched if key is not None}
                follower.touched.clear()
                mirror.record(changed, table, clock())
                return Recovered(follower, True, replayed, time.monotonic() - started)
            LOG.warning("%s shard=%d", MirrorRefused(mirror.path, "it grew too old while its tail was read"), shard)
        follower.close()
    follower = Follower(cluster, Table("events", shard, codec), poison=poison, wait_ms=wait_ms)
    replayed = follower.catch_up()
    if mirror is not None:
        mirror.replace(follower.table, clock())
    return Recovered(follower, False, replayed, time.monotonic() - started)


def _mirrored(mirror: Mirror, codec: Codec, now: int) -> Table | None:
    try:
        return mirror.load("events", codec, now)
    except MirrorRefused as refused:
        LOG.log(logging.INFO if refused.missing else logging.WARNING, "%s", refused)
        return None
