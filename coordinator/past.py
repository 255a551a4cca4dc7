"""The past of a cluster: the state of all shards as of any time or offset, and the history of jobs, read from the log.
For the command line and for servers; it never writes and loads no leader.

It follows the log when it is asked, and keeps what makes the next question cheap (`coordinator/timeline.py`). One
thread at a time.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import quote

from coordinator.answers import Answers
from coordinator.history import Chronicle, Seen, of_job
from coordinator.ignored import Reported
from coordinator.job_index import JobIndex
from coordinator.report_log import ReportLog
from coordinator.state import entity_of
from coordinator.timeline import Timeline
from events.cluster import Cluster
from events.codec import Codec
from events.errors import DetentError
from events.keys import shard_of
from events.reader import PartitionReader, WholeTransactions
from events.records import Event
from events.recovery import now_ms
from events.schema_topic import reading_codec
from events.table import Raw

SETTLED_MS = 10_000  # what was so long before the last look at the logs has not become more
HISTORIES = 32  # of jobs, kept after they were told
SEGMENTS = 8  # parts of the log that are kept after they were read
AT_ONCE = 2000  # records taken note of in one go
PATIENCE_S = 30.0


class NoSuchMoment(DetentError):
    """A moment that the log does not have."""


class LogReader:
    """Reads parts of a shard's events in whole transactions."""

    def __init__(self, cluster: Cluster, shard: int) -> None:
        self.cluster, self.shard = cluster, shard
        self._reader = PartitionReader(cluster, "events", shard)
        self._cursor = b"cursor/%d" % shard
        self._kept: OrderedDict[tuple[int, int], list[list[Raw]]] = OrderedDict()

    def close(self) -> None:
        self._reader.close()

    def end(self) -> int:
        return self._reader.start_and_end()[1]

    def read(self, start: int, end: int) -> Iterator[list[Raw]]:
        """The transactions from `start`, which is where one begins, that are over before `end`."""
        reader, cutter = self._reader, WholeTransactions(self._cursor)
        reader.go_to(start)
        heard = time.monotonic()
        while reader.position < end:
            messages = reader.poll(0.1)
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > PATIENCE_S:
                reader.check()
                raise self.cluster.no_answer(f"reading events/{self.shard} from offset {start} to {end}", PATIENCE_S)
            for records in cutter.cut(messages):
                if records[-1].offset >= end:
                    return
                yield records

    def segment(self, start: int, end: int) -> Sequence[Sequence[Raw]]:
        """The same, kept for the next question: a slider asks for neighbours."""
        if (start, end) not in self._kept:
            self._kept[start, end] = list(self.read(start, end))
            while len(self._kept) > SEGMENTS:
                self._kept.popitem(last=False)
        self._kept.move_to_end((start, end))
        return self._kept[start, end]


@dataclass
class Told:
    """What was told of a job so far. Asked again, only what is new is read."""

    chronicle: Chronicle
    found: list[Seen]
    next_offset: int


