"""The transactional writer of a shard: everything of a transaction becomes visible together, or nothing does.

One transactional id per shard; opening a writer fences the one before it. librdkafka speaks transactions V1, in which
a late commit or abort can end the *next* transaction of the same producer (KAFKA-17754). So a producer whose commit or
abort got no definite answer is thrown away and never begins another: a new one bumps the epoch, which voids the stray
request, and the log tells what happened.

Errors, in the order they are looked at: fenced, refused or fatal → the producer is thrown away; needs abort → aborted,
and the caller goes back to its cursor; retriable → called again until the answer is definite or time is up; anything
else → the producer is thrown away.

Fencing is fast because it is asked for again and again. A coordinator that finds a transaction of the owner before
begins to abort it and answers "try again"; librdkafka by itself would do so half a second later, and no property
shortens that. A new call of `init_transactions` makes it ask at once. It never has two questions open (a call while one
is unanswered only waits on), so no later answer can fence the producer that took an earlier one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from events.cluster import LOG as LIBRDKAFKA_LOG
from events.cluster import SOCKET_TIMEOUT_MS, Cluster, passes, refuses
from events.codec import Codec
from events.errors import DetentError, Fenced, OutcomeUnknown, RecordTooLarge, TransactionAborted
from events.records import Event
from events.table import Headers

LOG = logging.getLogger(__name__)

# Room for the batch's and the record's own overhead below the broker's limit.
OVERHEAD = 1024
MAX_RECORD_BYTES = 4 * 1024 * 1024
TRANSACTION_TIMEOUT_MS = 5000
# How long a call of `init_transactions` waits before the next one. An abort takes some milliseconds; where it takes
# long, or no broker is there, the calls become rare within a second.
FIRST_WAIT_S = 0.004
LONGEST_WAIT_S = 0.25
WAIT_GROWTH = 1.25
FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})


class Outgoing(NamedTuple):
    """A record to write: for `topic` without its prefix."""

    topic: str
    partition: int  # -1: by the key
    key: bytes | None
    value: bytes | None
    headers: Headers | None = None


def outgoing_events(codec: Codec, shard: int, events: Sequence[Event]) -> list[Outgoing]:
    """Events as records: the key is the entity that the event names."""
    values = codec.encode_all(events, "Event")
    return [
        Outgoing("events", shard, event.entity.encode(), value) for event, value in zip(events, values, strict=True)
    ]


class ShardLog(logging.LoggerAdapter[logging.Logger]):
    """librdkafka warns of every "try again" while a writer opens, of which there are several when all is well, and it
    calls it fatal to be fenced, which is how leaders change. All that is for debugging; the writer says what counts."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        usual = args[:1] == ("GETPID",) or any("fenced" in str(arg) or "old epoch" in str(arg) for arg in args)
        super().log(logging.DEBUG if usual else level, msg, *args, **kwargs)


def shard_producer(
    cluster: Cluster, transactional_id: str, max_record_bytes: int, transaction_timeout_ms: int
) -> Producer:
    """A producer that may own the id one day. It connects, and fences nobody until `init_transactions`."""
    return cluster.producer(
        transactional_id=transactional_id,
        transaction_timeout_ms=transaction_timeout_ms,
        message_timeout_ms=transaction_timeout_ms,
        socket_timeout_ms=min(SOCKET_TIMEOUT_MS, transaction_timeout_ms),  # the client demands it
        message_max_bytes=max_record_bytes + OVERHEAD,
        queue_buffering_max_messages=1_000_000,
        logger=ShardLog(LIBRDKAFKA_LOG, {}),
    )


