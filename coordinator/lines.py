"""Lines of the list of jobs, kept from one question to the next: a job that has not changed is not gone through again,
and what only time changes in its line is counted on. Pure; not for several threads at once.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinator.views import JobView

FRESH_MS = 250  # for so long the words about what is wrong with a job may be out of date
MOST = 100_000  # a line takes some percent of what its job does


class Lines:
    def __init__(self) -> None:
        self._made: dict[str, tuple[int, JobView]] = {}  # by job, and when

    def drop(self, job: str) -> None:
        """It has changed."""
        self._made.pop(job, None)

    def put(self, line: JobView, at: int) -> None:
        if len(self._made) >= MOST:
            del self._made[next(iter(self._made))]  # the oldest
        self._made[line.id] = (at, line)

    def get(self, job: str, incarnation: int, at: int, *, unhealthy: bool) -> JobView | None:
        """The line as it is at this time; None where it has to be made. What makes a job unhealthy may be time itself,
        and is told with times: its line is kept for a moment only."""
        made = self._made.get(job)
        if made is None or made[1].incarnation != incarnation:
            return None
        since, line = made
        passed = at - since
        if passed < 0 or ((unhealthy or line.health == "UNHEALTHY") and passed >= FRESH_MS):
            return None
        seconds, pending = line.seconds_since_last_checkpoint, line.pending_checkpoint_age_ms
        if not passed or (seconds is None and pending is None):
            return line
        return replace(
            line,
            seconds_since_last_checkpoint=None if seconds is None else round(seconds + passed / 1000, 3),
            pending_checkpoint_age_ms=None if pending is None else pending + passed,
        )
