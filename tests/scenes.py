"""A fleet that is watched: real coordinators and workers on topics of their own, somebody who reads the log all the
time, somebody who reads the output all the time, and the oracle at the end.

    with a_scene(broker.bootstrap_servers, tmp_path) as scene:
        scene.submit("orders", 3000, rate=1000)
        …
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bench.fleet import Child, Fleet, Look, Seen
from events.cluster import Cluster
from events.keys import shard_of
from events.records import Checkpoint, CommandAction, Deploy, Event, Order, Outcome, Report, Stop, Submit
from events.topics import TopicSettings, ensure_topics
from tests.logs import own_cluster, until
from tests.oracle import Finding, Onlooker, Record, Recorder, check, differences, read_log, read_starts
from tests.oracle.facts import decoded
from tests.oracle.rows import files_of

T = TypeVar("T")
# Quick, so that tests are: workers say often what they run. Leases stay long, or a busy machine loses workers.
SETTINGS: dict[str, object] = {
    "worker.heartbeat_ms": 100, "worker.slots": 16, "worker.repeat_ms": 300, "worker.lease_ms": 30_000,
    "coordinator.lease_ms": 30_000, "coordinator.sweep_ms": 200,
}  # fmt: skip
# Who stands by takes over from a leader that is killed at once, and from a silent one only in tests about that: so that
# a test can freeze a leader to hold a moment, and a busy machine changes no leaders.
PATIENT: dict[str, object] = {"coordinator.detection_ms": 60_000}
EAGER: dict[str, object] = {"coordinator.detection_ms": 200}
ENV = {"checkpoint": {"interval_ms": 200, "timeout_ms": 20_000}, "cleanup_delay_ms": 60_000,
       "restart": {"retries": 10, "backoff_ms": 50}, "commit": {"backoff_ms": 100, "max_backoff_ms": 500}}  # fmt: skip


class Takeover(NamedTuple):
    """A change of leader, as the log has it."""

    epoch: int
    by: str
    before: dict[str, Event]  # what was known right before the election


def numbers(name: str, rows: int = -1, *, parallelism: int = 1, rate: float = 0.0, **options: Any) -> dict[str, Any]:
    """A source of the trial engine."""
    given = {"rows": rows, "rate": rate} | options
    return {"name": name, "kind": "numbers", "parallelism": parallelism, "options": given}


@dataclass
class Scene:
    fleet: Fleet
    look: Look
    recorder: Recorder
    onlooker: Onlooker
    out: Path
    coordinators: dict[str, Child] = field(default_factory=dict)
    workers: dict[str, Child] = field(default_factory=dict)
    planted: list[tuple[str, int, int]] = field(default_factory=list)
    sent: list[tuple[str, str]] = field(default_factory=list)
    compacted: bool = False

    @property
    def cluster(self) -> Cluster:
        return self.fleet.cluster

    # Processes -------------------------------------------------------------------------------------------------------

    def start(self, coordinators: int = 2, workers: int = 1, *, eager: bool = True) -> None:
        """The first one leads, the others stand by; where none is eager, whichever comes first."""
        for number in range(coordinators):
            self.coordinator(f"c{number}", **(EAGER if eager and not number else {}))
        for number in range(workers):
            self.worker(f"w{number}")
        self.ready()
        for shard in range(self.cluster.shards if coordinators else 0):
            self.led(shard)

    def coordinator(self, name: str, *launch: Any, **settings: object) -> Child:
        child = self.coordinators[name] = self.fleet.coordinator(name, *launch, **settings)
        return child

    def worker(self, name: str, *launch: Any, **settings: object) -> Child:
        child = self.workers[name] = self.fleet.worker(name, *launch, **settings)
        return child

    def ready(self) -> None:
        self.fleet.ready(*self.coordinators.values(), *self.workers.values())

    def led(self, shard: int = 0) -> Child:
        """The process that leads a shard, waited for."""
        self.look.until(lambda: self.look.leader(shard) in self.coordinators, f"a leader of shard {shard}")
        leader = self.coordinators[self.look.leader(shard)]
        others = sum(child.alive for child in self.coordinators.values()) - 1
        self.until(lambda: connections_to(leader.address) >= others, f"all who stand by to watch {leader.name}")
        return leader

    def next_leader(self, strike: Callable[[], object], shard: int = 0) -> Takeover:
        """Do something to the leader, and wait for the election that follows."""
        self.look.follow()
        epoch = self.look.known[f"leader/{shard}"].epoch
        strike()
        return self.takeover(epoch, shard)

    def takeover(self, epoch: int, shard: int = 0) -> Takeover:
        """The first election after this epoch, waited for."""

        def elected() -> Seen | None:
            found = (s for s in self.look.seen if s.key == f"leader/{shard}" and s.event and s.event.epoch > epoch)
            return next((s for s in found if s.event and s.event.to == "LEADING"), None)

        self.look.until(lambda: elected() is not None, f"a leader after epoch {epoch}")
        seen = elected()
        assert seen is not None
        assert seen.event is not None
        return Takeover(seen.event.epoch, self.look.leader(shard), self.as_of(seen))

    def kill_leader(self, shard: int = 0, *, again: bool = True) -> Takeover:
        """kill -9. Another one is started to stand by, if `again`; by its name it is the last who should lead."""
        found = self.next_leader(self.led(shard).kill, shard)
        if again:
            self.coordinator(f"c{len(self.coordinators)}")
        return found

    @contextmanager
    def held(self) -> Iterator[None]:
        """All workers are frozen meanwhile: what they would say next, they say afterwards."""
        for worker in self.workers.values():
            worker.freeze()
        yield
        for worker in self.workers.values():
            worker.wake()

    def as_of(self, seen: Seen) -> dict[str, Event]:
        """What was known of the shard right before a record."""
        known: dict[str, Event] = {}
        for one in self.look.seen:
            if one.shard != seen.shard:
                continue
            if one.offset >= seen.offset:
                break
            if one.event is None:
                known.pop(one.key, None)
            else:
                known[one.key] = one.event
        return known

    # Jobs ------------------------------------------------------------------------------------------------------------

    def submit(self, job: str, *sources: dict[str, Any], sink: Mapping[str, Any] | None = None, **env: Any) -> str:
        """A job with one pipeline of these sources. Returns the command's id."""
        return self._send(job, Submit(specification=self.body(job, *sources, sink=sink, **env)))

    def body(self, job: str, *sources: dict[str, Any], sink: Mapping[str, Any] | None = None, **env: Any) -> str:
        merged = ENV | {name: ENV.get(name, {}) | value if isinstance(value, dict) else value  # type: ignore[operator]
                        for name, value in env.items()}  # fmt: skip
        options = {"path": str(self.out / job)} | dict(sink or {})
        sinks = [{"name": "out", "kind": "lines", "from": [s["name"] for s in sources], "options": options}]
        return json.dumps({"env": merged, "source": sources, "sink": sinks})

    def send(self, job: str, action: CommandAction) -> Outcome:
        """A command, with its outcome."""
        return self.look.until_outcome(job, self._send(job, action))

    def _send(self, job: str, action: CommandAction) -> str:
        command = self.fleet.send(job, action)
        self.sent.append((job, command))
        return command

    def until(self, wanted: Callable[[], T], what: str, limit_s: float = 60.0) -> T:
        return self.look.until(wanted, what, limit_s)

    def until_job(self, job: str, *states: str) -> None:
        self.look.until_job(job, *states)

    def until_runs(self, task: str, attempt: int) -> None:
        """This attempt, which exists before it is placed, is at work."""

        def runs() -> bool:
            known = self.look.known.get(f"task/{task}")
            return known is not None and (known.attempt, known.to) == (attempt, "RUNNING")

        self.until(runs, f"attempt {attempt} of {task} to run")

    def until_gone(self, job: str) -> None:
        """Cleaned up: nothing is left of it but its summary."""

        def left() -> list[str]:
            mine = [key for key in self.look.known if key.split("/")[1:2] == [job]]
            return [key for key in mine if not key.startswith("summary/")]

        self.until(lambda: not left(), f"{job} to be cleaned up")

    def event(self, key: str) -> Event:
        return self.look.known[key]

    def checkpoint(self, job: str, kind: str = "checkpoint") -> Checkpoint | None:
        """The newest completed one, or the one in flight (kind `pending`)."""
        event = self.look.known.get(f"{kind}/{job}/0")
        return event.state if event is not None and isinstance(event.state, Checkpoint) else None

    def until_committed(self, job: str, at_least: int = 1, limit_s: float = 60.0) -> int:
        """A checkpoint of this number or a higher one is committed; its number."""

        def committed() -> int:
            known = self.checkpoint(job)
            done = known is not None and self.look.state(f"checkpoint/{job}/0") == "COMMITTED"
            return known.id if known is not None and done and known.id >= at_least else 0

        return self.until(committed, f"checkpoint {at_least} of {job} to be committed", limit_s)

    def starts(self, job: str) -> list[tuple[str, int]]:
        """Worker and attempt of each start so far."""
        return [(worker, who.attempt) for worker, who in read_starts(self.fleet.directory) if who.job == job]

    def orders(self, job: str) -> list[tuple[Record, Order]]:
        """Records and orders for a job, as the topic has them now."""
        log = read_log(self.cluster, {"orders": self.cluster.shards})
        found = [(record, decoded(self.fleet.codec, record, Order)) for record in log.of("orders") if record.value]
        return [(record, order) for record, order in found if order is not None and order.job == job]

    def deploys(self, job: str) -> list[tuple[Record, Order]]:
        return [(record, order) for record, order in self.orders(job) if isinstance(order.action, Deploy)]

    def again(self, record: Record, times: int = 1) -> None:
        """Put a copy of a record on its topic, as a duplicate or a late one comes."""
        for _ in range(times):
            topic = self.cluster.topic(record.topic)
            self.fleet.producer.produce(topic, record.value, record.key, record.partition)
        self.fleet.producer.flush(30)

    def said(self, job: str, kind: type[Any]) -> list[Report]:
        """What workers have said of a job so far, of one kind."""
        shard = shard_of(job, self.cluster.shards)
        found = [decoded(self.fleet.codec, record, Report) for record in self.recorder.log.partition("reports", shard)]
        return [report for report in found if report and report.job == job and isinstance(report.happening, kind)]

    def files(self, job: str) -> list[str]:
        """What is published."""
        return [file.name for file in files_of(self.out / job)]

    def count(self, key: str, to: str) -> int:
        """How often an entity has come to a state."""
        return sum(seen.key == key and seen.event is not None and seen.event.to == to for seen in self.look.seen)

    # The verdict -----------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        findings = self.verdict()
        assert not findings, "the oracle found:\n" + "\n".join(map(str, findings[:20]))

    def verdict(self) -> list[Finding | str]:
        """When all commands are answered, and nobody writes any more."""
        until(self._answered, "every command to be answered")
        for child in self.coordinators.values():
            if child.alive:
                child.wake()
                child.process.terminate()
        for child in self.coordinators.values():
            child.process.wait(30)
        for child in self.workers.values():
            if child.alive:
                child.wake()
                child.kill()
        now = read_log(self.cluster)
        recorded = self.recorder.caught_up(now)
        findings: list[Finding | str] = [*differences(recorded, now, compacted=self.compacted)]
        judged = recorded if self.compacted else now
        findings += check(judged, starts=read_starts(self.fleet.directory), planted=self.planted)
        return findings + self.onlooker.stop()

    def _answered(self) -> bool:
        self.look.follow()
        known = {seen.key for seen in self.look.seen if seen.event is not None}
        return all(f"command/{job}/{command}" in known for job, command in self.sent)


