"""The worker as a process: one main thread that decides, the threads that serve it, and how it starts and ends.

The main thread alone touches the ledger. It waits for its inbox and for nothing else: orders are read, Kafka's answers
taken and tasks run on other threads. Whatever happens to the broker, it goes on keeping time, so that a worker that
nobody can hear stops its own tasks when its lease is over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from events.clock import SteadyClock, since_boot_s
from events.cluster import Cluster
from events.codec import Codec
from events.errors import BrokerUnreachable, DetentError
from events.front import Front, Page, json_page
from events.keys import shard_of
from events.reader import PartitionReader
from events.schema_topic import shared_codec
from events.structs import make_ready
from events.topics import TopicSettings, ensure_topics
from workers import happenings as h
from workers import store as stores
from workers.decider import Decider
from workers.engine import EngineMaker, Surroundings
from workers.inbox import Inbox, Item, Ordered
from workers.ledger import Ledger
from workers.metrics import Metrics
from workers.orders import TOPIC, Orders
from workers.sender import Sender
from workers.silence import Silence
from workers.store import LedgerFailed, LedgerStore

LOG = logging.getLogger(__name__)
LEDGER = "ledger"
BATCH = 100
LONGEST_TICK_MS = 250
SHORTEST_TICK_MS = 10
FLUSH_S = 5.0
WORDS_S = 1.0
ENGINE_CLOSE_S = 5.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 10.0


class AddressTaken(DetentError):
    """The address for the pages can't be had."""


@dataclass(frozen=True)
class ServiceSettings:
    """What an operator may choose. The directory is this process's alone."""

    core: h.Settings
    directory: Path
    engine: EngineMaker
    engine_options: Mapping[str, object] = field(default_factory=dict)
    heartbeat_ms: int = 1000
    topics: TopicSettings = field(default_factory=TopicSettings)
    host: str = "127.0.0.1"
    port: int = 0


