"""A shard as a reader knows it: the newest bytes of every key under the rules of the log, and the state decoded from
them, in step. For whoever looks and never leads: the read model, the state as of a time, verification.

Touches no broker: it is given records. One thread moves it: to decode what has come takes long and leaves the state as
it is, so that others may look at it meanwhile; to fold what is decoded is quick.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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


class Decoded(NamedTuple):
    """What is new of a shard at a transaction boundary, each entity once. None is not being there."""

    entities: list[tuple[Entity, Event | None]]
    elections: list[Event]
    next_offset: int


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
        self.shard, self._codec, self._place = shard, codec, Place("events", shard, -1)
        self.table = WatchedTable("events", shard, codec)
        self.state = State(shard, shards=shards)
        self.unreadable: dict[str, str] = {}  # what stands on the log and can't be read, and why
        self.elections: list[Event] = []  # each reign's, oldest first; and resignations
        self.next_offset = 0  # the state's: the offset after the last transaction folded

    def take_table(self) -> list[Changed]:
        """The table was folded in bulk: bring the state in step with it."""
        return self.fold(self._decoded(list(self.table.values)))

    def decode(self, records: Sequence[Raw]) -> Decoded:
        """What whole transactions change. The state does not know of it before `fold`."""
        run = Run([record.key for record in records], [record.value for record in records], records.__getitem__)
        self.table.fold(run, poison=self._poison)
        self.table.next_offset = max(self.table.next_offset, records[-1].offset + 1)
        return self._decoded(key for key in dict.fromkeys(run.keys) if key is not None)

    def fold(self, decoded: Decoded) -> list[Changed]:
        """Take it over, in the order in which it was decoded. Returns what has changed."""
        for election in decoded.elections:
            if not self.elections or election.epoch >= self.elections[-1].epoch:
                self.elections.append(election)
        self.next_offset = decoded.next_offset
        return [Changed(entity, fold(self.state, entity, after), after) for entity, after in decoded.entities]

    def take(self, keys: Iterable[bytes]) -> list[Changed]:
        """The table has other values for these: bring the state in step with it."""
        return self.fold(self._decoded(keys))

    def _decoded(self, keys: Iterable[bytes]) -> Decoded:
        entities = list(self._entities(keys))
        elections = [event for value in self.table.elections if (event := self._election(value)) is not None]
        self.table.elections.clear()
        return Decoded(entities, elections, self.table.next_offset)

    def _entities(self, keys: Iterable[bytes]) -> Iterator[tuple[Entity, Event | None]]:
        for key in keys:
            try:
                entity = entity_of(key.decode())
            except (UnreadableKey, UnicodeDecodeError) as error:
                self.unreadable[repr(key)] = str(error)
                continue
            yield entity, self._read(key, entity)

    def _read(self, key: bytes, entity: Entity) -> Event | None:
        self.unreadable.pop(entity.text, None)
        value = self.table.values.get(key)
        if value is None:
            return None
        try:
            event = self._codec.decode(value, Event, self._place)
        except UnreadableRecord as error:
            self.unreadable[entity.text] = error.reason
            return None
        if event.entity != entity.text:
            self.unreadable[entity.text] = f"it is about {event.entity}"
            return None
        return event

    def _election(self, value: bytes) -> Event | None:
        try:
            return self._codec.decode(value, Event, self._place)
        except UnreadableRecord:
            return None  # named with its entity

    def _poison(self, poison: Poison) -> None:
        self.unreadable[repr(poison.record.key)] = poison.reason
