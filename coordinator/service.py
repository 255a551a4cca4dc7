"""The coordinator as a process: its shards, the threads they share, and its end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from coordinator.hearing import Hearing
from coordinator.metrics import Metrics
from coordinator.peer_watch import PeerWatch
from coordinator.peers import Peers
from coordinator.reign import Rules
from coordinator.runner import ShardRunner, Surroundings, Timing
from coordinator.state import LOGIC
from events.asked import Asked
from events.clock import SteadyClock
from events.cluster import Cluster
from events.collector import collect_rarely
from events.errors import BrokerUnreachable
from events.front import Front, Page, json_page
from events.records import Beat, ShardLed
from events.schema_topic import shared_codec
from events.structs import make_ready
from events.topics import TopicFacts, TopicSettings, ensure_topics

LOG = logging.getLogger(__name__)
STOP_S = 10.0


@dataclass(frozen=True)
class ServiceSettings:
    """What an operator may choose."""

    name: str = ""
    shards: tuple[int, ...] | None = None  # None: all
    rules: Rules = field(default_factory=Rules)
    timing: Timing = field(default_factory=Timing)
    topics: TopicSettings = field(default_factory=TopicSettings)
    state_dir: Path = Path(".detent/coordinator")
    host: str = "127.0.0.1"
    port: int = 0
    version: str = ""


class Service:
    def __init__(self, cluster: Cluster, settings: ServiceSettings) -> None:
        self.cluster, self.settings = cluster, settings
        self.name = settings.name or f"{socket.gethostname()}-{os.getpid()}"
        self.instance = uuid.uuid4().hex[:12]
        self.runners: list[ShardRunner] = []
        self._clock = SteadyClock()
        self._started_ms = self._clock.now_ms()
        self.metrics = Metrics(self._clock.now_ms)
        self._stopping = Asked()
        pages = {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics_page}
        self._watching = PeerWatch()
        self.front = Front(settings.host, settings.port, pages, self._watching.look)
        self.peers: Peers | None = None
        self.hearing: Hearing | None = None

    def run(self) -> int:
        """Until a signal, or a fault that only a person can mend. Returns the exit code."""
        signal.signal(signal.SIGTERM, self._signalled)
        signal.signal(signal.SIGINT, self._signalled)
        collect_rarely()
        make_ready()
        self.front.start()
        LOG.info("starts coordinator=%s instance=%s address=%s", self.name, self.instance, self.front.address)
        prepared = self._prepare()
        if prepared is None:
            return 0
        self._begin(*prepared)
        failed = self._watch()
        self._end()
        return 1 if failed else 0

    def stop(self) -> None:
        self._stopping.set()

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        if self._stopping.is_set():
            raise SystemExit(128 + number)
        self._stopping.set()

    def _prepare(self) -> tuple[TopicFacts, Hearing, Peers] | None:
        """All that needs a broker, however long it is away; None when it is told to stop meanwhile."""
        pause_s = 1.0
        while not self._stopping.is_set():
            try:
                facts = ensure_topics(self.cluster, self.settings.topics, patience_s=5.0)
                self.codec = shared_codec(self.cluster)
                return facts["events"], *self._listeners()
            except BrokerUnreachable as error:
                LOG.warning("waits for the broker, tries again in %.0f s: %s", pause_s, error)
                self._stopping.wait(pause_s)
                pause_s = min(2 * pause_s, 10.0)
        return None

    def _listeners(self) -> tuple[Hearing, Peers]:
        hearing = Hearing(self.cluster, self.codec, self._clock.now_ms, self.settings.rules.lease_ms)
        try:
            return hearing, Peers(self.cluster, self.codec, self._beat, self.settings.timing.beat_ms)
        except BaseException:
            hearing.stop()
            raise

    def _begin(self, facts: TopicFacts, hearing: Hearing, peers: Peers) -> None:
        settings, cluster = self.settings, self.cluster
        self.hearing, self.peers = hearing, peers
        around = Surroundings(
            cluster=cluster,
            codec=self.codec,
            name=self.name,
            instance=self.instance,
            version=settings.version,
            address=self.front.address,
            hearing=hearing,
            peers=peers,
            metrics=self.metrics,
            now_ms=self._clock.now_ms,
            rules=settings.rules,
            timing=settings.timing,
            state_dir=settings.state_dir,
            events_topic=facts,
            admin=cluster.admin(),
        )
        shards: Iterable[int] = range(cluster.shards) if settings.shards is None else settings.shards
        self.runners = [ShardRunner(around, shard) for shard in shards]
        hearing.start()
        peers.start()
        self._watching.watch(peers)
        for runner in self.runners:
            runner.start()

    def _watch(self) -> Exception | None:
        """Wait for a signal, or for the end of a thread that nothing works without."""
        assert self.peers is not None
        assert self.hearing is not None
        while not self._stopping.wait(0.1):
            if failed := self.peers.failed or self.hearing.failed:
                LOG.error("stops: %s", failed)
                return failed
        return None

    def _end(self) -> None:
        """Hand over, then go."""
        for runner in self.runners:
            runner.stop()
        deadline = time.monotonic() + STOP_S
        left = [r.shard for r in self.runners if not r.join(max(0.0, deadline - time.monotonic()))]
        if left:
            LOG.warning("goes without having handed over shards=%s: the broker does not answer", left)
        if self.peers is not None:
            self.peers.stop()
        if self.hearing is not None:
            self.hearing.stop()
        self.front.stop()
        LOG.info("stopped coordinator=%s", self.name)

    def _beat(self) -> Beat:
        led = tuple(
            ShardLed(shard=r.shard, epoch=r.epoch, first_commit_ms=r.first_commit_ms) for r in self.runners if r.epoch
        )
        return Beat(
            coordinator=self.name,
            instance=self.instance,
            address=self.front.address,
            version=self.settings.version,
            time=self._clock.now_ms(),
            shards=led,
            standing_by=tuple(r.shard for r in self.runners if r.standing_by and not self._stopping.is_set()),
            logic=LOGIC,
            started_at=self._started_ms,
        )

    # Pages ---------------------------------------------------------------------------------------------------------

    def _healthz(self) -> Page:
        return Page(200, b"ok\n")

    def _readyz(self) -> Page:
        """Ready when every shard it follows is led, or followed so that it would be led at once."""
        runners = ((str(r.shard), r) for r in self.runners)
        shards = {s: "leads" if r.epoch else "stands by" if r.would_take_over else "not ready" for s, r in runners}
        ready = bool(shards) and "not ready" not in shards.values()
        content = {"ready": ready, "coordinator": self.name, "shards": shards}
        return json_page(200 if ready else 503, content)

    def _metrics_page(self) -> Page:
        return Page(200, self.metrics.page(), "text/plain; version=0.0.4; charset=utf-8")
