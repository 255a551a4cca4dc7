"""The whole log as plain bytes, for the oracle: read at once from the beginning, or recorded as it grows.

Nothing but Kafka's own consumer is used, with `read_committed`; none of Detent's readers, whose work is judged by it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from events.cluster import Cluster

SHARDED = ("events", "commands", "reports", "orders")
SINGLE = ("dead-letters",)
PATIENCE_S = 60.0


class Record(NamedTuple):
    """A record as a consumer got it; the topic is named without its prefix."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass
class Log:
    """Every record, by topic and partition, in the order of offsets."""

    shards: int = 1
    records: dict[tuple[str, int], list[Record]] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        self.records.setdefault((record.topic, record.partition), []).append(record)

    def of(self, topic: str) -> Iterable[Record]:
        return (record for (name, _), found in sorted(self.records.items()) if name == topic for record in found)

    def partition(self, topic: str, partition: int) -> list[Record]:
        return self.records.get((topic, partition), [])


def read_log(cluster: Cluster, topics: Mapping[str, int] | None = None) -> Log:
    """Everything that is committed now."""
    log = Log(cluster.shards)
    with _Reading(cluster, topics) as reading:
        deadline = time.monotonic() + PATIENCE_S
        while not reading.at_end:
            assert time.monotonic() < deadline, f"the log could not be read within {PATIENCE_S:g} s"
            for record in reading.poll():
                log.add(record)
    return log


class Recorder:
    """Follows all topics from the beginning and keeps what it gets: what a reader saw who was there all the time, also
    of what compaction has taken since. Use as a context; the topics must be there."""

    def __init__(self, cluster: Cluster) -> None:
        self.log = Log(cluster.shards)
        self._cluster = cluster
        self._stopping = threading.Event()
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._record, name="recorder", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def _record(self) -> None:
        try:
            with _Reading(self._cluster, None) as reading:
                while not self._stopping.is_set():
                    for record in reading.poll():
                        self.log.add(record)
        except Exception as error:  # noqa: BLE001  told to whoever asks for what was recorded
            self._failed = error

    def caught_up(self, now: Log, limit_s: float = 30.0) -> Log:
        """What was recorded, once it has come as far as the log that was read now."""
        deadline = time.monotonic() + limit_s
        while any(found and not self._has(found[-1]) for found in now.records.values()):
            if self._failed is not None:
                raise self._failed
            assert time.monotonic() < deadline, f"the recorder did not catch up within {limit_s:g} s"
            time.sleep(0.01)
        return self.log

    def _has(self, record: Record) -> bool:
        mine = self.log.partition(record.topic, record.partition)
        return bool(mine) and mine[-1].offset >= record.offset


class _Reading:
    def __init__(self, cluster: Cluster, topics: Mapping[str, int] | None) -> None:
        wanted = topics or dict.fromkeys(SHARDED, cluster.shards) | dict.fromkeys(SINGLE, 1)
        self._names = {cluster.topic(name): name for name in wanted}
        properties: dict[str, Any] = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": cluster.prefix,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            "socket.timeout.ms": 5000,
            "log_level": 0,
            **cluster.properties,
        }
        self._consumer = Consumer(properties)
        parts = [(cluster.topic(name), number) for name, count in wanted.items() for number in range(count)]
        self._unread = set(parts)
        self._consumer.assign([TopicPartition(name, number, OFFSET_BEGINNING) for name, number in parts])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    @property
    def at_end(self) -> bool:
        return not self._unread

    def poll(self) -> list[Record]:
        found = []
        for message in self._consumer.consume(1000, 0) or self._consumer.consume(1, 0.05):
            error = message.error()
            where = (str(message.topic()), int(message.partition() or 0))
            if error is None:
                found.append(self._record(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                self._unread.discard(where)
            elif not (error.retriable() or error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)):
                raise AssertionError(f"{where} can't be read: {error.str()} ({error.name()})")
        return found

    def _record(self, message: Message) -> Record:
        headers: Any = message.headers() or ()
        return Record(
            self._names[str(message.topic())],
            int(message.partition() or 0),
            int(message.offset() or 0),
            message.key(),
            message.value(),
            tuple(headers),
        )


def differences(recorded: Log, now: Log, *, compacted: bool = False) -> list[str]:
    """What somebody who read along saw, against what is there now: the same records, each once. Of a compacted topic
    the newest of each key is still there, and nothing that was not there before."""
    found = []
    for where in sorted({*recorded.records, *now.records}):
        then, there = recorded.records.get(where, []), now.records.get(where, [])
        offsets = [record.offset for record in then]
        if sorted(set(offsets)) != offsets:
            found.append(f"{where}: a reader got records twice or out of order")
        was, still = set(then), set(there)
        if missing := [record for record in there if record not in was]:
            found.append(f"{where}: a reader never got {missing[0].offset}: {missing[0].key!r}")
        gone = [record for record in then if record not in still]
        if compacted and where[0] in ("events", "orders"):
            newest = {record.key: record for record in then}
            gone = [record for record in gone if newest[record.key] is record and record.value is not None]
        if gone:
            found.append(f"{where}: a reader got what is not there any more: {gone[0].offset}: {gone[0].key!r}")
    return found
