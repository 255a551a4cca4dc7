"""The read model: all shards of the log folded in memory, with what workers and coordinators said last, and the answers
to what people ask. It tails the topics and loads no leader; any number of processes may have one.

Answers are of the state at a transaction boundary. Used in two ways: `catch_up` once and ask (the command line), or
`start` a thread that follows for ever (a server). Any thread may ask.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from confluent_kafka import Message

from coordinator.answers import Answers
from coordinator.health_watch import HealthWatch
from coordinator.job_index import JobIndex
from coordinator.lifecycle import TERMINAL_JOB
from coordinator.lines import Lines
from coordinator.shard_reading import Changed, Decoded, ShardReading
from coordinator.soft_reading import SoftReading
from coordinator.state import JobView as KnownJob
from coordinator.state import State
from coordinator.views import (
    CheckpointView,
    ClusterView,
    CommandView,
    CoordinatorView,
    JobDetail,
    JobView,
    Page,
    ShardView,
    TakeoverView,
    View,
    WorkerView,
)
from events.cluster import Cluster
from events.codec import Codec
from events.errors import DetentError
from events.follower import Follower, log_poison
from events.inputs import InputsReader, Partition
from events.keys import shard_of
from events.reader import UnreadablePartition, WholeTransactions
from events.records import Cursor
from events.recovery import now_ms
from events.schema_topic import reading_codec

LOG = logging.getLogger(__name__)
LEASE_MS = 10_000
AT_ONCE = 2000  # records taken over in one step
# More than so many in a step is much. Then what comes is gathered for a while: what changes again meanwhile is decoded
# once, and those who ask have the processor.
MUCH, GATHER_S = 100, 0.03
LOOKED_AT = 100  # jobs whose health is looked at while those who ask wait
HEALTH_MS = 200
PAUSE_S = 1.0


class Change(View, frozen=True):
    """Something is new: of a shard at a transaction boundary, or (without a shard) in what workers and coordinators
    say. `jobs` are those that it is about."""

    shard: int | None
    offset: int
    jobs: tuple[str, ...] = ()


class ReadModel:
    def __init__(
        self,
        cluster: Cluster,
        codec: Codec | None = None,
        *,
        lease_ms: int = LEASE_MS,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self.cluster, self.lease_ms, self._now_ms = cluster, lease_ms, clock
        self.codec = codec or reading_codec(cluster)
        self._lock = threading.RLock()
        self._moved = threading.Condition(self._lock)
        self._listeners: list[Callable[[Change], None]] = []
        self._reader: InputsReader | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.failed: Exception | None = None  # what stands in the way right now; None when all is well
        self._begin()

    def _begin(self) -> None:
        shards = self.cluster.shards
        self._readings = [ShardReading(shard, shards, self.codec) for shard in range(shards)]
        self._cutters = [WholeTransactions(reading.table.cursor_key) for reading in self._readings]
        self._soft = SoftReading(self.codec, self._now_ms)
        self._index = JobIndex()
        self._health = HealthWatch(self._running)
        self._lines = Lines()
        self._looked_ms = self._arrived = 0

    # Following -------------------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """To the end of all topics as it is now. Raises what stands in the way."""
        with self._lock:
            for reading in self._readings:
                follower = Follower(self.cluster, reading.table, poison=log_poison)
                try:
                    follower.catch_up()
                finally:
                    follower.close()
                found = reading.take_table()
                self._index.load(each.after for each in found if each.entity.kind in ("job", "summary"))
                for job in reading.state.jobs:
                    self._health.touch(job)
            starts: dict[Partition, int | None] = {
                ("events", reading.shard): reading.table.next_offset for reading in self._readings
            }
            starts |= self._soft.catch_up(self.cluster)
            self._reader = InputsReader(self.cluster, starts)
            self._health.look(self._now_ms())
            self._moved.notify_all()

    def start(self) -> None:
        """Catch up, then follow in a thread of its own."""
        self.catch_up()
        self._thread = threading.Thread(target=self._follow, name="read-model", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __enter__(self) -> ReadModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _follow(self) -> None:
        while not self._stopping.is_set():
            try:
                self.advance(0.1)
                self.failed = None
                if self._arrived > MUCH:
                    self._stopping.wait(GATHER_S)
            except UnreadablePartition as error:  # the log was cut, or too much was missed: from the beginning
                LOG.warning("reads everything again: %s", error)
                self._again(error)
            except DetentError as error:
                LOG.warning("tries again in %.0f s: %s", PAUSE_S, error)
                self._again(error)
            except Exception as error:  # a fault of ours: said, and begun anew from the log
                LOG.exception("stopped by a fault, begins anew in %.0f s", PAUSE_S)
                self._again(error)

    def _again(self, error: Exception) -> None:
        self.failed = error
        while not self._stopping.wait(PAUSE_S):
            try:
                with self._lock:
                    if self._reader is not None:
                        self._reader.close()
                        self._reader = None
                    self._begin()
                    self.catch_up()
                return
            except DetentError as again:
                self.failed = again
                LOG.warning("tries again in %.0f s: %s", PAUSE_S, again)

    def advance(self, timeout_s: float) -> list[Change]:
        """Take over what has come since. For who has no thread; `start` has one."""
        assert self._reader is not None, "catch up first"
        arrived = self._reader.poll(timeout_s, AT_ONCE)
        self._arrived = len(arrived)
        by_shard: dict[int, list[Message]] = {}
        for topic, partition, message in arrived:
            if topic == "events":
                by_shard.setdefault(partition, []).append(message)
        decoded = {shard: each for shard, messages in by_shard.items() if (each := self._decoded(shard, messages))}
        changes = list[Change]()
        with self._lock:
            heard = {
                job
                for topic, _, message in arrived
                if topic != "events"
                for job in self._soft.take(topic, message, self._now_ms())
            }
            for job in heard:
                self._lines.drop(job)
            changes += [self._take(shard, each) for shard, each in decoded.items()]
            if heard:
                changes.append(Change(shard=None, offset=-1, jobs=tuple(sorted(heard))))
            if changes:
                self._moved.notify_all()
            listeners = list(self._listeners)
        self._look()
        for change in changes:
            for listener in listeners:
                listener(change)
        return changes

    def _decoded(self, shard: int, messages: list[Message]) -> Decoded | None:
        """What has come of a shard; None where no transaction ends in it. Others may ask meanwhile."""
        ended = self._cutters[shard].cut(messages)
        return self._readings[shard].decode([record for records in ended for record in records]) if ended else None

    def _take(self, shard: int, decoded: Decoded) -> Change:
        changed = self._readings[shard].fold(decoded)
        self._note(changed)
        jobs = sorted({each.entity.job for each in changed} - {""})
        return Change(shard=shard, offset=decoded.next_offset - 1, jobs=tuple(jobs))

    def _look(self) -> None:
        """At the health of what has changed or is due, now and then, a few jobs at a time: others ask in between."""
        now = self._now_ms()
        if now - self._looked_ms < HEALTH_MS:
            return
        self._looked_ms = now
        has_more = True
        while has_more:
            with self._lock:
                has_more = self._health.look(now, LOOKED_AT)

    def _note(self, changed: Iterable[Changed]) -> None:
        for entity, before, after in changed:
            self._lines.drop(entity.job)
            if entity.kind in ("job", "summary"):
                self._index.note(before, after)
            if entity.job and entity.kind not in ("summary", "command"):
                self._health.touch(entity.job)
            if entity.kind == "task" and after is None:
                self._soft.drop((entity.job, int(entity.parts[1]), int(entity.parts[2])))

    def listen(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call this with every change from now on, in the thread that follows; it must be quick. Returns what ends
        it."""
        with self._lock:
            self._listeners.append(listener)

        def end() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return end

    # Waiting ---------------------------------------------------------------------------------------------------------

    def shard_of(self, job: str) -> int:
        return shard_of(job, self.cluster.shards)

    def offsets(self) -> dict[int, int]:
        """Of each shard, the offset up to which it is known here."""
        with self._lock:
            return {reading.shard: reading.next_offset for reading in self._readings}

    def wait_for(self, shard: int, offset: int, timeout_s: float) -> bool:
        """Read your writes: until the event at this offset of the shard is known here. False when it is not in time."""
        return self._wait(lambda: self._readings[shard].next_offset > offset, timeout_s)

    def wait_for_input(self, topic: str, shard: int, offset: int, timeout_s: float) -> bool:
        """Until the record at this offset of an input (`commands`, `reports`) is decided on, and that is known here."""
        return self._wait(lambda: self._consumed(topic, shard) > offset, timeout_s)

    def wait_for_command(self, job: str, command: str, timeout_s: float) -> CommandView | None:
        """Until a command has its answer; None when it has none in time."""
        self._wait(lambda: self.command(job, command) is not None, timeout_s)
        return self.command(job, command)

    def _wait(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        if self._thread is not None:
            with self._moved:
                return self._moved.wait_for(holds, timeout_s)
        while not holds():
            if (left_s := deadline - time.monotonic()) <= 0:
                return False
            self.advance(min(0.1, left_s))
        return True

    def _consumed(self, topic: str, shard: int) -> int:
        cursor = self._readings[shard].state.cursor
        known = cursor.state if cursor is not None else None
        positions = known.positions if isinstance(known, Cursor) else ()
        return max((p.offset for p in positions if p.topic == topic and p.partition == shard), default=0)

    # Answers ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def now(self) -> Iterator[Answers]:
        """What is known at this moment, for several questions: it does not move meanwhile. Be quick."""
        with self._lock:
            yield Answers(
                states=[reading.state for reading in self._readings],
                index=self._index,
                at=self._now_ms(),
                soft=self._soft,
                unhealthy=self._health.unhealthy,
                lease_ms=self.lease_ms,
                elections=[reading.elections for reading in self._readings],
                offsets=[reading.next_offset for reading in self._readings],
                lines=self._lines,
            )

    @contextmanager
    def state_of(self, job: str) -> Iterator[State]:
        """The state of the job's shard. It does not move meanwhile."""
        with self._lock:
            yield self._readings[self.shard_of(job)].state

    def _running(self, name: str) -> KnownJob | None:
        job = self._readings[self.shard_of(name)].state.jobs.get(name)
        return job if job is not None and job.event is not None and job.event.to not in TERMINAL_JOB else None

    def jobs(
        self, states: Iterable[str] = (), search: str = "", start: int = 0, limit: int = 50, *, unhealthy: bool = False
    ) -> Page[JobView]:
        """A page of all jobs, newest first. `states` are states of the life cycle, or `running`, or `ended`."""
        with self.now() as answers:
            return answers.jobs(states, search, start, limit, unhealthy=unhealthy)

    def job(self, name: str, incarnation: int = 0) -> JobDetail | None:
        """All about a job, by default of the newest incarnation; None where there is none of this id."""
        with self.now() as answers:
            return answers.job(name, incarnation)

    def job_line(self, name: str) -> JobView | None:
        with self.now() as answers:
            return answers.job_line(name)

    def checkpoints(self, name: str) -> list[CheckpointView]:
        """Those that the state knows: of each pipeline the newest completed one and the one in flight."""
        with self.now() as answers:
            return answers.checkpoints(name)

    def commands(self, name: str) -> list[CommandView]:
        with self.now() as answers:
            return answers.commands(name)

    def command(self, job: str, command: str) -> CommandView | None:
        return next((each for each in self.commands(job) if each.id == command), None)

    def workers(self) -> list[WorkerView]:
        with self.now() as answers:
            return answers.workers()

    def coordinators(self) -> list[CoordinatorView]:
        with self.now() as answers:
            return answers.coordinators()

    def shards(self) -> list[ShardView]:
        with self.now() as answers:
            return answers.shards()

    def takeovers(self, shard: int) -> list[TakeoverView]:
        """The last elections of the shard, oldest first."""
        with self.now() as answers:
            return answers.takeovers(shard)

    def cluster_view(self) -> ClusterView:
        with self.now() as answers:
            return answers.cluster()

    def unhealthy(self) -> dict[str, str]:
        """The jobs that are not well, and why."""
        with self._lock:
            return dict(self._health.unhealthy)

    def near(self, name: str, limit: int = 3) -> list[str]:
        """Ids that look like this one, for who mistyped it."""
        with self.now() as answers:
            return answers.near(name, limit)
