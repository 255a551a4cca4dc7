"""Follows a shard's events: catches up with the log at the client's speed, then stays at its end.

Catching up folds record by record towards an end at which every transaction is whole; a table that is catching up is
not to be looked at. From then on whole transactions are folded one at a time.

What a standby, a read model and forensics have in common. It folds whole transactions into a table and decides
nothing.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from events.cluster import FETCH_WAIT_MS, Cluster
from events.collector import paused_collector
from events.reader import BATCH, PartitionReader, WholeTransactions, columns, offset_of
from events.table import Poison, Raw, Table

LOG = logging.getLogger(__name__)


class Applied(NamedTuple):
    """A transaction that was folded, and what it changed."""

    records: list[Raw]
    changed: dict[bytes, bytes | None]


def log_poison(poison: Poison) -> None:
    """The least that is done with a record that can't be folded."""
    LOG.error("unreadable record offset=%d key=%r reason=%s", poison.record.offset, poison.record.key, poison.reason)


class Follower:
    """A table and the reader that feeds it. One thread at a time."""

    def __init__(
        self,
        cluster: Cluster,
        table: Table,
        *,
        poison: Callable[[Poison], None] = log_poison,
        topic: str = "events",
        wait_ms: int = FETCH_WAIT_MS,
    ) -> None:
        self.table = table
        self.reader = PartitionReader(cluster, topic, table.shard, table.next_offset, wait_ms=wait_ms)
        self._cutter = WholeTransactions(table.cursor_key)
        self._poison = poison
        # Keys that catching up touched: what a mirror has to be told.
        self.touched: set[bytes | None] = set()

    def close(self) -> None:
        self.reader.close()

    def catch_up(self, end: int | None = None, *, remember: bool = False, patience_s: float = 60.0) -> int:
        """Fold everything before `end` (now's end when none is given). Returns how many records there were. With
        `remember`, `touched` collects the keys. Raises BrokerUnreachable when nothing arrives for too long."""
        if end is None:
            end = self.reader.start_and_end()[1]
        count, heard = 0, time.monotonic()
        with paused_collector():
            while self.reader.position < end:
                if arrived := self._fold_what_arrives(end, remember):
                    count += arrived
                    heard = time.monotonic()
                elif time.monotonic() - heard > patience_s:
                    reader = self.reader
                    reader.check()
                    doing = f"replaying {reader.topic}/{reader.partition} from offset {reader.position} to {end}"
                    raise reader.cluster.no_answer(doing, patience_s)
        if self.reader.position > end:  # what was fetched beyond is for `advance`, in whole transactions
            self.reader.go_to(end)
        self.table.next_offset = end
        return count

    def _fold_what_arrives(self, end: int, remember: bool) -> int:
        """One batch. It is let go on return, before the next is fetched: its memory is used again while it is still in
        the processor's cache."""
        messages = self.reader.poll(0.1)
        if messages and offset_of(messages[-1]) >= end:
            del messages[bisect_left(messages, end, key=offset_of) :]
        run = columns(messages)
        self.table.fold(run, poison=self._poison)
        if remember:
            self.touched.update(run.keys)
        return len(messages)

    def pause(self) -> None:
        """Fetch nothing until `rewind`: for who writes the log itself."""
        self.reader.pause()

    def rewind(self) -> None:
        """Go on from the table's own place, the end of a transaction. What was read of the next one is read again."""
        self._cutter = WholeTransactions(self.table.cursor_key)
        self.reader.go_to(self.table.next_offset)

    @property
    def is_amid(self) -> bool:
        """Whether part of a transaction was read and its end was not."""
        return self._cutter.is_amid

    def advance(self, timeout_s: float, limit: int = BATCH) -> list[Applied]:
        """The transactions that have ended since, folded one by one; none when nothing ends in time."""
        applied = []
        for records in self._cutter.cut(self.reader.poll(timeout_s, limit)):
            applied.append(Applied(records, self.table.apply(records, poison=self._poison)))
            self.table.next_offset = records[-1].offset + 1
        return applied
