"""What waits for the worker's main thread: orders, the answers of its engine, the answers of Kafka. Any thread puts,
one takes. Bounded: orders wait outside when there are many; of the progress of a task, and of Kafka's answers, only the
newest is kept; all else that an engine says answers something it was asked.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from events import records
from workers import happenings as h
from workers.engine import Answer
from workers.ledger import Identity

MOST_ORDERS = 1000


class Ordered(NamedTuple):
    """An order, or None where there was none for this worker, and the position on the orders after it."""

    it: records.Order | h.Withdrawn | None
    position: int


Item = Ordered | Answer


class Inbox:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Item | Identity] = deque()  # an attempt: where its newest progress is due
        self._progress: dict[Identity, h.Progressed] = {}
        self.answered_ms = 0  # when the newest was sent of all that Kafka has acknowledged
        self._orders = 0
        self._closed = False
        self._failure: Exception | None = None
        self._raised: Exception | None = None

    def say(self, it: Answer) -> None:
        """For engines. Never waits."""
        with self._changed:
            if isinstance(it, h.Progressed):
                known = it.who in self._progress
                self._progress[it.who] = it
                if known:
                    return
                self._waiting.append(it.who)
            else:
                self._waiting.append(it)
            self._changed.notify_all()

    def answered(self, sent_ms: int) -> None:
        """Kafka has acknowledged what was sent at this time. The main thread looks often enough not to be woken."""
        with self._changed:
            self.answered_ms = max(self.answered_ms, sent_ms)

    def hand_over(self, orders: list[Ordered]) -> bool:
        """Waits while many wait already. False when nobody takes them any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._orders < MOST_ORDERS or self._closed)
            if self._closed:
                return False
            self._waiting.extend(orders)
            self._orders += len(orders)
            self._changed.notify_all()
            return True

    def fail(self, error: Exception) -> None:
        """A thread that nothing works without has ended: `take` raises it, once."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def has_failed(self, error: Exception) -> bool:
        """Whether it is the error of such a thread, and none of who takes."""
        return error is self._raised

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(self, timeout_s: float, limit: int) -> list[Item]:
        """What waits, in its order, at most so many; nothing when nothing comes in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._failure, timeout_s)
            if self._failure is not None:
                self._raised, self._failure = self._failure, None
                raise self._raised
            taken = [self._resolve(self._waiting.popleft()) for _ in range(min(limit, len(self._waiting)))]
            if any(isinstance(item, Ordered) for item in taken):
                self._changed.notify_all()
            return taken

    def _resolve(self, waiting: Item | Identity) -> Item:
        if isinstance(waiting, Identity):
            return self._progress.pop(waiting)
        if isinstance(waiting, Ordered):
            self._orders -= 1
        return waiting
