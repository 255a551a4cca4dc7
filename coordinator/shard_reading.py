"""A shard as a reader knows it: the newest bytes of every key under the rules of the log, and the state decoded from
them, in step. For whoever looks and never leads: the read model, the state as of a time, verification.

Touches no broker: it is given records. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from coordinator.state import State, entity_of, fold
from events.codec import Codec
from events.errors import Place, UnreadableKey, UnreadableRecord
from events.keys import Entity
from events.records import Event
from events.table import Poison, Raw, Run, Table


class Changed(NamedTuple):
    """What became of one entity: None is not being there."""

    entity: Entity
    before: Event | None
    after: Event | None


class WatchedTable(Table):
    """A table that remembers every election it was shown, also while it folds in bulk."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.leader_key = b"leader/%d" % self.shard
        self.elections: list[bytes] = []

    def fold(self, run: Run, *, poison: object) -> None:
        at = 0
        try:
            while True:
                at = run.keys.index(self.leader_key, at) + 1
                if value := run.values[at - 1]:
                    self.elections.append(value)
        except ValueError:  # that was the last one
            pass
        super().fold(run, poison=poison)  # type: ignore[arg-type]


class ShardReading:
    def __init__(self, shard: int, shards: int, codec: Codec) -> None:
        self.shard, self._codec = shard, codec
        self.table = WatchedTable("events", shard, codec)
        self.state = State(shard, shards=shards)
        self.unreadable: dict[str, str] = {}  # what stands on the log and can't be read, and why
        self.elections: list[Event] = []  # each reign's, oldest first; and resignations

    def take_table(self) -> list[Changed]:
        """The table was folded in bulk: bring the state in step with it."""
        for value in self.table.elections:
            self._elected(self._decoded(value))
        self.table.elections.clear()
        return self.take(list(self.table.values))

    def apply(self, records: Sequence[Raw]) -> list[Changed]:
        """Fold whole transactions. Returns what they changed, each entity once."""
        for record in records:
            if record.key == self.table.leader_key and record.value:
                self._elected(self._decoded(record.value))
        changed = self.table.apply(records, poison=self._poison)
        self.table.next_offset = max(self.table.next_offset, records[-1].offset + 1)
        return self.take(changed)

    def take(self, keys: Iterable[bytes]) -> list[Changed]:
        found = []
        for key in keys:
            try:
                entity = entity_of(key.decode())
            except (UnreadableKey, UnicodeDecodeError) as error:
                self.unreadable[repr(key)] = str(error)
                continue
            after = self._read(key, entity)
            found.append(Changed(entity, fold(self.state, entity, after), after))
        return found

    def _read(self, key: bytes, entity: Entity) -> Event | None:
        self.unreadable.pop(entity.text, None)
        value = self.table.values.get(key)
        if value is None:
            return None
        try:
            event = self._codec.decode(value, Event, Place("events", self.shard, -1))
        except UnreadableRecord as error:
            self.unreadable[entity.text] = error.reason
            return None
        if event.entity != entity.text:
            self.unreadable[entity.text] = f"it is about {event.entity}"
            return None
        return event

    def _decoded(self, value: bytes) -> Event | None:
        try:
            return self._codec.decode(value, Event, Place("events", self.shard, -1))
        except UnreadableRecord:
            return None  # `take` names it

    def _elected(self, event: Event | None) -> None:
        newest = self.elections[-1] if self.elections else None
        if event is not None and (newest is None or event.epoch >= newest.epoch):
            self.elections.append(event)

    def _poison(self, poison: Poison) -> None:
        self.unreadable[repr(poison.record.key)] = poison.reason
