"""The log as the web's process sees it: the read model in a thread of its own, opened however long the broker is away,
and the way for commands onto the log. Any thread may ask."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from coordinator.past import Past
from coordinator.read_model import ReadModel
from coordinator.web.problems import Refused
from events.asking import Asker, shards_of
from events.cluster import Cluster
from events.errors import DetentError, Place
from events.records import Command
from events.schema_topic import reading_codec, shared_codec

T = TypeVar("T")
LOG = logging.getLogger(__name__)
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 10.0
PUBLISH_S = 10.0
NOT_YET = "Not decided yet"


class Window:
    def __init__(self, cluster: Cluster, lease_ms: int, *, operates: bool = True) -> None:
        """Who only looks needs no right to write anything."""
        self._cluster, self._lease_ms, self._operates = cluster, lease_ms, operates
        self._model: ReadModel | None = None
        self._asker: Asker | None = None
        self._past: Past | None = None
        self._historian = ThreadPoolExecutor(1, "past")  # the past is for one thread at a time
        self._reason = "the log is being read for the first time"
        self._stopping = threading.Event()
        self._opening = threading.Thread(target=self._open, name="window", daemon=True)
        self._waiting: list[Callable[[ReadModel], object]] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        self._opening.start()

    def stop(self) -> None:
        self._stopping.set()
        self._opening.join()
        if self._model is not None:
            self._model.stop()
        self._historian.shutdown(cancel_futures=True)
        if self._past is not None:
            self._past.close()

    @property
    def model(self) -> ReadModel:
        """Raises Refused while the log can't be read."""
        if self._model is None or self._model.failed is not None:
            raise self._refusal()
        return self._model

    def _refusal(self) -> Refused:
        reason = str(self._model.failed) if self._model is not None else self._reason
        return Refused(503, "Not available", f"{reason}; ask again in a few seconds")

    @property
    def is_open(self) -> bool:
        return self._model is not None and self._model.failed is None

    @property
    def cluster(self) -> Cluster:
        return self._cluster

    def when_open(self, use: Callable[[ReadModel], object]) -> None:
        """Call this with the read model as soon as there is one."""
        with self._lock:
            if self._model is None:
                self._waiting.append(use)
                return
        use(self._model)

    async def ask_past(self, ask: Callable[[Past], T]) -> T:
        """What the log tells of the past, asked in the thread that reads it."""
        past = self._past
        if past is None:
            raise self._refusal()
        return await asyncio.get_running_loop().run_in_executor(self._historian, ask, past)

    async def publish(self, command: Command) -> Place:
        """Put a command on the log; where it stands then. Raises Refused or DetentError."""
        if self._asker is None:
            raise self._refusal()
        return await asyncio.to_thread(self._asker.publish, command, PUBLISH_S)

    async def wait_for(self, shard: int, offset: int, wait_ms: int) -> None:
        """Until a command is decided on and that is known here. Raises Refused when it is not in time."""
        model = self.model
        if shard >= self._cluster.shards:
            raise Refused(422, "Not understood", f"after names shard {shard}; there are {self._cluster.shards}")
        known = await asyncio.to_thread(model.wait_for_input, "commands", shard, offset, wait_ms / 1000)
        if not known:
            reason = f"the command at {shard}:{offset} was not decided on within {wait_ms} ms; ask again"
            raise Refused(503, NOT_YET, reason)

    def _open(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._stopping.is_set():
            try:
                self._begin()
                return
            except DetentError as error:
                self._reason = str(error)
                LOG.warning("the log can't be read, tries again in %.0f s: %s", pause_s, error)
            self._stopping.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _begin(self) -> None:
        began = time.monotonic()
        self._cluster = replace(self._cluster, shards=shards_of(self._cluster, patience_s=5.0))
        codec = shared_codec(self._cluster) if self._operates else reading_codec(self._cluster)
        model = ReadModel(self._cluster, codec, lease_ms=self._lease_ms)
        model.start()
        gc.collect()
        gc.freeze()  # what was read stays: the collector need not go through it ever again
        with self._lock:
            self._asker = Asker(self._cluster, codec) if self._operates else None
            self._past = Past(self._cluster, codec)
            self._model = model
            waiting, self._waiting = self._waiting, []
        LOG.info("the log is read took_ms=%.0f jobs=%d", (time.monotonic() - began) * 1000, model.jobs(limit=0).total)
        for use in waiting:
            use(model)
