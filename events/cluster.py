"""Which Kafka cluster, under which names, and how every client of Detent talks to it.

The one place where a librdkafka property is set. It holds no state, and opens no connection by itself except to ask why
brokers turn us away.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from events.errors import AccessRefused, BrokerUnreachable, DetentError, PropertyRefused

Properties = dict[str, str | int | float | bool]
Client = TypeVar("Client")
Log = logging.Logger | logging.LoggerAdapter[logging.Logger]
NUMBERS = re.compile(r"\d+")
MOST_KINDS = 1000


class Repetitions(logging.Filter):
    """While a broker is away every client tries to connect dozens of times a second, and says so each time. A line that
    differs from an earlier one by its numbers only is let through once in a while, with how many were not."""

    def __init__(self, every_s: float = 10.0, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._every_s, self._now_s = every_s, now_s
        self._lock = threading.Lock()
        self._said: dict[str, tuple[float, int]] = {}  # when it was last let through, and how often it was not since

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:  # somebody asked for all of it
            return True
        kind, now = NUMBERS.sub("#", record.getMessage()), self._now_s()
        with self._lock:
            at, held_back = self._said.get(kind, (-self._every_s, 0))
            if now - at < self._every_s:
                self._said[kind] = (at, held_back + 1)
                return False
            if len(self._said) >= MOST_KINDS:
                self._said.clear()
            self._said[kind] = (now, 0)
        if held_back:
            record.msg, record.args = f"{record.getMessage()} ({held_back} more like it since the last one)", None
        return True


# librdkafka's own log lines go to Python's logging, where the application decides what to do with them.
LOG = logging.getLogger("events.librdkafka")
LOG.addFilter(Repetitions())

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
        KafkaError._DESTROY_BROKER,  # the client lets a connection go that it was about to ask by
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


# What does not: a user whom the broker does not know, a certificate that does not fit, a right that is missing.
CHECK_LOGIN = "Check the user, the password and the mechanism (kafka.sasl.*)."
CHECK_CERTIFICATE = (
    "Check that kafka.security.protocol is what this address speaks, and that kafka.ssl.ca.location holds the "
    "authority that signed the broker's certificate."
)
CHECK_RIGHTS = "Give this user the rights of its role; docs/security.md lists them."
REMEDIES = {
    KafkaError._AUTHENTICATION: CHECK_LOGIN,
    KafkaError.SASL_AUTHENTICATION_FAILED: CHECK_LOGIN,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: CHECK_LOGIN,
    KafkaError._SSL: CHECK_CERTIFICATE,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: CHECK_RIGHTS,
    KafkaError.GROUP_AUTHORIZATION_FAILED: CHECK_RIGHTS,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: CHECK_RIGHTS,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: CHECK_RIGHTS,
}


def passes(error: KafkaError) -> bool:
    """Whether asking again makes sense."""
    return error.retriable() or error.code() in PASSING


def refuses(error: KafkaError) -> bool:
    """Whether it is a broker that turns us away. One that goes away during the handshake does not: that passes."""
    return error.code() in REMEDIES


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
        # A group is required by the client and never used: partitions are assigned, and the cursor is ours.
        merged = self._with({"group.id": self.prefix}, READING, _dotted(properties))
        return _made(lambda: Consumer(merged, logger=LOG))

    def producer(self, *, logger: Log = LOG, **properties: str | int | float | bool) -> Producer:
        merged = self._with(WRITING, _dotted(properties))
        return _made(lambda: Producer(merged, logger=logger))

    def of_clients(self) -> dict[str, str]:
        """What others need to reach this cluster as Detent does, secrets included."""
        given = {name: str(value) for name, value in self.properties.items()}
        return {"bootstrap.servers": self.bootstrap_servers, **given}

    def transactional_id(self, shard: int) -> str:
        """Whoever opened a producer with it last leads the shard."""
        return f"{self.prefix}-shard-{shard}"

    def refusal(self, doing: str, error: KafkaError) -> AccessRefused:
        reason = f"{error.str().strip(' .')} ({error.name()})"
        return AccessRefused(self.bootstrap_servers, doing, reason, REMEDIES[error.code()])

    def no_answer(self, doing: str, waited_s: float) -> DetentError:
        """What to raise when no broker answered: why they turn us away if they do, else that they can't be reached."""
        return self.turned_away(doing) or BrokerUnreachable(self.bootstrap_servers, doing, waited_s)

    def turned_away(self, doing: str, timeout_s: float = 1.0) -> AccessRefused | None:
        """Ask whether brokers turn us away at the door. The client library would go on knocking for ever, and what
        calls see of it is a time-out; the reason is told to a callback only, so this asks with a client of its own."""
        heard: list[KafkaError] = []
        admin = AdminClient({**self._with({}), "error_cb": heard.append}, logger=LOG)  # type: ignore[dict-item]
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                admin.list_topics(timeout=min(left_s, 0.1))
            except KafkaException:
                admin.poll(0)  # calls what it has heard
            else:
                return None
            for error in filter(refuses, heard):
                return self.refusal(doing, error)
        return None

    def flush(self, producer: Producer, doing: str, patience_s: float) -> None:
        """Wait until the producer has an answer for all it was given. Each record's own answer is its callback's."""
        try:
            left = producer.flush(patience_s)
        except (KafkaException, SystemError) as failure:
            # Whoever may not write anything at all is told so by a fatal error, which the client library raises amid
            # its callbacks: Python calls that a SystemError, with the real one as the cause.
            fatal = failure.__cause__ if isinstance(failure, SystemError) else failure
            if not isinstance(fatal, KafkaException):
                raise
            error: KafkaError = fatal.args[0]
            if refuses(error):
                raise self.refusal(doing, error) from failure
            raise DetentError(f"{doing} failed for good: {error.str()} ({error.name()})") from failure
        if left:
            raise self.no_answer(doing, patience_s)

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
