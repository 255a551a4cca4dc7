"""The schemas topic: the log describes itself, so that any later version reads any earlier log.

Whoever writes puts the schemas it writes with there first. Key: the fingerprint in hexadecimal; value: the schema.
"""

from __future__ import annotations

import json
import logging
import threading
import time

from confluent_kafka import KafkaError, Message

from events.cluster import Cluster, refuses
from events.codec import Codec, SchemaBook
from events.errors import DetentError
from events.reader import PartitionReader

LOG = logging.getLogger(__name__)
REFRESH_AT_MOST_EVERY_S = 1.0


class SchemaTopic:
    """Keeps a book of schemas in step with the topic. One thread at a time."""

    def __init__(self, cluster: Cluster, book: SchemaBook) -> None:
        self._cluster, self._book = cluster, book
        self._reader = PartitionReader(cluster, "schemas", 0)
        self._on_topic: set[bytes] = set()
        self._refreshed = float("-inf")

    def close(self) -> None:
        self._reader.close()

    def load(self, patience_s: float = 30.0) -> None:
        """Learn every schema on the topic up to its end. A schema that can't be used is logged: the records written
        with it will be named as they are met."""
        end = self._reader.start_and_end(patience_s)[1]
        deadline = time.monotonic() + patience_s
        while self._reader.position < end:
            for message in self._reader.poll(0.1):
                self._learn(message)
            if time.monotonic() > deadline:
                raise self._cluster.no_answer("reading the schemas topic", patience_s)
        self._refreshed = time.monotonic()

    def refresh(self) -> None:
        """Learn what is new, but not again at once: garbage with made-up fingerprints must not become load."""
        if time.monotonic() - self._refreshed >= REFRESH_AT_MOST_EVERY_S:
            self.load()

    def publish(self, patience_s: float = 30.0) -> int:
        """Put the schemas of this version on the topic where they are missing. Returns how many were."""
        self.load(patience_s)
        missing = [name for name, key in self._book.fingerprints.items() if key.hex().encode() not in self._on_topic]
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failed.append(error)

        producer = self._cluster.producer()
        for name in missing:
            value = json.dumps(self._book.own[name], separators=(",", ":")).encode()
            key = self._book.fingerprints[name].hex().encode()
            producer.produce(self._cluster.topic("schemas"), value, key, 0, delivered)
        self._cluster.flush(producer, "writing the schemas topic", patience_s)
        if failed and refuses(failed[0]):
            raise self._cluster.refusal(f"writing to {self._cluster.topic('schemas')}", failed[0])
        if failed:
            raise DetentError(f"the schemas topic does not take our schemas: {failed[0].str()}")
        return len(missing)

    def _learn(self, message: Message) -> None:
        key, value = message.key() or b"", message.value()
        if value is None:
            return
        try:
            fingerprint = self._book.add(json.loads(value))
            if fingerprint.hex().encode() != key:
                raise DetentError(f"its key is {key!r}, its fingerprint {fingerprint.hex()}")
            self._on_topic.add(key)
        except (ValueError, DetentError) as error:
            LOG.error("a schema can't be used offset=%s key=%r reason=%s", message.offset(), key, error)


def shared_codec(cluster: Cluster) -> Codec:
    """For all threads of a process; our schemas are on the log before anything is written with them."""
    return _codec(cluster, writes=True)


def reading_codec(cluster: Cluster, patience_s: float = 30.0) -> Codec:
    """For all threads of a process that only reads: it needs no right to write."""
    return _codec(cluster, writes=False, patience_s=patience_s)


def _codec(cluster: Cluster, *, writes: bool, patience_s: float = 30.0) -> Codec:
    book = SchemaBook()
    topic, lock = SchemaTopic(cluster, book), threading.Lock()
    try:
        if writes:
            topic.publish(patience_s)
        else:
            topic.load(patience_s)
    except BaseException:
        topic.close()
        raise

    def refresh() -> None:
        with lock:
            topic.refresh()

    return Codec(book, refresh=refresh)
