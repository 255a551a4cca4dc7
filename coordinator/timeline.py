"""A shard's state as of any moment of its log, quick to ask again and again: what a time slider needs.

It keeps the newest bytes of every key at a few places of the log (the bytes are shared, only the tables are copies),
and one decoded state. To go to a moment it takes the place before it, folds the records from there on, and moves the
decoded state by what differs: the cost follows the distance and what has changed, not the length of the log.

Given records; it touches no broker. One thread at a time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from coordinator.shard_reading import Changed, ShardReading
from coordinator.state import State
from events.codec import Codec, peek_time
from events.errors import Place as Where
from events.errors import UnreadableRecord
from events.records import Event
from events.table import Poison, Raw, Run, Table

PLACES = 16  # at most so many tables are kept
EVERY = 4096  # records between two of them, to begin with
Read = Callable[[int, int], Sequence[Sequence[Raw]]]  # the transactions from an offset up to before another


class Place(NamedTuple):
    """A table as it was after a transaction. `next_offset` is where the next one begins."""

    next_offset: int
    epoch: int
    values: dict[bytes, bytes]


class Timeline:
    def __init__(self, shard: int, shards: int, codec: Codec, read: Read) -> None:
        self.shard, self._codec, self._read = shard, codec, read
        self._table = Table("events", shard, codec)  # at the end of what is known
        self._ends, self._times = array("q"), array("q")  # of every transaction: the offset after it, and when it was
        self._places = [Place(0, 0, {})]
        self._every, self._since = EVERY, 0
        self._reading = ShardReading(shard, shards, codec)
        self._values: dict[bytes, bytes] = {}  # what the decoded state is made of
        self._elections: list[tuple[int, bytes]] = []  # with their offsets
        self._first: dict[bytes, int] = {}  # where a job is first heard of, by its id as in keys
        self.next_offset = 0

    @property
    def state(self) -> State:
        """As of the moment that was asked for last."""
        return self._reading.state

    @property
    def times(self) -> tuple[int, int]:
        """Of the first and the last transaction; zeros where there is none."""
        return (self._times[0], self._times[-1]) if self._times else (0, 0)

    def add(self, transactions: Sequence[Sequence[Raw]]) -> None:
        """What the log has more, in whole transactions; some thousands of records at a time cost least."""
        records = [record for each in transactions for record in each]
        run = Run([record.key for record in records], [record.value for record in records], records.__getitem__)
        self._table.fold(run, poison=_ignore)
        for each in transactions:
            self._note_end(each[-1])
        for record in records:
            name = (record.key or b"").split(b"/", 2)[1:2]
            if name and name[0] not in self._first:
                self._first[name[0]] = record.offset
            if record.key == self._reading.table.leader_key and record.value:
                self._elections.append((record.offset, record.value))
        self._since += len(records)
        if self._since >= self._every:
            self._since = 0
            self._places.append(Place(self.next_offset, self._table.epoch, dict(self._table.values)))
            if len(self._places) > PLACES:  # every other one, and twice as far apart from now on
                self._places = self._places[::2]
                self._every *= 2

    def _note_end(self, cursor: Raw) -> None:
        self.next_offset = cursor.offset + 1
        self._ends.append(self.next_offset)
        try:
            time = peek_time(cursor.value or b"")
        except ValueError:
            time = 0
        # By leaders' clocks, which may differ a little: a moment is never before one that is earlier on the log.
        self._times.append(max(time, self._times[-1] if self._times else 0))

    def elections(self, end: int) -> list[tuple[int, Event]]:
        """Those before an offset, with their own, oldest first."""
        found = []
        for offset, value in self._elections:
            if offset < end:
                try:
                    found.append((offset, self._codec.decode(value, Event, Where("events", self.shard, offset))))
                except UnreadableRecord:
                    continue  # verification names it
        return found

    def begin_of(self, offset: int) -> int:
        """Where the transaction that an offset belongs to begins, at the earliest."""
        index = bisect_left(self._ends, offset + 1)
        return self._ends[index - 1] if index else 0

    def first_offset(self, job: bytes) -> int | None:
        """Where the log first tells of a job, by its id as it stands in keys; None where it does not."""
        return self._first.get(job)

    def count_before(self, time: int) -> int:
        """How many transactions were earlier."""
        return bisect_left(self._times, time)

    def end_at_time(self, time: int) -> int:
        """The offset after the last transaction that was not later."""
        index = bisect_right(self._times, time)
        return self._ends[index - 1] if index else 0

    def end_at_offset(self, offset: int) -> int:
        """The offset after the transaction that an offset belongs to: with the event at this offset, whole."""
        index = bisect_left(self._ends, offset + 1)
        return self._ends[min(index, len(self._ends) - 1)] if self._ends else 0

    def time_at(self, end: int) -> int:
        """When the transaction before this offset was."""
        index = bisect_left(self._ends, end)
        return self._times[min(index, len(self._times) - 1)] if self._times and end else 0

    def go_to(self, end: int) -> list[Changed]:
        """Move the state to after the transaction that ends there. Returns what is different from before."""
        if end == self._reading.table.next_offset:
            return []
        table = self._table_at(end)
        differs = [key for key, value in table.values.items() if self._values.get(key) != value]
        differs += [key for key in self._values if key not in table.values]
        self._values = table.values
        reading = self._reading
        reading.table.values, reading.table.epoch, reading.table.next_offset = table.values, table.epoch, end
        changed = reading.take(differs)
        reading.state.epoch = table.epoch
        reading.state.timers.clear()  # nothing is due in the past
        return changed

    def _table_at(self, end: int) -> Table:
        place = self._places[bisect_right(self._places, end, key=lambda each: each.next_offset) - 1]
        table = Table("events", self.shard, self._codec, dict(place.values), place.epoch, place.next_offset)
        if end > place.next_offset:
            for records in self._read(place.next_offset, end):
                table.apply(records, poison=_ignore)
        return table


def _ignore(_poison: Poison) -> None:
    """What can't be read is named where it is asked for."""