class Service:
    """`run` is the main thread's. `stop` may be called by any, and by a signal."""

    def __init__(self, cluster: Cluster, settings: ServiceSettings) -> None:
        self.cluster, self.settings = cluster, settings
        self.worker = settings.core.worker
        self.metrics = Metrics()
        self._clock = SteadyClock(steady_s=since_boot_s)
        self._stopping = False  # a plain flag: a signal may come at any instant, also inside a lock
        self._inbox = Inbox()
        self._silence = Silence(self.worker, settings.core.lease_ms, settings.heartbeat_ms)
        self._tick_ms = min(settings.core.lease_ms // 10, settings.core.repeat_ms // 2, LONGEST_TICK_MS)
        self._tick_ms = max(self._tick_ms, SHORTEST_TICK_MS)
        self._tick_at = self._beat_at = self._round_at = 0.0
        self._ready = False
        pages = {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics_page}
        self.front = Front(settings.host, settings.port, pages)

    def stop(self) -> None:
        """Stop the tasks, tell of it, and end."""
        self._stopping = True

    def _is_stopping(self) -> bool:
        return self._stopping

    def signalled(self, number: int, _frame: FrameType | None) -> None:
        """For SIGTERM and SIGINT. The second one ends the process at once."""
        if self._stopping:
            raise SystemExit(128 + number)
        self._stopping = True

    def run(self) -> int:
        """Until it is stopped, or a fault that only a person can mend. Returns the exit code. Raises DetentError when
        it can't start."""
        make_ready()
        try:
            self.front.start()
        except OSError as error:
            host, port = self.settings.host, self.settings.port
            raise AddressTaken(
                f"the worker can't show its health at {host}:{port}: {error}. Set worker.health_address to an address "
                "of this machine; port 0 is any free one."
            ) from error
        try:
            LOG.info(
                "starts worker=%s instance=%s address=%s", self.worker, self.settings.core.instance, self.front.address
            )
            prepared = self._prepare()
            if prepared is None:
                return 0
            codec, store, ledger = prepared
            return self._serve(codec, store, ledger)
        finally:
            self._ready = False
            self.front.stop()

    # Starting --------------------------------------------------------------------------------------------------------

    def _prepare(self) -> tuple[Codec, LedgerStore, Ledger] | None:
        """All that needs a broker, however long it is away; None when it is told to stop meanwhile."""
        pause_s = FIRST_PAUSE_S
        while not self._is_stopping():
            try:
                facts = ensure_topics(self.cluster, self.settings.topics, patience_s=5.0)
                codec = shared_codec(self.cluster)
                store, ledger = self._open_ledger(facts[TOPIC].topic_id)
                return codec, store, ledger
            except BrokerUnreachable as error:
                LOG.warning("waits for the broker, tries again in %.0f s worker=%s: %s", pause_s, self.worker, error)
                deadline = time.monotonic() + pause_s
                while not self._is_stopping() and time.monotonic() < deadline:
                    time.sleep(0.05)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return None

    def _open_ledger(self, topic_id: str) -> tuple[LedgerStore, Ledger]:
        """The ledger of the process before. Where there is none, an empty one that begins with what is ordered from now
        on: nobody gives orders to a worker that was not heard, and what was ordered of one that has lost its disk is
        lost with it. That is written before the first heartbeat, or orders could be missed by the next process."""
        path, partition = self.settings.directory / LEDGER, shard_of(self.worker, self.cluster.shards)
        if path.exists():
            store, ledger = stores.load(path)
            try:
                stores.check(store, self.worker, topic_id, partition)
            except BaseException:
                store.close()
                raise
            LOG.info(
                "goes on with its ledger entries=%d position=%d worker=%s", store.entries, store.position, self.worker
            )
            return store, ledger
        with PartitionReader(self.cluster, TOPIC, partition) as reader:
            _, end = reader.start_and_end(patience_s=5.0)
        LOG.warning(
            "there is no ledger at %s: this is the worker's first start, or its disk was lost. It follows the orders "
            "given from now on, and none before worker=%s partition=%d position=%d",
            path, self.worker, partition, end,
        )  # fmt: skip
        return stores.create(path, self.worker, topic_id, partition, end), Ledger()

    def _serve(self, codec: Codec, store: LedgerStore, ledger: Ledger) -> int:
        settings, inbox = self.settings, self._inbox
        around = Surroundings(
            worker=self.worker,
            instance=settings.core.instance,
            directory=settings.directory,
            now_ms=self._clock.now_ms,
            slots=settings.core.slots,
            options={**settings.engine_options, "kafka": self.cluster.of_clients()},
        )
        try:
            self._engine = settings.engine(around)
        except BaseException:
            store.close()
            raise
        self._sender = Sender(
            self.cluster, codec, inbox.answered, inbox.fail, self._clock.now_ms, self.metrics,
            max_record_bytes=settings.topics.max_record_bytes,
            timeout_ms=max(1000, min(settings.core.lease_ms, 5000)),
        )  # fmt: skip
        self.decider = Decider(
            store, ledger, settings.core, self._engine, self._clock.now_ms, self._sender.report, inbox.say, self.metrics
        )
        partition = shard_of(self.worker, self.cluster.shards)
        self._orders = Orders(self.cluster, codec, self.worker, partition, store.position, inbox, self.metrics)
        try:
            self.decider.give(h.Restarted())
            self._sender.flush(FLUSH_S)  # why attempts ended, before a heartbeat tells that they have
            self._orders.start()
            self._ready = True
            return self._work()
        except Exception as error:  # noqa: BLE001  whatever it is, nothing may follow that the ledger does not hold
            self._fence(error)
            return 1

    # Working ---------------------------------------------------------------------------------------------------------

    def _work(self) -> int:
        code = 0
        try:
            while not self._is_stopping():
                self._round()
        except LedgerFailed:
            raise
        except Exception as error:
            if not self._inbox.has_failed(error):
                raise
            LOG.error("ends, since it can't go on worker=%s: %s", self.worker, error)
            code = 1
        self._end()
        return code

    def _round(self) -> None:
        wait_s = max(0.0, min(self._tick_at, self._beat_at) - time.monotonic())
        items = self._inbox.take(wait_s, BATCH)
        self._keep_time()
        for item in items:
            self._take(item)
            self._keep_time()

    def _take(self, item: Item) -> None:
        if not isinstance(item, Ordered):
            self.decider.give(item)
        elif item.it is None:
            self.decider.pass_over(item.position)
        else:
            self.decider.give(item.it, item.position)

    def _keep_time(self) -> None:
        """Ticks and heartbeats, when they are due."""
        now = self._round_at = time.monotonic()
        if now >= self._tick_at:
            self._tick_at = now + self._tick_ms / 1000
            if self.decider.answered(self._inbox.answered_ms):
                self._beat_at = now  # orders to publish name the lease: told at once, or the next ones are stale
            self.decider.give(h.Tick())
            self.decider.measure()
            self._silence.look(self._clock.now_ms() - self.decider.ledger.reached_at)
        if now >= self._beat_at:
            self._beat()

    def _beat(self, *, always: bool = False) -> None:
        self._beat_at = time.monotonic() + self.settings.heartbeat_ms / 1000
        self._sender.heartbeat(self.decider.heartbeat(), always=always)

    # Ending ----------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """In good order: tasks stop, their ends are told, and the ledger is closed."""
        decider = self.decider
        self._ready = False
        decider.drain()
        self._beat(always=True)
        deadline = time.monotonic() + self.settings.core.stop_patience_ms / 1000
        LOG.info("stops its tasks worker=%s active=%d", self.worker, decider.ledger.active)
        while not decider.at_rest and time.monotonic() < deadline:
            decider.stop_tasks("the worker is shutting down")
            self._round()
        if not decider.at_rest:
            LOG.warning("goes although something is still at work worker=%s", self.worker)
            decider.give_up("the worker is shutting down; it did not stop in time and is given up")
        decider.fence()
        self._beat(always=True)
        left = self._sender.flush(FLUSH_S)
        if left:
            LOG.warning("goes with records unsent; reports are repeated after its restart left=%d", left)
        self._let_go()
        LOG.info("stopped worker=%s", self.worker)

    def _fence(self, error: Exception) -> None:
        """At once, and without a word on what is not in the ledger."""
        self.decider.fence()
        if isinstance(error, LedgerFailed):
            LOG.critical("%s worker=%s", error, self.worker)
        else:
            LOG.critical("an unexpected error ends the worker worker=%s", self.worker, exc_info=error)
        self.decider.stop_tasks("the worker has failed")
        self._sender.flush(WORDS_S)  # of decisions that are in the ledger
        self._let_go()

    def _let_go(self) -> None:
        self._inbox.close()
        self._orders.stop()
        self._sender.close()
        self._engine.close(ENGINE_CLOSE_S)
        try:
            self.decider.store.close()
        except LedgerFailed as failure:  # all that was told is on disk: it was synced
            LOG.error("%s", failure)

    # Pages -----------------------------------------------------------------------------------------------------------

    def _healthz(self) -> Page:
        """Whether the main thread goes round; before it has begun to, it waits for the broker."""
        stuck_s = time.monotonic() - self._round_at if self._ready else 0.0
        if stuck_s * 1000 > max(self.settings.core.lease_ms, 5000):
            return Page(503, f"the main thread has not gone round for {stuck_s:.1f} s\n".encode())
        return Page(200, b"ok\n")

    def _readyz(self) -> Page:
        """Ready when it takes tasks and Kafka hears it."""
        reason = ""
        if self._stopping:
            reason = "it is stopping"
        elif not self._ready:
            reason = "it waits for the broker"
        elif self._clock.now_ms() - self._inbox.answered_ms > self.settings.core.lease_ms:
            reason = "Kafka has not acknowledged anything within the lease"
        content = {"ready": not reason, "worker": self.worker, "instance": self.settings.core.instance}
        return json_page(503 if reason else 200, content | {"reason": reason} if reason else content)

    def _metrics_page(self) -> Page:
        return Page(200, self.metrics.page(), "text/plain; version=0.0.4; charset=utf-8")
