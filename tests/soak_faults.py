"""The faults of the soak: what can befall a fleet, by chance, and how each is undone. It strikes; it judges nothing."""

from __future__ import annotations

import heapq
import itertools
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from bench.fleet import Child
from events.embedded import EmbeddedBroker
from tests.oracle import Record
from tests.oracle.rules import TERMINAL
from tests.proxy import Proxy
from tests.scenes import Scene
from tests.spark_scene import java_of, refusing

FROZEN_S = 8.0  # longer than the leases of the soak
Strike = Callable[[], str]  # does it; what it did to whom, or empty when nobody is left to do it to


@dataclass
class Place:
    """A process's place in the fleet: whoever runs there has this name and these settings."""

    name: str
    kind: str  # coordinator, worker or spark: a worker with Spark
    settings: dict[str, object] = field(default_factory=dict)
    struck: bool = False  # it is down, frozen or cut off by us


class Faults:
    """Use from one thread. What was done is undone when it is due (`undo_due`), or at once (`undo_all`)."""

    def __init__(
        self, scene: Scene, broker: EmbeddedBroker, ways: dict[str, Proxy], places: list[Place], chance: Random,
        sinks: Callable[[], list[Path]],
    ) -> None:  # fmt: skip
        """`ways`: the proxies, by the names of those who reach the broker through them. `sinks`: directories that jobs
        on Spark write to."""
        self._sinks, self._refusing = sinks, set[Path]()
        self.scene, self.broker, self.ways, self.chance = scene, broker, ways, chance
        self.places = {place.name: place for place in places}
        self.counts: Counter[str] = Counter()
        self._undoing: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._kinds: dict[str, tuple[int, Strike]] = {
            "coordinator killed": (6, lambda: self._kill("coordinator")),
            "coordinator frozen": (4, lambda: self._freeze("coordinator")),
            "coordinator stopped": (3, lambda: self._stop("coordinator")),
            "worker killed": (4, lambda: self._kill("worker")),
            "worker frozen": (3, lambda: self._freeze("worker")),
            "worker stopped": (2, lambda: self._stop("worker")),
            "broker killed": (1, self._kill_broker),
            "broker frozen": (1, self._freeze_broker),
            "connections held": (2, lambda: self._cut(Proxy.hold)),
            "connections refused": (2, lambda: self._cut(Proxy.refuse)),
            "connections slow": (1, lambda: self._cut(lambda proxy: proxy.delay(self.chance.uniform(0.02, 0.3)))),
            "garbage": (1, self._garbage),
            "records twice": (2, self._repeat),
            # Rarer: Spark takes its time to start, and two cores for it.
            "Spark worker killed": (1, lambda: self._kill("spark")),
            "Spark worker frozen": (1, self._freeze_spark),
            "Spark killed": (1, self._kill_spark),
            "coordinator and Spark worker killed": (1, self._kill_both),
            "sink refuses": (2, self._refuse),
        }

    # Striking and undoing --------------------------------------------------------------------------------------------

    def strike(self) -> str:
        """One fault by chance; what it was."""
        kinds, weights = zip(*((kind, weight) for kind, (weight, _) in self._kinds.items()), strict=True)
        kind: str = self.chance.choices(kinds, weights)[0]
        whom = self._kinds[kind][1]()
        if whom:
            self.counts[kind] += 1
        return f"{kind}: {whom}" if whom else ""

    def undo_due(self) -> None:
        while self._undoing and self._undoing[0][0] <= time.monotonic():
            heapq.heappop(self._undoing)[2]()

    def undo_all(self) -> None:
        while self._undoing:
            heapq.heappop(self._undoing)[2]()

    def child(self, place: Place) -> Child:
        there = self.scene.coordinators if place.kind == "coordinator" else self.scene.workers
        return there[place.name]

    def start(self, place: Place) -> None:
        start = self.scene.coordinator if place.kind == "coordinator" else self.scene.worker
        start(place.name, **place.settings)
        place.struck = False

    def _later(self, most_s: float, undo: Callable[[], None], least_s: float = 0.0) -> None:
        due = time.monotonic() + self.chance.uniform(least_s, most_s)
        heapq.heappush(self._undoing, (due, next(self._numbers), undo))

    def _one(self, kind: str, among: list[str] | None = None) -> Place | None:
        """Somebody who is well, and will be struck."""
        chosen = self.chance.choice(self._well(kind, sorted(self.places) if among is None else among) or [None])
        if chosen is not None:
            chosen.struck = True
        return chosen

    def _well(self, kind: str, among: list[str]) -> list[Place | None]:
        well = [self.places[name] for name in among if not self.places[name].struck]
        return [place for place in well if kind in ("", place.kind)]

    # Processes -------------------------------------------------------------------------------------------------------

    def _kill(self, kind: str) -> str:
        if (place := self._one(kind)) is None:
            return ""
        self.child(place).kill()
        self._later(3.0, lambda: self.start(place))
        return place.name

    def _stop(self, kind: str) -> str:
        """As a rolling upgrade does. One that does not end is killed, as those who run it would."""
        if (place := self._one(kind)) is None:
            return ""
        child = self.child(place)
        child.process.terminate()

        def again() -> None:
            try:
                child.process.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
            self.start(place)

        self._later(2.0, again)
        return place.name

    def _freeze(self, kind: str) -> str:
        if (place := self._one(kind)) is None:
            return ""
        child = self.child(place)
        child.freeze()
        self._later(8.0, lambda: self._wake(place, child))
        return place.name

    def _wake(self, place: Place, child: Child) -> None:
        child.wake()
        place.struck = False

    # Spark -----------------------------------------------------------------------------------------------------------

    def _freeze_spark(self) -> str:
        """For longer than its lease: it is declared dead, and comes back. At times its JVM sleeps as well."""
        if (place := self._one("spark")) is None:
            return ""
        child, jvm = self.child(place), java_of(self.child(place))
        child.freeze()
        if jvm and self.chance.random() < 0.5:
            os.kill(jvm, signal.SIGSTOP)

        def wake() -> None:
            if jvm:
                with suppress(ProcessLookupError):
                    os.kill(jvm, signal.SIGCONT)
            self._wake(place, child)

        self._later(FROZEN_S + 3.0, wake, FROZEN_S)
        return place.name

    def _kill_spark(self) -> str:
        """The JVM under a worker that lives on."""
        if (place := self._one("spark")) is None:
            return ""
        place.struck = False
        jvm = java_of(self.child(place))
        if jvm:
            os.kill(jvm, signal.SIGKILL)
        return place.name if jvm else ""

    def _kill_both(self) -> str:
        if not all(self._well(kind, sorted(self.places)) for kind in ("spark", "coordinator")):
            return ""
        return f"{self._kill('spark')} {self._kill('coordinator')}"

    def _refuse(self) -> str:
        well = sorted(path for path in self._sinks() if path not in self._refusing)
        if not well:
            return ""
        path, undo = self.chance.choice(well), ExitStack()
        undo.enter_context(refusing(path))
        self._refusing.add(path)

        def heal() -> None:
            undo.close()
            self._refusing.discard(path)

        self._later(6.0, heal)
        return path.name

    # The broker and the ways to it -----------------------------------------------------------------------------------

    def _kill_broker(self) -> str:
        self.broker.kill()
        self.broker.start()
        return self.broker.bootstrap_servers

    def _freeze_broker(self) -> str:
        """Longer than clients wait for an answer, at times."""
        pid = self.broker.status.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(self.chance.uniform(0.2, 5.0))
        finally:
            os.kill(pid, signal.SIGCONT)
        return self.broker.bootstrap_servers

    def _cut(self, how: Callable[[Proxy], None]) -> str:
        if (place := self._one("", sorted(self.ways))) is None:
            return ""
        proxy = self.ways[place.name]
        how(proxy)

        def heal() -> None:
            proxy.heal()
            place.struck = False

        self._later(8.0, heal)
        return place.name

    # Input -----------------------------------------------------------------------------------------------------------

    def _garbage(self) -> str:
        topic, count = self.chance.choice(["commands", "reports"]), self.chance.randint(1, 50)
        for _ in range(count):
            shard = self.chance.randrange(self.scene.cluster.shards)
            self._produce(Record(topic, shard, -1, b"garbage", self.chance.randbytes(self.chance.randint(0, 300))))
        return f"{count} on {topic}"

    def _repeat(self) -> str:
        """Commands and reports that were there before come once more, while their jobs are at work: who asks again for
        a job that is gone, asks for a new one."""
        topic = self.chance.choice(["commands", "reports"])
        known = self.scene.recorder.log.partition(topic, self.chance.randrange(self.scene.cluster.shards))[-500:]
        known = [record for record in known if self._is_at_work((record.key or b"").decode(errors="replace"))]
        again = self.chance.choices(known, k=self.chance.randint(1, 20)) if known else []
        for record in again:
            self._produce(record)
        return f"{len(again)} on {topic}" if again else ""

    def _is_at_work(self, job: str) -> bool:
        return self.scene.look.state(f"job/{job}") not in ("", *TERMINAL)

    def _produce(self, record: Record) -> None:
        producer, topic = self.scene.fleet.producer, self.scene.cluster.topic(record.topic)
        producer.produce(topic, record.value, record.key, record.partition)
        producer.poll(0)
