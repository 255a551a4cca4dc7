"""Which jobs are unhealthy, kept current without looking at all of them again and again: a job is looked at when it
has changed, and when the time comes at which it would be unhealthy if nothing changed. Pure; time is given.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable

from coordinator.health import INTERVALS, health
from coordinator.state import JobView

AGAIN_MS = 1000  # a job that is unhealthy is looked at as often


class HealthWatch:
    def __init__(self, find: Callable[[str], JobView | None]) -> None:
        """`find` gives the job of an id that has not ended; None where there is none."""
        self._find = find
        self._changed: set[str] = set()
        self._due: list[tuple[int, str]] = []
        self._next: dict[str, int] = {}
        self.unhealthy: dict[str, str] = {}  # the reason by job

    def touch(self, job: str) -> None:
        self._changed.add(job)

    def look(self, now: int, limit: int = sys.maxsize) -> bool:
        """At all that has changed or is due, or so many of them. Returns whether there are more."""
        while self._due and self._due[0][0] <= now:
            at, job = heapq.heappop(self._due)
            if self._next.get(job) == at:
                self._changed.add(job)
        for _ in range(min(limit, len(self._changed))):
            self._look_at(self._changed.pop(), now)
        return bool(self._changed)

    def _look_at(self, name: str, now: int) -> None:
        self._next.pop(name, None)
        job = self._find(name)
        found = health(name, job, now) if job is not None else None
        if job is None or found is None:
            self.unhealthy.pop(name, None)
            return
        if found.unhealthy or found.retrying:
            self.unhealthy[name] = found.unhealthy or found.retrying[0].error
            self._again(name, now + AGAIN_MS)
            return
        self.unhealthy.pop(name, None)
        policy = job.plan.env.checkpoint
        limit = INTERVALS * policy.interval_ms + policy.timeout_ms
        waits = [limit - one.since_last_ms for one in found.pipelines if one.state == "RUNNING"]
        if found.state == "RUNNING" and waits:
            self._again(name, now + max(1, min(waits) + 1))

    def _again(self, name: str, at: int) -> None:
        self._next[name] = at
        heapq.heappush(self._due, (at, name))