class TransactionalWriter:
    """A producer that owns a shard until a newer one does. Not for several threads at once.

    After Fenced, AccessRefused or OutcomeUnknown it is closed: open another with `TransactionalWriter(...)` and read
    the log. Who stands by for the shard makes a `WarmWriter` beforehand and is quicker."""

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        max_record_bytes: int = MAX_RECORD_BYTES,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        patience_s: float = 30.0,
        warm: WarmWriter | None = None,
    ) -> None:
        self.transactional_id = transactional_id
        self._cluster = cluster
        self._max_record_bytes = max_record_bytes
        self._timeout_s = transaction_timeout_ms / 1000
        self._topics: dict[str, str] = {}
        self._last_offset = -1
        self._producer: Producer | None = (
            warm.hand_over()
            if warm is not None
            else shard_producer(cluster, transactional_id, max_record_bytes, transaction_timeout_ms)
        )
        try:
            self._take_over(patience_s)
        except BaseException:
            # It goes on asking in the background for as long as it lives, and would fence who leads by then.
            self.close()
            raise

    def __enter__(self) -> TransactionalWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the producer up. An open transaction is left to the next owner's fencing."""
        self._producer = None

    @property
    def closed(self) -> bool:
        return self._producer is None

    def commit(self, records: Iterable[Outgoing]) -> int:
        """Write all records in one transaction. Returns the offset of the last one. It is durable then, and visible to
        readers as soon as the broker has written its markers, some milliseconds later.

        Raises RecordTooLarge (nothing was sent), TransactionAborted (nothing will be visible, this writer goes on),
        Fenced, AccessRefused (nothing will be visible) or OutcomeUnknown (this writer is closed)."""
        producer = self._open()
        batch = self._checked(records)
        self._call("begin", producer.begin_transaction)
        deadline = time.monotonic() + self._timeout_s
        for record in batch[:-1]:
            self._produce(producer, record, deadline)
        self._produce(producer, batch[-1], deadline, self._delivered)
        # With a limit to each call: without one, a broker that is frozen would be waited for as long as it is.
        self._call("commit", lambda: producer.commit_transaction(self._timeout_s))
        return self._last_offset

    def commit_stream(self, records: Iterable[Outgoing]) -> None:
        """As `commit`, for more records than fit into memory: they are taken one by one. An error of whoever makes them
        aborts the transaction and is raised; so is RecordTooLarge."""
        producer = self._open()
        self._call("begin", producer.begin_transaction)
        for record in self._or_abort(producer, records):
            self._produce(producer, record, time.monotonic() + self._timeout_s)
        self._call("commit", lambda: producer.commit_transaction(self._timeout_s))

    def _or_abort(self, producer: Producer, records: Iterable[Outgoing]) -> Iterator[Outgoing]:
        try:
            for record in records:
                self._checked([record])
                yield record
        except Exception:
            self._call("abort", lambda: producer.abort_transaction(self._timeout_s))
            raise

    def _checked(self, records: Iterable[Outgoing]) -> Sequence[Outgoing]:
        batch = records if isinstance(records, list) else list(records)
        if not batch:
            raise DetentError("a transaction has at least one record: its cursor")
        sizes = [len(record.key or b"") + len(record.value or b"") for record in batch]
        if (size := max(sizes)) > self._max_record_bytes:
            largest = batch[sizes.index(size)]
            raise RecordTooLarge(largest.topic, largest.key or b"", size, self._max_record_bytes)
        return batch

    def _open(self) -> Producer:
        if self._producer is None:
            raise DetentError(f"the writer {self.transactional_id} is closed; open a new one and read the log first")
        return self._producer

    def _take_over(self, patience_s: float) -> None:
        """Fence the owner before, abort what it left open, and own the id."""
        started, wait_s, mention_at_s = time.monotonic(), FIRST_WAIT_S, 1.0
        while (waited_s := time.monotonic() - started) < patience_s:
            try:
                return self._open().init_transactions(min(wait_s, patience_s - waited_s))
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if not error.retriable():
                    self._give_up("opening", error)
                if waited_s >= mention_at_s:
                    if refused := self._cluster.turned_away(self._doing("opening"), min(1.0, waited_s / 4)):
                        raise refused from failure
                    LOG.warning("writer=%s is not open after %.0f s: %s", self.transactional_id, waited_s, error.str())
                    mention_at_s = 2 * waited_s
            wait_s = min(wait_s * WAIT_GROWTH, LONGEST_WAIT_S)
        raise self._cluster.no_answer(f"opening {self.transactional_id}", patience_s)

    def _produce(
        self, producer: Producer, record: Outgoing, deadline: float, delivered: Callable[..., None] | None = None
    ) -> None:
        topic = self._topics.get(record.topic)
        if topic is None:
            topic = self._topics[record.topic] = self._cluster.topic(record.topic)
        while True:
            try:
                if record.headers is None:
                    return producer.produce(topic, record.value, record.key, record.partition, delivered)
                headers: list[tuple[str, str | bytes | None]] = [*record.headers]
                return producer.produce(topic, record.value, record.key, record.partition, delivered, headers=headers)
            except BufferError:
                producer.poll(0.05)
                if time.monotonic() > deadline:
                    self._abort("produce", f"the broker did not take the records within {self._timeout_s:g} s")
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if error.fatal():
                    self._give_up("produce", error)
                # Not even queued, and nothing is committed yet: aborting is definite.
                self._abort("produce", error)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        self._last_offset = -1 if error else message.offset() or 0

    def _call(self, doing: str, call: Callable[[], None]) -> None:
        """Call until the answer is definite. librdkafka resumes a call that was interrupted by its own time limit."""
        deadline, pause = time.monotonic() + 2 * self._timeout_s, 0.01
        while True:
            try:
                return call()
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if not error.retriable() or error.txn_requires_abort() or time.monotonic() > deadline:
                    self._fail(doing, error)
                time.sleep(pause)
                pause = min(2 * pause, 0.5)

    def _fail(self, doing: str, error: KafkaError) -> NoReturn:
        if not error.fatal() and error.txn_requires_abort() and doing != "abort":
            self._abort(doing, error)
        self._give_up(doing, error)

    def _abort(self, doing: str, why: KafkaError | str) -> NoReturn:
        if isinstance(why, KafkaError):
            if refuses(why):  # then the abort may be refused as well, and deciding again would end here again
                self._give_up(doing, why)
            why = f"{doing}: {why.str()} ({why.name()})"
        producer = self._open()
        self._call("abort", lambda: producer.abort_transaction(self._timeout_s))
        raise TransactionAborted(self.transactional_id, why)

    def _give_up(self, doing: str, error: KafkaError) -> NoReturn:
        """Throw the producer away: it must never begin another transaction."""
        self.close()
        reason = f"{error.str()} ({error.name()})"
        if error.code() in FENCED:
            raise Fenced(self.transactional_id, reason)
        if refuses(error):
            raise self._cluster.refusal(self._doing(doing), error)
        raise OutcomeUnknown(self.transactional_id, doing, reason)

    def _doing(self, call: str) -> str:
        return f"writing as {self.transactional_id} ({call})"


