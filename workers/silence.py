"""Says that Kafka does not answer, and that it does again: in time to act on it, and not again and again."""

from __future__ import annotations

import logging

LOG = logging.getLogger(__name__)


class Silence:
    def __init__(self, worker: str, lease_ms: int, heartbeat_ms: int) -> None:
        self._worker, self._lease_ms = worker, lease_ms
        self._first_ms = max(lease_ms // 3, 2 * heartbeat_ms + 500)
        self._mention_at = self._first_ms
        self._longest_ms = 0

    def look(self, silent_ms: int) -> None:
        """To be called now and then, with how long Kafka has been silent."""
        if silent_ms < self._first_ms:
            if self._longest_ms:
                LOG.warning("Kafka answers again after %.1f s worker=%s", self._longest_ms / 1000, self._worker)
            self._mention_at, self._longest_ms = self._first_ms, 0
        elif silent_ms >= self._mention_at:
            left = self._lease_ms - silent_ms
            then = f"the tasks stop in {left / 1000:.1f} s" if left > 0 else "the lease is over and no task runs"
            LOG.warning("Kafka has not answered for %.1f s: %s worker=%s", silent_ms / 1000, then, self._worker)
            # Once more when the lease is over, and then ever more rarely.
            self._mention_at = self._lease_ms if silent_ms < self._lease_ms else 2 * silent_ms
        self._longest_ms = silent_ms if silent_ms >= self._first_ms else 0
