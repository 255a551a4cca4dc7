"""What a worker says on Kafka: heartbeats and reports. Sending never waits; what Kafka acknowledges is told back with
the time it was sent at, which is what the worker's lease is counted from.

A record that can't be delivered is lost and counted: the next heartbeat says more than the last one, and the worker's
core repeats every report that matters until it is settled.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from msgspec.structs import replace

from events import records
from events.cluster import Cluster, refuses
from events.codec import Codec
from events.keys import shard_of
from events.writer import OVERHEAD
from workers.metrics import Metrics

LOG = logging.getLogger(__name__)
HEARTBEATS, REPORTS = "workers", "reports"
MOST_WAITING = 10_000
MOST_WAITING_KBYTES = 64 * 1024
POLL_S = 0.1
MENTION_EVERY_S = 10.0
MOST_HEARTBEATS = 2  # unanswered: what was true when a broker went away is of no use when it is back


class Sender:
    """`heartbeat`, `report`, `flush` and `close` are for one thread; a thread of its own waits for Kafka's answers."""

    def __init__(
        self,
        cluster: Cluster,
        codec: Codec,
        answered: Callable[[int], None],
        failed: Callable[[Exception], None],
        now_ms: Callable[[], int],
        metrics: Metrics,
        *,
        max_record_bytes: int,
        timeout_ms: int,
    ) -> None:
        """`answered` is called, from a thread of the sender's, with the time at which something was sent that Kafka
        has by now; `failed`, when nothing can be
        sent any more, for good. What Kafka does not take within `timeout_ms` is given up."""
        self._cluster, self._codec, self._metrics = cluster, codec, metrics
        self._answered, self._on_failure, self._now_ms = answered, failed, now_ms
        self._max_record_bytes, self._timeout_ms = max_record_bytes, timeout_ms
        self._topics = {name: cluster.topic(name) for name in (HEARTBEATS, REPORTS)}
        self._producer = self._new_producer()
        self._made = 1  # clients so far: answers to an older one do not count
        self._fatal = False
        self._mention_at = 0.0
        self._heartbeats, self._counting = 0, threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="kafka-answers", daemon=True)
        self._thread.start()

    def heartbeat(self, heartbeat: records.Heartbeat) -> None:
        """Left out while the ones before it are not answered."""
        if self._heartbeats >= MOST_HEARTBEATS and not self._fatal:
            self._metrics.heartbeats.labels("left out").inc()
            return
        self._send(HEARTBEATS, 0, heartbeat.worker, self._codec.encode(heartbeat))

    def report(self, report: records.Report) -> None:
        value = self._codec.encode(report)
        if len(value) > self._max_record_bytes:
            smaller = _in_its_place(report, len(value), self._max_record_bytes)
            self._unsent("too large", f"{type(report.happening).__name__} of {report.job} has {len(value):,} bytes")
            if smaller is None:
                return
            value = self._codec.encode(smaller)
        self._send(REPORTS, shard_of(report.job, self._cluster.shards), report.job, value)

    def flush(self, patience_s: float) -> int:
        """Wait for Kafka's answers. How many there are still to come when patience is over."""
        deadline = time.monotonic() + patience_s  # the thread takes the answers, and knows what to make of errors
        while (left := len(self._producer)) and time.monotonic() < deadline:
            time.sleep(0.005)
        return left

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _send(self, topic: str, partition: int, key: str, value: bytes) -> None:
        if self._fatal:  # the client says that this producer will never send again
            self._fatal, self._producer, self._made, self._heartbeats = False, self._new_producer(), self._made + 1, 0
        delivered = partial(self._delivered, self._made, topic, self._now_ms())
        try:
            self._producer.produce(self._topics[topic], value, key.encode(), partition, delivered)
            if topic == HEARTBEATS:
                self._count(1)
        except BufferError:
            self._lost(topic, "queue full", "the client's queue is full")
        except KafkaException as failure:
            self._failed(topic, failure.args[0])

    def _count(self, change: int) -> None:
        with self._counting:
            self._heartbeats += change

    def _delivered(self, by: int, topic: str, sent_ms: int, error: KafkaError | None, _message: Message) -> None:
        if topic == HEARTBEATS and by == self._made:
            self._count(-1)
        if error is not None:
            self._failed(topic, error)
            return
        if topic == HEARTBEATS:
            self._metrics.heartbeats.labels("delivered").inc()
        self._answered(sent_ms)

    def _failed(self, topic: str, error: KafkaError) -> None:
        self._judge(error)
        self._lost(topic, "not delivered", f"{error.str()} ({error.name()})")

    def _lost(self, topic: str, reason: str, detail: str) -> None:
        if topic == HEARTBEATS:
            self._metrics.heartbeats.labels(reason).inc()
            LOG.debug("a heartbeat was not sent: %s", detail)
        else:
            self._unsent(reason, detail)

    def _unsent(self, reason: str, detail: str) -> None:
        self._metrics.reports_unsent.labels(reason).inc()
        if (now := time.monotonic()) >= self._mention_at:
            self._mention_at = now + MENTION_EVERY_S
            LOG.warning("a report was not sent, and is repeated where it matters: %s: %s", reason, detail)

    def _listen(self) -> None:
        try:
            while not self._closing.is_set():
                self._poll()
        except Exception as error:  # told to the main thread, which ends the process
            LOG.exception("Kafka's answers can't be taken any more")
            self._on_failure(error)

    def _poll(self) -> None:
        try:
            self._producer.poll(POLL_S)
        except (KafkaException, SystemError) as failure:
            # A fatal error of the client is raised amid its callbacks: Python may call that a SystemError.
            fatal = failure.__cause__ if isinstance(failure, SystemError) else failure
            if not isinstance(fatal, KafkaException):
                raise
            self._judge(fatal.args[0])
            self._closing.wait(POLL_S)  # until the main thread sends something, with a new client

    def _judge(self, error: KafkaError) -> None:
        if refuses(error):
            self._on_failure(self._cluster.refusal("sending heartbeats and reports", error))
        elif error.fatal():
            LOG.error("the client can't send any more and is made anew: %s (%s)", error.str(), error.name())
            self._fatal = True

    def _new_producer(self) -> Producer:
        return self._cluster.producer(
            linger_ms=0,
            message_timeout_ms=self._timeout_ms,
            message_max_bytes=self._max_record_bytes + OVERHEAD,
            queue_buffering_max_messages=MOST_WAITING,
            queue_buffering_max_kbytes=MOST_WAITING_KBYTES,
        )


def _in_its_place(report: records.Report, size: int, limit: int) -> records.Report | None:
    """What can be said instead of a report that no topic takes. An acknowledgement only grows until a checkpoint is
    completed, so trying again is pointless; the others have no parts that grow."""
    said = report.happening
    if not isinstance(said, records.CheckpointAcked):
        return None
    reason = (
        f"its acknowledgement has {size:,} bytes and may have {limit:,}: {len(said.staged):,} pieces of output are "
        "staged. Let the job write fewer, larger pieces or checkpoint more often, or raise kafka.max_record_bytes."
    )
    failed = records.CheckpointFailed(checkpoint=said.checkpoint, lasting=True, reason=reason)
    return replace(report, happening=failed)
