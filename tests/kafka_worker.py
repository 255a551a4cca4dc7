"""What tests of the worker's process share: a scripted coordinator on a real broker, an engine whose every move is the
test's, a worker inside the test, and one that is a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from events import records as r
from events.cluster import Cluster
from events.codec import Codec
from events.errors import Place
from events.keys import order_key, shard_of
from events.reader import PartitionReader, offset_of
from events.writer import Outgoing, TransactionalWriter
from tests.logs import until
from workers import happenings as h
from workers.engine import Engine, MayPublish, Say, Surroundings
from workers.ledger import Identity
from workers.service import Service, ServiceSettings

ROOT = Path(__file__).parent.parent
CODEC = Codec()
DEPLOY = r.Deploy(specification="{}")


def who(attempt: int = 1, task: int = 0, job: str = "job") -> Identity:
    return Identity(job, 1, 0, task, attempt)


class Script:
    """A coordinator that does what the test says. Reports are kept in the order in which they came."""

    def __init__(self, cluster: Cluster, worker: str = "w1") -> None:
        self.cluster, self.worker = cluster, worker
        self._writer = TransactionalWriter(cluster, f"{cluster.prefix}-script")
        self._readers = [PartitionReader(cluster, "reports", shard) for shard in range(cluster.shards)]
        self._workers = PartitionReader(cluster, "workers", 0)
        self.reports: list[r.Report] = []
        self.beats: list[r.Heartbeat] = []

    def close(self) -> None:
        self._writer.close()
        for reader in (*self._readers, self._workers):
            reader.close()

    def outgoing(self, action: r.OrderAction | None, at: Identity, epoch: int = 1, worker: str = "") -> Outgoing:
        worker = worker or self.worker
        order = action and r.Order(
            epoch=epoch, incarnation=at.incarnation, job=at.job, pipeline=at.pipeline, task=at.task,
            attempt=at.attempt, worker=worker, time=0, action=action,
        )  # fmt: skip
        key = order_key(worker, at.job, at.pipeline, at.task)
        shard = shard_of(worker, self.cluster.shards)
        return Outgoing("orders", shard, key, CODEC.encode(order) if order else None)

    def order(self, action: r.OrderAction, at: Identity | None = None, **options: Any) -> None:
        if isinstance(action, r.CommitCheckpoint):  # to the process and the lease that were heard last
            self.listen()
            action = replace(action, instance=self.beats[-1].instance, lease=self.beats[-1].lease)
        self._writer.commit([self.outgoing(action, at or who(), **options)])

    def withdraw(self, at: Identity | None = None) -> None:
        self._writer.commit([self.outgoing(None, at or who())])

    def write(self, *records: Outgoing) -> None:
        self._writer.commit(list(records))

    def listen(self) -> list[r.Report]:
        """All reports so far."""
        for reader in self._readers:
            for message in reader.poll(0.02):
                place = Place("reports", reader.partition, offset_of(message))
                report = CODEC.decode(message.value(), r.Report, place)
                assert shard_of(report.job, self.cluster.shards) == reader.partition
                assert message.key() == report.job.encode()
                self.reports.append(report)
        for message in self._workers.poll(0.02):
            beat = CODEC.decode(message.value(), r.Heartbeat, Place("workers", 0, offset_of(message)))
            assert message.key() == beat.worker.encode()
            self.beats.append(beat)
        return self.reports

    def said(self, kind: type[Any], at: Identity | None = None, count: int = 1, limit_s: float = 30.0) -> Any:
        """The count-th happening of its kind that was reported of an attempt, waited for."""
        at = at or who()

        def found() -> list[r.ReportHappening]:
            return [x.happening for x in self.listen() if isinstance(x.happening, kind) and of(x) == at]

        until(lambda: len(found()) >= count, f"{count} {kind.__name__} of {at}", limit_s)
        return found()[count - 1]

    def heard(self, fits: Callable[[r.Heartbeat], bool] = lambda _: True, limit_s: float = 30.0) -> r.Heartbeat:
        """A heartbeat that fits, waited for, of those that come from now on."""
        known = len(self.beats)

        def newer() -> r.Heartbeat | None:
            self.listen()
            return next(filter(fits, self.beats[known:]), None)

        found = until(newer, "a heartbeat", limit_s)
        assert found is not None
        return found


def of(report: r.Report) -> Identity:
    return Identity(report.job, report.incarnation, report.pipeline, report.task, report.attempt)


class Puppet:
    """An engine that does nothing but note what it is told. It says Started at once, unless told otherwise."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.at: dict[str, float] = {}
        self.says: dict[Identity, Say] = {}
        self.publications: list[tuple[h.Publish, MayPublish, Say]] = []
        self.starts_by_itself = self.stops_by_itself = True

    def __call__(self, _around: Surroundings) -> Engine:
        return self

    def _note(self, what: str) -> None:
        self.done.append(what)
        self.at[what] = time.monotonic()

    def start(self, who: Identity, deploy: r.Deploy, say: Say) -> None:
        self.says[who] = say
        self._note(f"start {who.task}/{who.attempt}")
        if self.starts_by_itself:
            say(h.Started(who))

    def stop(self, who: Identity, reason: str) -> None:
        self._note(f"stop {who.task}/{who.attempt}")
        if self.stops_by_itself:
            self.says[who](h.Stopped(who, reason))

    def stage(self, who: Identity, checkpoint: int) -> None:
        self._note(f"stage {who.task}/{who.attempt} {checkpoint}")

    def publish(self, effect: h.Publish, may_publish: MayPublish, say: Say) -> None:
        self.publications.append((effect, may_publish, say))
        self._note(f"publish {effect.checkpoint}")

    def remove(self, effect: h.RemoveStaging, say: Say) -> None:
        self._note("remove")

    def close(self, patience_s: float) -> None:
        self._note("close")


