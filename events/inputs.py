"""Reads several partitions as one stream, from where each was left: what a shard's leader consumes.

Order holds within a partition. A position that a log no longer has is an error, never a jump.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from events.cluster import Cluster, passes
from events.errors import Place
from events.reader import UnreadablePartition, offset_of
from events.topics import answered

PATIENCE_S = 30.0
Partition = tuple[str, int]  # topic without its prefix, and partition
END = -1


class Input(NamedTuple):
    """A record as it came, and where from."""

    topic: str
    partition: int
    message: Message

    @property
    def place(self) -> Place:
        return Place(self.topic, self.partition, offset_of(self.message))


class InputsReader:
    """One consumer on several partitions. Not for several threads at once."""

    def __init__(self, cluster: Cluster, starts: Mapping[Partition, int | None]) -> None:
        """Begin at these offsets; None is the first one that the log has, END what comes from now on: for these the
        broker is asked. Raises BrokerUnreachable."""
        self._cluster = cluster
        self._consumer: Consumer = cluster.consumer(queued_min_messages=20_000, queued_max_messages_kbytes=32_768)
        self._names = {cluster.topic(topic): topic for topic, _ in starts}
        self.positions: dict[Partition, int] = {}
        self.ends: dict[Partition, int] = {}  # how far each log went when reading began, where it was asked
        try:
            for (topic, partition), start in starts.items():
                self.positions[topic, partition] = self._first(topic, partition, start)
        except BaseException:
            self.close()
            raise
        self.go_to(self.positions)

    def close(self) -> None:
        self._consumer.close()

    def go_to(self, positions: Mapping[Partition, int]) -> None:
        """Read on from there."""
        self.positions = dict(positions)
        self._consumer.assign(
            [TopicPartition(self._cluster.topic(t), p, offset) for (t, p), offset in self.positions.items()]
        )

    def poll(self, timeout_s: float, limit: int) -> list[Input]:
        """What has arrived, at once when there is something; nothing when nothing does in time."""
        messages = self._consumer.consume(limit, 0) or self._consumer.consume(1, timeout_s)
        found = []
        for message in messages:
            topic, partition = self._names[str(message.topic())], int(message.partition() or 0)
            if self._is_record(message, topic, partition):
                self.positions[topic, partition] = offset_of(message) + 1
                found.append(Input(topic, partition, message))
        return found

    def _is_record(self, message: Message, topic: str, partition: int) -> bool:
        error = message.error()
        if error is None:
            return True
        if error.code() != KafkaError._PARTITION_EOF and not passes(error):
            place = Place(topic, partition, self.positions[topic, partition])
            raise UnreadablePartition(place, f"{error.str()} ({error.name()})")
        return False

    def _first(self, topic: str, partition: int, start: int | None) -> int:
        if start is not None and start != END:
            return start
        first, after = self._bounds(topic, partition)
        self.ends[topic, partition] = after
        return first if start is None else after

    def _bounds(self, topic: str, partition: int) -> tuple[int, int]:
        at = TopicPartition(self._cluster.topic(topic), partition)
        found: tuple[int, int] = answered(
            self._cluster,
            f"asking for the bounds of {topic}/{partition}",
            PATIENCE_S,
            lambda: self._consumer.get_watermark_offsets(at, timeout=3),
        )
        return found
