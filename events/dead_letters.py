"""Puts records aside that can't be used: whole, with the reason, where people can look at them.

A record put aside never stops a reader. It is written before anything is decided without it.
"""

from __future__ import annotations

import time

from confluent_kafka import KafkaError, Message

from events.cluster import Cluster, refuses
from events.codec import Codec
from events.errors import DetentError
from events.records import DeadLetter
from events.table import Poison, Raw


class DeadLetters:
    """Writes to the dead-letters topic. `by` says who puts aside."""

    def __init__(self, cluster: Cluster, codec: Codec, by: str) -> None:
        self._cluster, self._codec, self._by = cluster, codec, by
        self._topic = cluster.topic("dead-letters")
        # The letter holds a record as large as any topic takes, and more.
        self._producer = cluster.producer(message_max_bytes=1_000_000_000, compression_type="zstd")
        self._failed: KafkaError | None = None
        self.count = self._flushed = 0

    def put(self, topic: str, partition: int, record: Raw, reason: str) -> None:
        letter = DeadLetter(
            topic=topic,
            partition=partition,
            offset=record.offset,
            key=record.key,
            value=record.value,
            reason=reason,
            by=self._by,
            time=time.time_ns() // 1_000_000,
        )
        key = f"{topic}/{partition}/{record.offset}".encode()
        self._producer.produce(self._topic, self._codec.encode(letter), key, 0, self._delivered)
        self.count += 1

    def put_poison(self, topic: str, partition: int, poison: Poison) -> None:
        self.put(topic, partition, poison.record, poison.reason)

    def flush(self, patience_s: float = 30.0) -> None:
        """Wait until all are durable. Raises when they are not: whoever put them aside must not go on then."""
        if self.count == self._flushed:
            return
        self._cluster.flush(self._producer, "writing dead letters", patience_s)
        if self._failed is not None:
            failed, self._failed = self._failed, None
            if refuses(failed):
                raise self._cluster.refusal(f"writing to {self._topic}", failed)
            raise DetentError(f"a dead letter could not be written to {self._topic}: {failed.str()} ({failed.name()})")
        self._flushed = self.count

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failed = error
