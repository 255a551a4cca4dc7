"""Listens to the workers' heartbeats, for all shards of a process: soft state, the same whoever leads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from coordinator.state import Heard
from events.cluster import Cluster
from events.codec import Codec
from events.errors import BrokerUnreachable, Place, UnreadableRecord
from events.inputs import InputsReader
from events.reader import offset_of
from events.records import Heartbeat

LOG = logging.getLogger(__name__)
TOPIC = "workers"


class Hearing:
    """A thread of its own reads; any thread may ask. What was on the topic when it began and is older than `lease_ms`
    is history. Whatever comes later was said now, and no clock is asked: neither ours nor a worker's need be right."""

    def __init__(self, cluster: Cluster, codec: Codec, now_ms: Callable[[], int], lease_ms: int) -> None:
        self._codec, self._now_ms, self._lease_ms = codec, now_ms, lease_ms
        self._reader = InputsReader(cluster, {(TOPIC, 0): None})
        self._began_at = self._reader.ends[TOPIC, 0]
        self._lock = threading.Lock()
        self._heard: dict[str, tuple[int, Heard]] = {}
        self._version = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="hearing", daemon=True)
        self.failed: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._reader.close()

    def since(self, version: int) -> tuple[int, list[Heard]]:
        """What was heard after a version, and the version to ask with the next time."""
        if version == self._version:
            return version, []
        with self._lock:
            return self._version, [heard for at, heard in self._heard.values() if at > version]

    def _listen(self) -> None:
        try:
            while not self._stopping.is_set():
                for _, _, message in self._reader.poll(0.1, 1000):
                    self._take(message)
        except Exception as error:  # told to the process, which ends
            LOG.exception("the workers can't be heard any more")
            self.failed = error

    def _take(self, message: Message) -> None:
        value, worker = message.value(), (message.key() or b"").decode(errors="replace")
        if value is None:
            with self._lock:
                self._heard.pop(worker, None)
            return
        try:
            said = self._codec.decode(value, Heartbeat, Place(TOPIC, 0, offset_of(message)))
        except (UnreadableRecord, BrokerUnreachable) as error:  # its schema may be unknown, and out of reach
            LOG.warning("a heartbeat can't be read worker=%s reason=%s", worker, error)
            return
        if self._is_history(message):
            return
        with self._lock:
            self._version += 1
            self._heard[said.worker] = (self._version, Heard(said, self._now_ms()))

    def _is_history(self, message: Message) -> bool:
        if offset_of(message) >= self._began_at:
            return False
        kind, sent_ms = message.timestamp()
        return kind != TIMESTAMP_NOT_AVAILABLE and time.time() * 1000 - sent_ms > self._lease_ms