class WarmWriter:
    """A writer that stands by: connected, the leaders of its topics known, owner of nothing. Only `take_over` fences.

    Not for several threads at once. Nothing about it is durable: it writes nothing and may be dropped at any time.
    While it waits, librdkafka's own threads keep one connection, renew it within about a second when brokers come back,
    and refresh the leaders every minute. It serves once: after `take_over`, whatever came of it, it is closed.

    The topics must be there: a cluster that creates topics by itself would make wrong ones of their names."""

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        topics: Iterable[str] = ("events", "orders"),
        max_record_bytes: int = MAX_RECORD_BYTES,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    ) -> None:
        """Returns at once, connected or not; `tend` warms it."""
        self.transactional_id = transactional_id
        self._cluster = cluster
        self._max_record_bytes = max_record_bytes
        self._transaction_timeout_ms = transaction_timeout_ms
        self._unknown = [cluster.topic(name) for name in topics]
        self._producer: Producer | None = shard_producer(
            cluster, transactional_id, max_record_bytes, transaction_timeout_ms
        )

    def __enter__(self) -> WarmWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stand by no longer. Nobody notices."""
        self._producer = None

    @property
    def closed(self) -> bool:
        return self._producer is None

    def tend(self, limit_s: float = 0.1) -> bool:
        """Ask for the leaders of the topics that are not known yet, at most for so long, and pass on what librdkafka
        has to log. True when it is warm. To be called when it is made and now and then, say with every beat; without
        that a take-over still works, a little slower."""
        producer = self._open()
        producer.poll(0)
        deadline = time.monotonic() + limit_s
        while self._unknown and (left_s := deadline - time.monotonic()) > 0:
            topic = self._unknown[-1]
            try:
                if producer.list_topics(topic, timeout=left_s).topics[topic].error is not None:
                    break
            except KafkaException as failure:
                if not passes(failure.args[0]):
                    raise
                break
            self._unknown.pop()
        return not self._unknown

    def take_over(self, patience_s: float = 30.0) -> TransactionalWriter:
        """Fence the owner and abort what it left open. The writer owns the shard when this returns; what its
        predecessor committed is on the log then, whole: measure the end, read, go on.

        Raises BrokerUnreachable when there was no answer in time, AccessRefused when the answer was a refusal."""
        return TransactionalWriter(
            self._cluster,
            self.transactional_id,
            max_record_bytes=self._max_record_bytes,
            transaction_timeout_ms=self._transaction_timeout_ms,
            patience_s=patience_s,
            warm=self,
        )

    def hand_over(self) -> Producer:
        """The producer, to the writer that takes over with it. From here on it is that writer's alone."""
        producer, self._producer = self._open(), None
        return producer

    def _open(self) -> Producer:
        if self._producer is None:
            raise DetentError(f"the warm writer {self.transactional_id} is closed or was used; make a new one")
        return self._producer