def endless(scene: Scene, job: str = "a", **env: Any) -> None:
    """A job that goes on until it is told to stop, with something committed."""
    scene.submit(job, numbers("in", rate=500), **env)
    scene.until_committed(job)


def goes_on(scene: Scene, job: str = "a", limit_s: float = 60.0) -> None:
    """It commits a checkpoint that is triggered from now on."""
    scene.look.follow()
    known = scene.checkpoint(job, "pending")
    scene.until_committed(job, (known.id if known else 0) + 1, limit_s)


def finish(scene: Scene, job: str = "a") -> None:
    scene.send(job, Stop())
    scene.until_job(job, "FINISHED")


def connections_to(address: str) -> int:
    """How many connections are established to a port of this machine."""
    remote = f":{int(address.rpartition(':')[2]):04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(parts[2].endswith(remote) and parts[3] == "01" for parts in lines)


@contextmanager
def a_scene(
    bootstrap_servers: str,
    directory: Path,
    *,
    coordinators: int = 2,
    workers: int = 1,
    shards: int = 1,
    topics: TopicSettings | None = None,
    cluster: Cluster | None = None,
    judged: bool = True,
    eager: bool = True,
    **settings: object,
) -> Iterator[Scene]:
    """Settings are Detent's, with `__` for a dot: `worker__lease_ms=2000`."""
    made = cluster or own_cluster(bootstrap_servers, shards)
    ensure_topics(made, topics)
    chosen = SETTINGS | PATIENT | {name.replace("__", "."): value for name, value in settings.items()}
    with ExitStack() as stack:
        fleet = stack.enter_context(Fleet(made, directory, chosen))
        look = stack.enter_context(fleet.look())
        recorder = stack.enter_context(Recorder(made))
        onlooker = stack.enter_context(Onlooker(directory / "out"))
        scene = Scene(fleet, look, recorder, onlooker, directory / "out")
        scene.start(coordinators, workers, eager=eager)
        yield scene
        if judged:
            scene.judge()
