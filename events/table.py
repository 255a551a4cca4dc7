"""The fold of a shard's log that everything else stands on: the newest record of every entity.

It keeps raw bytes and decodes late, because most of what a log says has been superseded. The rules:

1. A record of a lower epoch than one before it is void: the newer leader's election is on the log already.
2. A record never replaces one of a higher incarnation, nor, within an incarnation, one of a higher attempt.
3. Otherwise the newest record of a key is what is known of it, and a tombstone removes it.

Tombstones have no value to say their epoch and incarnation in, so they carry them as headers.

Pure: no Kafka, no clock, no disk. It decides nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple

from events.codec import Codec, Header
from events.errors import Place
from events.keys import named
from events.records import Event

KEYLESS = "it has no key, so it belongs to no entity"
Headers = list[tuple[str, bytes | None]]


class Raw(NamedTuple):
    """A record as it stands on the log. Headers matter only where there is no value."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None = None


class Run(NamedTuple):
    """Consecutive records of one partition in columns, which cost less than a value for each record."""

    keys: list[bytes | None]
    values: list[bytes | None]
    record: Callable[[int], Raw]


@dataclass(frozen=True, slots=True)
class Poison:
    """A record that can't be folded, and why. It belongs in dead letters."""

    record: Raw
    reason: str


def tombstone_headers(epoch: int, incarnation: int) -> Headers:
    return [("epoch", b"%d" % epoch), ("incarnation", b"%d" % incarnation)]


def header_of(record: Raw, codec: Codec) -> Header:
    """Epoch and order of a record, tombstone or not. Raises ValueError when it has none."""
    if record.value is not None:
        return codec.peek(record.value)
    try:
        said = dict(record.headers or ())
        return Header(int(said["epoch"] or b""), 0, int(said["incarnation"] or b""), 2**31 - 1, 0)
    except (KeyError, ValueError):
        raise ValueError("a tombstone without the epoch and incarnation that ours carry") from None


def admits(new: Header, epoch: int, before: Header | None) -> bool:
    """Rules 1 and 2: whether a record counts, after one of `epoch`, for a key that had `before`."""
    if new.epoch < epoch:
        return False
    return before is None or (new.incarnation, new.attempt) >= (before.incarnation, before.attempt)


@dataclass
class Table:
    """The newest record of every key of one shard. At a transaction boundary unless it is being replayed."""

    topic: str
    shard: int
    codec: Codec
    values: dict[bytes, bytes] = field(default_factory=dict)
    epoch: int = 0
    # Where reading goes on: the offset after the last transaction folded.
    next_offset: int = 0
    # Records that were void by rules 1 and 2. Anything but 0 means that a writer did what it must not.
    voided: int = 0

    def __post_init__(self) -> None:
        self.cursor_key = named("cursor", self.shard).key
        self._plain_for = (-1, -1)
        self._plain: tuple[bytes, ...] = ()

    def apply(self, records: Iterable[Raw], *, poison: Callable[[Poison], None]) -> dict[bytes, bytes | None]:
        """Fold records one by one. Returns what they changed: the new bytes by key, None where a key is gone."""
        changed: dict[bytes, bytes | None] = {}
        for record in records:
            if self._admits(record, poison):
                key = record.key or b""
                changed[key] = record.value
                if record.value is None:
                    self.values.pop(key, None)
                else:
                    self.values[key] = record.value
        return changed

    def fold(self, run: Run, *, poison: Callable[[Poison], None]) -> None:
        """The same for a run of records at the speed of the client library: in bulk when a glance shows that all are of
        the current epoch, one by one when it does not.

        The glance: the cursors that end the run's transactions, which have their transactions' epoch, and each record
        behind the last cursor. Rule 2 is not looked at in bulk: a leader keeps it by construction, as it folds its own
        events with `apply` before it writes them, and any other writer is of a lower epoch."""
        if not self._is_plain(run):
            self.apply(map(run.record, range(len(run.keys))), poison=poison)
            return
        table: dict[bytes | None, bytes | None] = self.values  # type: ignore[assignment]
        table.update(zip(run.keys, run.values, strict=True))
        if None in table:
            del table[None]
            for i in (i for i, key in enumerate(run.keys) if key is None):
                poison(Poison(run.record(i), KEYLESS))
        if not all(run.values):
            for key, value in zip(run.keys, run.values, strict=True):
                if value is None and table.get(key, b"") is None:
                    del table[key]

    def _is_plain(self, run: Run) -> bool:
        """Whether every transaction in the run is of the current epoch, as far as cursors tell, and every record behind
        the last cursor is an event of it."""
        keys, values, prefixes, after = run.keys, run.values, self._prefixes(), 0
        try:
            while True:
                at = keys.index(self.cursor_key, after)
                if not (values[at] or b"").startswith(prefixes):
                    return False
                after = at + 1
        except ValueError:  # that was the last cursor
            rest = values[after:]
            return None not in rest and all(map(bytes.startswith, rest, repeat(prefixes)))  # type: ignore[arg-type]

    def _prefixes(self) -> tuple[bytes, ...]:
        """How events of the current epoch begin. It changes with the epoch and when a schema becomes known."""
        wanted = (self.epoch, len(self.codec.book))
        if self._plain_for != wanted:
            self._plain_for, self._plain = wanted, self.codec.book.event_prefixes(self.epoch)
        return self._plain

    def _admits(self, record: Raw, poison: Callable[[Poison], None]) -> bool:
        """Whether the rules let a record in. Poison that has a key is let in, because what can't be read must not be
        taken for what stood there before."""
        if record.key is None:
            poison(Poison(record, KEYLESS))
            return False
        try:
            new = header_of(record, self.codec)
        except ValueError as error:
            poison(Poison(record, str(error)))
            return record.value is not None
        if not admits(new, self.epoch, self._before(record.key)):
            self.voided += 1
            return False
        self.epoch = new.epoch
        return True

    def _before(self, key: bytes) -> Header | None:
        old = self.values.get(key)
        try:
            return self.codec.peek(old) if old else None
        except ValueError:  # poison: whatever follows it is better
            return None

    def read(self, key: bytes) -> Event | None:
        """The newest event of an entity, decoded; None where there is none. Raises UnreadableRecord."""
        value = self.values.get(key)
        return None if value is None else self.codec.decode(value, Event, Place(self.topic, self.shard, -1))

    def deadlines(self) -> list[tuple[int, bytes]]:
        """Every deadline with its entity, as a heap: from the first bytes of each event, without decoding it."""
        found = []
        for key, value in self.values.items():
            try:
                due_at = self.codec.peek(value).due_at
            except ValueError:  # poison waits for nothing; whoever reads the entity learns
                due_at = 0
            if due_at:
                found.append((due_at, key))
        heapq.heapify(found)
        return found


def transactions(records: Sequence[Raw], cursor_key: bytes) -> list[list[Raw]]:
    """Whole transactions, each ending with the shard's cursor. What follows the last cursor is left out."""
    found: list[list[Raw]] = []
    begun: list[Raw] = []
    for record in records:
        begun.append(record)
        if record.key == cursor_key:
            found.append(begun)
            begun = []
    return found
