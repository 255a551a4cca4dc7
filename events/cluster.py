"""Which Kafka cluster, under which names, and how every client of Detent talks to it.

The one place where a librdkafka property is set. It holds no state and opens no connection by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from events.errors import PropertyRefused

Properties = dict[str, str | int | float | bool]
Client = TypeVar("Client")
Log = logging.Logger | logging.LoggerAdapter[logging.Logger]

# librdkafka's own log lines go to Python's logging, where the application decides what to do with them.
LOG = logging.getLogger("events.librdkafka")

# A paused or cut-off broker is given up after this long; librdkafka's default is a minute.
SOCKET_TIMEOUT_MS = 3000
FETCH_WAIT_MS = 100
EVERYWHERE: Properties = {
    "socket.timeout.ms": SOCKET_TIMEOUT_MS,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 1000,
    "topic.metadata.refresh.interval.ms": 60_000,
}
READING: Properties = {
    "group.id": "detent",  # required by the client, never used: partitions are assigned and the cursor is ours
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    # A position the log no longer has is an error, never a silent jump.
    "auto.offset.reset": "error",
    # Prefetch: bounded in bytes, and without the default pause of a second when the queue is full.
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 131_072,
    "fetch.queue.backoff.ms": 5,
    "fetch.message.max.bytes": 16 * 1024 * 1024,
    "fetch.wait.max.ms": FETCH_WAIT_MS,
}
WRITING: Properties = {
    "acks": "all",
    "enable.idempotence": True,
    "max.in.flight.requests.per.connection": 5,
    "linger.ms": 1,
    "compression.type": "lz4",
}


# What passes by itself: a broker or a leader that is not there just now, a topic so new that not every broker has
# heard of it.
PASSING = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)


def passes(error: KafkaError) -> bool:
    """Whether asking again makes sense."""
    return error.retriable() or error.code() in PASSING


@dataclass(frozen=True)
class Cluster:
    """A cluster, the prefix of Detent's topics on it, and the number of shards."""

    bootstrap_servers: str
    prefix: str = "detent"
    shards: int = 4
    # Any other librdkafka property (security, tuning); it wins over Detent's own. Not shown: there may be secrets.
    properties: Mapping[str, str | int | float | bool] = field(default_factory=dict, repr=False)

    def topic(self, name: str) -> str:
        return f"{self.prefix}.{name}"

    def admin(self) -> AdminClient:
        properties = self._with({})
        return _made(lambda: AdminClient(properties, logger=LOG))

    def consumer(self, **properties: str | int | float | bool) -> Consumer:
        merged = self._with(READING, _dotted(properties))
        return _made(lambda: Consumer(merged, logger=LOG))

    def producer(self, *, logger: Log = LOG, **properties: str | int | float | bool) -> Producer:
        merged = self._with(WRITING, _dotted(properties))
        return _made(lambda: Producer(merged, logger=logger))

    def _with(self, *more: Mapping[str, str | int | float | bool]) -> Properties:
        merged: Properties = {"bootstrap.servers": self.bootstrap_servers, **EVERYWHERE}
        for properties in more:
            merged |= properties
        return merged | dict(self.properties)


def _made(client: Callable[[], Client]) -> Client:
    try:
        return client()
    except KafkaException as error:
        raise PropertyRefused(error.args[0].str()) from error


def _dotted(properties: Mapping[str, str | int | float | bool]) -> Properties:
    return {name.replace("_", "."): value for name, value in properties.items()}
