"""The source `kafka`: ranges of offsets, each record once, whoever reads on from which position.

A position has, for each partition of this task, the next offset (`next`) and for a bounded source the end (`end`), as
it was when the job began: JSON, by `topic/partition`. Partitions are dealt by name and number, so that a topic may get
more of them without any moving to another task. An offset that is gone is Unservable: it never starts elsewhere.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from confluent_kafka import TopicPartition

from workers.plan import OptionsRefused, Step, options_of
from workers.secrets import Secrets
from workers.spark.api import Context, Refused, Slice, Unservable
from workers.spark.kafka_client import Ends, cluster_of, ends_of, partitions_of, properties_of
from workers.spark.kafka_read import Range
from workers.spark.kafka_values import Values
from workers.spark.part_options import KafkaSourceOptions

if TYPE_CHECKING:
    from confluent_kafka import Consumer

FIRST_GOAL = 150_000  # records
LAST = 1.5  # slices: what is left at the end of a bounded source is not cut once more for less than half of one
LOOK_S = 10.0  # how often a continuous source looks for new partitions
Offsets = dict[str, int]  # by topic/partition


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    next: Offsets
    end: Offsets | None = None  # None: without end

    def encoded(self) -> bytes:
        return msgspec.json.encode(self, order="sorted")


def place(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"


def parsed(name: str) -> tuple[str, int]:
    topic, _, partition = name.rpartition("/")
    return topic, int(partition)


class KafkaSource:
    def __init__(self, context: Context, step: Step, share: int, shares: int) -> None:
        self._context, self._name, self._share, self._shares = context, step.name, share, shares
        self._options = options_of(step, KafkaSourceOptions)
        self._secrets = Secrets(step.name)
        self._properties = properties_of(
            context, step.name, self._options.bootstrap_servers, self._options.properties, self._secrets
        )
        self._values = Values(self._options, step.name)
        if isinstance(self._options.start, dict):
            self._check_start(self._options.start)
        self._cluster = cluster_of(self._properties)
        self._asking: Consumer | None = None
        self._highs: Offsets = {}
        self._looked_at = 0.0
        self._checkpoint = 0  # that it began from

    @property
    def first_goal(self) -> int:
        return FIRST_GOAL

    def begin(self, position: bytes, checkpoint: int) -> bytes:
        self._checkpoint = checkpoint
        self._values.check(self._context.session())
        if position:
            return self._resumed(position, checkpoint)
        mine = self._partitions()
        ends = {name: self._ends(name) for name in mine}
        end = None if self._options.continuous else {name: known.high for name, known in ends.items()}
        return Position(self._starts(ends), end).encoded()

    def next_slice(self, after: bytes, goal: int) -> Slice | None:
        position = msgspec.json.decode(after, type=Position)
        if position.end is None:
            position = self._with_new_partitions(position)
        ranges = list(self._dealt(position, max(1, goal)))
        if not ranges:
            return None
        moved = {place(each.topic, each.partition): each.end for each in ranges}
        behind = Position(position.next | moved, position.end)
        count = sum(each.end - each.start for each in ranges)
        frame = self._values.frame(self._context.session(), self._properties, self._splits(ranges))
        return Slice(frame, behind.encoded(), weight=count)

    def at_end(self, position: bytes) -> bool:
        at = msgspec.json.decode(position, type=Position)
        return at.end is not None and all(at.next[name] >= end for name, end in at.end.items())

    def close(self) -> None:
        if self._asking is not None:
            self._asking.close()
            self._asking = None

    # Where to begin --------------------------------------------------------------------------------------------------

    def _check_start(self, start: Mapping[str, int]) -> None:
        for name in start:
            topic, _, partition = name.rpartition("/")
            if topic not in self._options.topics or not partition.isdigit():
                raise OptionsRefused(
                    f"start of {self._name!r} names {name!r}; it is topic/partition, of the topics "
                    f"{', '.join(self._options.topics)}"
                )

    def _starts(self, ends: Mapping[str, Ends]) -> Offsets:
        start = self._options.start
        if start == "earliest":
            return {name: known.low for name, known in ends.items()}
        if start == "latest":
            return {name: known.high for name, known in ends.items()}
        if isinstance(start, int):
            asked = [TopicPartition(*parsed(name), start) for name in ends]
            found = self._consumer().offsets_for_times(asked, timeout=10.0) if asked else []
            at = {place(each.topic, each.partition): each.offset for each in found}
            return {name: at[name] if at[name] >= 0 else known.high for name, known in ends.items()}
        assert isinstance(start, dict)
        for name, known in ends.items():
            if name not in start:
                raise Refused(f"start of {self._name!r} names no offset for {name}, which the topic has")
            if not known.low <= start[name] <= known.high:
                raise Refused(
                    f"{self._name!r} is to start at offset {start[name]} of {name}, which has offsets {known.low} to "
                    f"{known.high}"
                )
        return {name: start[name] for name in ends}

    def _resumed(self, position: bytes, checkpoint: int) -> bytes:
        """The same position, if all behind it is still there."""

        def unservable(has: str) -> Unservable:
            return Unservable(self._name, checkpoint, position, has)

        try:
            at = msgspec.json.decode(position, type=Position)
            wanted = {name: parsed(name) for name in at.next}
        except (msgspec.MsgspecError, ValueError) as error:
            raise unservable(f"it is no position of a Kafka source ({error})") from error
        there = set(self._partitions(must=False))
        for name, (topic, partition) in wanted.items():
            if not self._is_mine(topic, partition):
                raise unservable(f"{name} belongs to another task; the position is of other tasks or topics")
            if name not in there:
                raise unservable(f"there is no partition {name} any more")
            ends, end = self._ends(name), None if at.end is None else at.end[name]
            if at.next[name] < ends.low and at.next[name] != end:
                raise unservable(f"{name} begins at offset {ends.low} now")
            if ends.high < max(at.next[name], end or 0):
                raise unservable(f"{name} ends at offset {ends.high} now")
        return position

    # Slices ----------------------------------------------------------------------------------------------------------

    def _dealt(self, position: Position, goal: int) -> Iterator[Range]:
        """About as many records as the goal says, of all partitions that have some."""
        left = {name: self._high(name, position) - start for name, start in position.next.items()}
        if position.end is not None and (rest := sum(left.values())) <= LAST * goal:
            goal = rest
        waiting = sorted((count, name) for name, count in left.items() if count > 0)
        for index, (count, name) in enumerate(waiting):  # the shortest first: what it leaves, the others take
            take = min(count, max(1, goal // (len(waiting) - index)))
            goal -= take
            start = position.next[name]
            yield Range(*parsed(name), start, start + take)
            if goal <= 0:
                return

    def _high(self, name: str, position: Position) -> int:
        if position.end is not None:
            return position.end[name]
        if self._highs.get(name, -1) <= position.next[name]:
            ends = self._ends(name)
            if position.next[name] < ends.low or position.next[name] > ends.high:
                has = f"{name} has the offsets {ends.low} to {ends.high} now"
                raise Unservable(self._name, self._checkpoint, position.encoded(), has)
            self._highs[name] = ends.high
        return self._highs[name]

    def _splits(self, ranges: Sequence[Range]) -> list[list[Range]]:
        count = min(self._options.splits or len(ranges), len(ranges))
        splits: list[list[Range]] = [[] for _ in range(count)]
        for each in sorted(ranges, key=lambda each: each.start - each.end):  # the longest first
            min(splits, key=lambda split: sum(one.end - one.start for one in split)).append(each)
        return splits

    def _with_new_partitions(self, position: Position) -> Position:
        if time.monotonic() < self._looked_at + LOOK_S:
            return position
        self._looked_at = time.monotonic()
        new = [name for name in self._partitions(must=False) if name not in position.next]
        return Position(position.next | {name: self._ends(name).low for name in new}) if new else position

    # Asking Kafka ----------------------------------------------------------------------------------------------------

    def _consumer(self) -> Consumer:
        if self._asking is None:
            self._asking = self._cluster.consumer()
        return self._asking

    def _partitions(self, *, must: bool = True) -> list[str]:
        """Those of this task. Raises Refused where a topic is not there, if it must be."""
        found = partitions_of(self._consumer(), self._cluster, self._options.topics)
        missing = set(self._options.topics) - {topic for topic, _ in found}
        if missing and must:
            names = ", ".join(sorted(missing))
            raise Refused(f"{self._name!r} reads {names}, which {self._cluster.bootstrap_servers} does not have")
        return [place(topic, partition) for topic, partition in found if self._is_mine(topic, partition)]

    def _is_mine(self, topic: str, partition: int) -> bool:
        return topic in self._options.topics and (zlib.crc32(topic.encode()) + partition) % self._shares == self._share

    def _ends(self, name: str) -> Ends:
        return ends_of(self._consumer(), self._cluster, *parsed(name))
