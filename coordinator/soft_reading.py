"""What workers and coordinators said last, from their topics: heartbeats with the progress of tasks, and beats. Soft
state: nothing is decided by it here, and it is not on the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from confluent_kafka import Message

from coordinator.state import Heard, TaskId
from coordinator.views import Progress
from events.cluster import Cluster
from events.codec import Codec
from events.errors import Place, UnreadableRecord
from events.inputs import Partition
from events.reader import PartitionReader, offset_of
from events.records import Beat, Heartbeat

LOG = logging.getLogger(__name__)
TOPICS = ("workers", "coordinators")
LATEST = 2000  # of beats, at the start: the newest of each coordinator are all that is wanted
FORGET_MS = 15 * 60_000  # who has not been heard for as long is not shown any more
SMOOTHING = 0.5


class SoftReading:
    def __init__(self, codec: Codec, now_ms: Callable[[], int]) -> None:
        self._codec, self._now_ms = codec, now_ms
        self.workers: dict[str, Heard] = {}
        self.progress: dict[TaskId, Progress] = {}
        self.beats: dict[str, tuple[Beat, int]] = {}  # by coordinator, and when it was heard
        self.first_commits: dict[tuple[int, int], int] = {}  # how long it took, by shard and epoch
        self._said: dict[TaskId, tuple[int, int]] = {}  # when, and how many rows, for the rate
        self._tasks_of: dict[str, set[TaskId]] = {}  # of each worker, those that it said it runs

    def catch_up(self, cluster: Cluster) -> dict[Partition, int | None]:
        """The newest word of everyone. Returns where reading goes on."""
        positions: dict[Partition, int | None] = {}
        for topic in TOPICS:
            with PartitionReader(cluster, topic, 0) as reader:
                first, end = reader.start_and_end()
                reader.go_to(max(first, end - LATEST) if topic == "coordinators" else first)
                newest: dict[bytes | None, Message] = {}
                while reader.position < end:
                    newest |= {message.key(): message for message in reader.poll(0.1)}
                for message in newest.values():
                    self.take(topic, message, int(message.timestamp()[1]))
                positions[topic, 0] = reader.position
        return positions

    def take(self, topic: str, message: Message, at: int) -> set[str]:
        """A word that was said then. Returns the jobs that it is about."""
        worker = (message.key() or b"").decode(errors="replace")
        try:
            if topic == "coordinators":
                beat = self._codec.decode(message.value(), Beat, Place(topic, 0, offset_of(message)))
                self.hear_beat(beat, at)
                return set()
            if message.value() is None:
                return self.forget(worker)
            said = self._codec.decode(message.value(), Heartbeat, Place(topic, 0, offset_of(message)))
            return self.hear_worker(said, at)
        except UnreadableRecord as error:
            LOG.warning("a word of %s can't be read: %s", worker, error)
            return set()

    def hear_beat(self, beat: Beat, at: int) -> None:
        self.beats[beat.coordinator] = (beat, at)
        for led in beat.shards:
            if led.first_commit_ms:
                self.first_commits[led.shard, led.epoch] = led.first_commit_ms

    def hear_worker(self, said: Heartbeat, at: int) -> set[str]:
        if self._now_ms() - at > FORGET_MS:
            return set()
        self.workers[said.worker] = Heard(said, at)
        runs = {(task.job, task.pipeline, task.task) for task in said.tasks}
        for gone in self._tasks_of.get(said.worker, set()) - runs:
            self._said.pop(gone, None)
        self._tasks_of[said.worker] = runs
        for task in said.tasks:
            key = (task.job, task.pipeline, task.task)
            known = self.progress.get(key)
            if known is not None and (known.incarnation, known.attempt) > (task.incarnation, task.attempt):
                continue  # a worker that was given up still speaks of its attempt
            same = known is not None and (known.incarnation, known.attempt) == (task.incarnation, task.attempt)
            rate = self._rate(key, said.time, task.rows, known.rows_per_second if known and same else 0.0, same)
            self.progress[key] = Progress(
                task.incarnation, task.attempt, task.rows, task.bytes_read, task.progressed_at, rate
            )
        return {task.job for task in said.tasks}

    def _rate(self, key: TaskId, time: int, rows: int, before: float, same: bool) -> float:
        """Rows a second between the last words, smoothed."""
        last = self._said.get(key)
        self._said[key] = (time, rows)
        if last is None or not same or time <= last[0] or rows < last[1]:
            return before
        now = (rows - last[1]) * 1000 / (time - last[0])
        return round(before + SMOOTHING * (now - before) if before else now, 3)

    def rate(self, now: int, lease_ms: int) -> float:
        """Rows a second of all that runs on workers who speak."""
        speak = [worker for worker, heard in self.workers.items() if now - heard.at <= lease_ms]
        running = (self.progress.get(task) for worker in speak for task in self._tasks_of.get(worker, ()))
        return sum(known.rows_per_second for known in running if known is not None)

    def forget(self, worker: str) -> set[str]:
        """It has left."""
        self.workers.pop(worker, None)
        return {task[0] for task in self._tasks_of.pop(worker, set())}

    def drop(self, task: TaskId) -> None:
        """It is gone: nobody asks for its progress any more."""
        self.progress.pop(task, None)
        self._said.pop(task, None)

    def workers_since(self, time: int) -> dict[str, Heard]:
        """Who was heard since then."""
        return {worker: heard for worker, heard in self.workers.items() if heard.at >= time}

    def living_beats(self, now: int, lease_ms: int) -> list[Beat]:
        return [beat for beat, at in self.beats.values() if now - at <= lease_ms]
