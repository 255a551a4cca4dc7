"""Reads the worker's orders: a thread that passes over those of others by their keys, decodes its own and hands them
to the main thread in order. It decides nothing and never stops at a record that can't be read: that is put aside.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import Message

from events.cluster import Cluster
from events.codec import Codec
from events.dead_letters import DeadLetters
from events.errors import BrokerUnreachable, DetentError, Place, UnreadableKey, UnreadableRecord
from events.keys import order_prefix, parse_order_key
from events.reader import PartitionReader, offset_of, raw
from events.records import Order
from workers.happenings import Withdrawn
from workers.inbox import Inbox, Ordered
from workers.metrics import Metrics

LOG = logging.getLogger(__name__)
TOPIC = "orders"
POLL_S = 0.2
CHECK_EVERY_S = 60.0
RETRY_S = 1.0
T = TypeVar("T")


class Stopping(Exception):
    """The thread is told to end while it waits for the broker."""


class Orders:
    def __init__(
        self,
        cluster: Cluster,
        codec: Codec,
        worker: str,
        partition: int,
        position: int,
        inbox: Inbox,
        metrics: Metrics,
    ) -> None:
        self._cluster, self._codec, self._worker = cluster, codec, worker
        self._partition, self._inbox, self._metrics = partition, inbox, metrics
        self._prefix = order_prefix(worker)
        self._reader = PartitionReader(cluster, TOPIC, partition, position)
        self._dead_letters: DeadLetters | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orders", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The inbox must be closed before, or the thread may wait there."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._reader.close()

    def _run(self) -> None:
        try:
            self._read_on()
        except Stopping:
            LOG.debug("the reading of orders ends")
        except Exception as error:  # told to the main thread, which ends the process
            LOG.exception("orders can't be read any more worker=%s partition=%d", self._worker, self._partition)
            self._inbox.fail(error)

    def _read_on(self) -> None:
        handed, check_at = self._reader.position, time.monotonic() + CHECK_EVERY_S
        while not self._stopping.is_set():
            messages = self._reader.poll(POLL_S)
            found = [order for message in messages if (order := self._order(message)) is not None]
            self._metrics.orders_of_others.inc(len(messages) - len(found))
            position = self._reader.position
            if position > (found[-1].position if found else handed):
                found.append(Ordered(None, position))
            if found:
                if not self._inbox.hand_over(found):
                    return
                handed = position
            if messages:
                check_at = time.monotonic() + CHECK_EVERY_S
            elif time.monotonic() > check_at:
                self._reader.check()
                check_at = time.monotonic() + CHECK_EVERY_S

    def _order(self, message: Message) -> Ordered | None:
        """None for what is not for this worker, or can't be read."""
        key: bytes = message.key() or b""
        if not key.startswith(self._prefix):
            return None
        place = Place(TOPIC, self._partition, offset_of(message))
        try:
            if message.value() is None:
                _, job, pipeline, task = parse_order_key(key)
                return Ordered(Withdrawn(job, pipeline, task), place.offset + 1)
            order = self._answered(lambda: self._codec.decode(message.value(), Order, place))
            return Ordered(order, place.offset + 1)
        except (UnreadableRecord, UnreadableKey) as error:
            self._put_aside(message, str(error))
            return None

    def _put_aside(self, message: Message, reason: str) -> None:
        LOG.error("an order can't be read and is put aside worker=%s reason=%s", self._worker, reason)
        self._metrics.dead_letters.inc()
        if self._dead_letters is None:
            self._dead_letters = DeadLetters(self._cluster, self._codec, f"worker {self._worker}")
        letters = self._dead_letters
        try:
            letters.put(TOPIC, self._partition, raw(message), reason)
            self._answered(lambda: letters.flush(5.0))
        except DetentError as error:
            # It stays on the orders topic, where people find it by the line above. The worker must not stop for it.
            LOG.error("an order could not be put aside offset=%d: %s", offset_of(message), error)

    def _answered(self, ask: Callable[[], T]) -> T:
        """However long the broker is away: no orders come then either."""
        while not self._stopping.is_set():
            try:
                return ask()
            except BrokerUnreachable as error:
                LOG.warning("waits for the broker: %s", error)
                self._stopping.wait(RETRY_S)
        raise Stopping