QUICK = h.Settings(
    worker="w1", instance="i1", slots=4, lease_ms=30_000, stall_ms=60_000, stop_patience_ms=2000, repeat_ms=100,
    repeat_cap_ms=400,
)  # fmt: skip


class Inside:
    """A worker in a thread of the test."""

    def __init__(
        self, cluster: Cluster, directory: Path, puppet: Puppet, *, heartbeat_ms: int = 100, **changes: Any
    ) -> None:
        core = msgspec.structs.replace(QUICK, **changes)
        self.service = Service(cluster, ServiceSettings(core, directory, puppet, heartbeat_ms=heartbeat_ms))
        self.code: int | None = None
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.code = self.service.run()
        except Exception as error:  # noqa: BLE001  told to the test
            self.error = error

    def stop(self) -> int | None:
        self.service.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.code


@contextmanager
def inside(cluster: Cluster, directory: Path, puppet: Puppet, **changes: Any) -> Iterator[Inside]:
    worker = Inside(cluster, directory, puppet, **changes)
    try:
        until(lambda: worker.service.front.address or worker.error, "the worker's start")
        yield worker
    finally:
        worker.stop()


class Outside:
    """`detent worker` as a process of its own, with the trial engine."""

    def __init__(self, cluster: Cluster, state: Path, *sets: str, before: Callable[[], None] | None = None) -> None:
        settings = [
            f"kafka.bootstrap_servers={cluster.bootstrap_servers}", f"kafka.topic_prefix={cluster.prefix}",
            f"kafka.shards={cluster.shards}", f"state_dir={state}", "worker.id=w1", "worker.heartbeat_ms=100",
            "worker.repeat_ms=200", "worker.repeat_cap_ms=500", "worker.engine=workers.trial:TrialEngine", *sets,
        ]  # fmt: skip
        command = [sys.executable, "-m", "detent", "worker"]
        command += [word for setting in settings for word in ("--set", setting)]
        self.log = state / f"worker-{time.monotonic_ns()}.log"
        state.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                command, cwd=ROOT, stderr=log, stdout=log, env=os.environ | {"NO_COLOR": "1"}, preexec_fn=before
            )

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def address(self) -> str:
        found = re.search(r"address=(\S+)", self.said)
        return found[1] if found else ""

    def page(self, path: str) -> tuple[int, str]:
        address = until(lambda: self.address, f"an address in {self.said}")
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()

    def measured(self, name: str) -> float:
        found = re.search(rf"^detent_worker_{re.escape(name)} (\S+)$", self.page("/metrics")[1], re.MULTILINE)
        return float(found[1]) if found else 0.0

    def signal(self, number: signal.Signals) -> None:
        self.child.send_signal(number)

    def ended(self, limit_s: float = 60.0) -> int:
        return self.child.wait(limit_s)

    def kill(self) -> None:
        self.child.kill()
        self.child.wait(30)


@contextmanager
def outside(cluster: Cluster, state: Path, *sets: str, **options: Any) -> Iterator[Outside]:
    worker = Outside(cluster, state, *sets, **options)
    try:
        yield worker
    finally:
        worker.kill()
