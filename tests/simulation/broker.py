"""A model of Kafka that is no kinder than Kafka: transactions with open records that hold readers up, fencing by epoch,
aborted records, offsets that nobody delivers, compaction with tombstone expiry, commits whose answer is lost, and
ends of transactions that arrive late and then end whatever is open under their epoch (KAFKA-17754)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from coordinator.draft import Gone

OPEN, COMMITTED, ABORTED, GONE = "open", "committed", "aborted", "gone"


class FencedError(Exception):
    """The producer's epoch is over."""


class NoAnswer(Exception):
    """The request may or may not have taken effect, now or later."""


@dataclass(frozen=True, slots=True)
class Rotten:
    """What is left of a record that nobody can read any more."""

    was: Any


@dataclass(slots=True)
class Stored:
    key: Any
    value: Any
    status: str
    at: int


@dataclass(slots=True)
class Partition:
    stored: list[Stored] = field(default_factory=list)
    stable: int = 0  # everything before it is decided: the last stable offset

    def append(self, key: Any, value: Any, status: str, at: int) -> Stored:
        record = Stored(key, value, status, at)
        self.stored.append(record)
        if status != OPEN and self.stable == len(self.stored) - 1:
            self.stable += 1
        return record

    def settle(self) -> None:
        while self.stable < len(self.stored) and self.stored[self.stable].status != OPEN:
            self.stable += 1

    def read(self, position: int, limit: int = 10_000) -> tuple[list[tuple[int, Any, Any]], int]:
        """Committed records from a position, and the position after them."""
        stored, stable = self.stored, self.stable
        if stable - position <= limit:  # as a rule
            records = enumerate(stored[position:stable], position)
            return [(at, r.key, r.value) for at, r in records if r.status == COMMITTED], max(position, stable)
        found: list[tuple[int, Any, Any]] = []
        while position < stable and len(found) < limit:
            record = stored[position]
            if record.status == COMMITTED:
                found.append((position, record.key, record.value))
            position += 1
        return found, position

    def compact(self, now: int, retention: int, keep: int) -> int:
        """What the cleaner may do at any time: drop what is superseded, and tombstones that have expired. The newest
        `keep` records are the active segment and stay."""
        newest: dict[Any, int] = {}
        clean = min(self.stable, len(self.stored) - keep)
        for offset in range(clean):
            if self.stored[offset].status == COMMITTED:
                newest[self.stored[offset].key] = offset
        dropped = 0
        for offset in range(clean):
            record = self.stored[offset]
            if record.status == ABORTED:
                record.status = GONE
            elif record.status == COMMITTED:
                tombstone = record.value is None or isinstance(record.value, Gone)
                if newest[record.key] != offset or (tombstone and now - record.at > retention):
                    record.status, record.value = GONE, None
                    dropped += 1
        return dropped


@dataclass
class Producer:
    epoch: int = 0
    open: list[tuple[Partition, Stored]] = field(default_factory=list)


class Broker:
    """Topics with one partition each."""

    def __init__(self) -> None:
        self.partitions: dict[str, Partition] = {}
        self.producers: dict[str, Producer] = {}
        self.late: list[tuple[int, str, int]] = []  # commits on their way: at which point, of whom, which epoch
        self.now = 0

    def partition(self, topic: str) -> Partition:
        known = self.partitions.get(topic)
        if known is None:
            known = self.partitions[topic] = Partition()
        return known

    def append(self, topic: str, key: Any, value: Any) -> None:
        self.partition(topic).append(key, value, COMMITTED, self.now)

    def init(self, transactional_id: str) -> int:
        """Fence the owner before and abort what it left open."""
        producer = self.producers.setdefault(transactional_id, Producer())
        producer.epoch += 1
        self._end(producer, ABORTED)
        return producer.epoch

    def send(self, transactional_id: str, epoch: int, topic: str, key: Any, value: Any) -> None:
        producer = self._owned(transactional_id, epoch)
        partition = self.partition(topic)
        producer.open.append((partition, partition.append(key, value, OPEN, self.now)))

    def commit(self, transactional_id: str, epoch: int) -> None:
        self._end(self._owned(transactional_id, epoch), COMMITTED)

    def time_out(self, transactional_id: str, epoch: int) -> None:
        """The broker gives the open transaction up: its writer did not end it in time."""
        self._end(self._owned(transactional_id, epoch), ABORTED)

    def commit_late(self, transactional_id: str, epoch: int, at: int) -> None:
        self.late.append((at, transactional_id, epoch))

    def arrive(self, point: int) -> None:
        """Late commits: each ends what is open under its epoch by then, which may be another transaction."""
        arrived = [each for each in self.late if each[0] <= point]
        for each in arrived:
            self.late.remove(each)
            producer = self.producers[each[1]]
            if producer.epoch == each[2]:
                self._end(producer, COMMITTED)

    def _owned(self, transactional_id: str, epoch: int) -> Producer:
        producer = self.producers[transactional_id]
        if producer.epoch != epoch:
            raise FencedError(transactional_id)
        return producer

    def _end(self, producer: Producer, status: str) -> None:
        touched = {id(partition): partition for partition, _ in producer.open}
        for _, record in producer.open:
            record.status = status
        producer.open.clear()
        for partition in touched.values():
            partition.append(None, None, GONE, self.now)  # the marker
            partition.settle()