class Past:
    def __init__(self, cluster: Cluster, codec: Codec | None = None) -> None:
        self.cluster, self.codec = cluster, codec or reading_codec(cluster)
        self._logs = [LogReader(cluster, shard) for shard in range(cluster.shards)]
        self._lines = [Timeline(log.shard, cluster.shards, self.codec, log.segment) for log in self._logs]
        self._index = JobIndex()
        self._told: OrderedDict[str, Told] = OrderedDict()
        self._refreshed_at = 0
        self._reports = [ReportLog(cluster, shard, self.codec) for shard in range(cluster.shards)]

    def close(self) -> None:
        for log, reports in zip(self._logs, self._reports, strict=True):
            log.close()
            reports.close()

    def __enter__(self) -> Past:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def refresh(self) -> None:
        """Take note of what the logs have more by now."""
        self._refreshed_at = now_ms()
        for shard in range(self.cluster.shards):
            self._refresh(shard)

    def _refresh(self, shard: int) -> None:
        log, line = self._logs[shard], self._lines[shard]
        if (end := log.end()) <= line.next_offset:
            return
        gathered, count = list[list[Raw]](), 0
        for records in log.read(line.next_offset, end):
            gathered.append(records)
            count += len(records)
            if count >= AT_ONCE:
                line.add(gathered)
                gathered, count = [], 0
        if gathered:
            line.add(gathered)

    def times(self) -> tuple[int, int]:
        """From when to when the log tells: of the first and the last transaction of all shards."""
        known = [line.times for line in self._lines if line.times[0]]
        return (min(first for first, _ in known), max(last for _, last in known)) if known else (0, 0)

    def at_time(self, moment: int) -> Answers:
        """Everything as it was then. Raises NoSuchMoment before the first record."""
        if moment > self._refreshed_at - SETTLED_MS:
            self.refresh()
        first, _ = self.times()
        if not first or moment < first:
            raise NoSuchMoment(_too_early(first))
        return self._at([line.end_at_time(moment) for line in self._lines], min(moment, now_ms()))

    def at_offset(self, shard: int, offset: int) -> Answers:
        """Everything as it was after the transaction that this offset of the shard belongs to."""
        self.refresh()
        if not 0 <= shard < len(self._lines):
            raise NoSuchMoment(f"there is no shard {shard}; they are 0 to {len(self._lines) - 1}.")
        line = self._lines[shard]
        if not line.next_offset or not 0 <= offset < line.next_offset:
            raise NoSuchMoment(
                f"shard {shard} has no offset {offset}: its log goes up to {line.next_offset - 1} at present. "
                "`detent log JOB` shows the offsets of a job's transitions."
            )
        end = line.end_at_offset(offset)
        moment = line.time_at(end)
        ends = [end if other is line else other.end_at_time(moment) for other in self._lines]
        return self._at(ends, moment)

    def _at(self, ends: list[int], moment: int) -> Answers:
        for line, end in zip(self._lines, ends, strict=True):
            for entity, before, after in line.go_to(end):
                if entity.kind in ("job", "summary"):
                    self._index.note(before, after)
        return Answers(
            states=[line.state for line in self._lines],
            index=self._index,
            at=moment,
            offsets=ends,
            elections=[[e for _, e in line.elections(end)] for line, end in zip(self._lines, ends, strict=True)],
        )

    def history(self, job: str) -> list[Seen]:
        """All that the log tells of a job, with leaders and workers of its shard meanwhile: from its first record."""
        shard = shard_of(job, self.cluster.shards)
        self._refresh(shard)
        line, log = self._lines[shard], self._logs[shard]
        first = line.first_offset(quote(job, safe="").encode())
        if first is None:
            return []
        told = self._told.get(job) or self._begin_history(job, line.begin_of(first))
        self._told.move_to_end(job)
        if line.next_offset > told.next_offset:
            told.found += told.chronicle.read(log.read(told.next_offset, line.next_offset))
            told.next_offset = line.next_offset
        return told.found

    def _begin_history(self, job: str, start: int) -> Told:
        shard = shard_of(job, self.cluster.shards)
        before = self._lines[shard].elections(start)[-1:]  # who led when the job began
        found = [Seen(shard, offset, entity_of(e.entity), e, e.time, e.epoch, 0, e.from_) for offset, e in before]
        told = self._told[job] = Told(Chronicle(self.codec, shard, of_job(job)), found, start)
        while len(self._told) > HISTORIES:
            self._told.popitem(last=False)
        return told

    def reports(self, job: str) -> list[Reported]:
        """What workers reported of a job, as far as it is kept."""
        return self._reports[shard_of(job, self.cluster.shards)].of(job)

    def activity(self, start: int, end: int, buckets: int) -> list[int]:
        """How many transactions there were in each of so many equal parts of a time."""
        edges = [start + (end + 1 - start) * number // buckets for number in range(buckets + 1)]
        found = [0] * buckets
        for line in self._lines:
            counts = [line.count_before(edge) for edge in edges]
            found = [known + after - before for known, (before, after) in zip(found, pairwise(counts), strict=True)]
        return found

    def elections(self) -> list[tuple[int, Event]]:
        """All that the log tells of who led, with the shard."""
        self.refresh()
        return [(line.shard, event) for line in self._lines for _, event in line.elections(line.next_offset)]


def _too_early(first: int) -> str:
    if not first:
        return "The log is empty: nothing has happened yet. Start a coordinator, submit a job, and ask again."
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(first / 1000))
    return f"The log does not go back as far: its first record is of {began}. Ask for a later time."
