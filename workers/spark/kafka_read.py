"""Reads ranges of offsets from Kafka in Spark's Python processes, as Arrow batches.

A range is all committed records of a partition with start <= offset < end: each comes once, or reading fails. It never
reads from anywhere else, and never ends early. All of this runs where Spark runs its tasks; nothing here needs a
session, and what is sent there is values only. It imports little: every new Python process of Spark pays for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from events.cluster import Cluster, passes, refuses
from events.errors import DetentError

BATCH = 10_000  # rows of an Arrow batch
POLL_S = 0.2
FETCH_BYTES = 1024 * 1024
SILENCE_S = 60.0  # how long a broker may give nothing of a range that it has
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIMESTAMP = pa.timestamp("us", "UTC")
# What Spark calls a column's type.
DDL: Mapping[str, str] = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}


def _headers(message: Message) -> list[dict[str, Any]] | None:
    given: Any = message.headers()
    return None if given is None else [{"key": name, "value": value} for name, value in given]


# How it is had from messages of one partition.
COLUMNS: Mapping[str, Callable[[list[Message]], pa.Array]] = {
    "key": lambda messages: pa.array(map(Message.key, messages), pa.binary(), size=len(messages)),
    "value": lambda messages: pa.array(map(Message.value, messages), pa.binary(), size=len(messages)),
    "topic": lambda messages: pa.repeat(pa.scalar(messages[0].topic(), pa.string()), len(messages)),
    "partition": lambda messages: pa.repeat(pa.scalar(messages[0].partition(), pa.int32()), len(messages)),
    "offset": lambda messages: pa.array(map(Message.offset, messages), pa.int64(), size=len(messages)),
    "timestamp": lambda messages: pa.array(
        [time_ms * 1000 if kind else None for kind, time_ms in map(Message.timestamp, messages)], TIMESTAMP
    ),
    "headers": lambda messages: pa.array(map(_headers, messages), HEADERS, size=len(messages)),
}


class Range(NamedTuple):
    """Offsets of a partition, the end not among them."""

    topic: str
    partition: int
    start: int
    end: int


class RangeUnreadable(DetentError):
    """A range that can't be read, or not wholly."""


class Columns:
    """Messages of one partition → an Arrow batch of these columns."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)

    def __call__(self, messages: list[Message]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([COLUMNS[name](messages) for name in self._names], names=self._names)


def read_ranges(
    properties: Mapping[str, Any], ranges: Sequence[Range], batch_of: Callable[[list[Message]], pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The records of the ranges, one range after the other. Raises RangeUnreadable."""
    others = {name: value for name, value in properties.items() if name != "bootstrap.servers"}
    consumer = Cluster(properties["bootstrap.servers"], properties=others).consumer(**_prefetch(ranges))
    try:
        for each in ranges:
            if each.start < each.end:
                for messages in _read(consumer, each):
                    yield batch_of(messages)
    finally:
        consumer.close()


def _prefetch(ranges: Sequence[Range]) -> dict[str, int]:
    """What is fetched beyond a range's end is thrown away, and fetched again a slice later: a batch, and one fetch."""
    longest = max((each.end - each.start for each in ranges), default=0)
    return {"queued_min_messages": max(1, min(longest, BATCH)), "fetch_message_max_bytes": FETCH_BYTES}


def _read(consumer: Consumer, asked: Range) -> Iterator[list[Message]]:
    """In lists of about BATCH messages."""
    here = TopicPartition(asked.topic, asked.partition, asked.start)
    consumer.assign([here])
    position, gathered, heard_at = asked.start, list[Message](), time.monotonic()
    while position < asked.end:
        wanted = min(BATCH - len(gathered), asked.end - position)
        messages = consumer.consume(wanted, 0) or consumer.consume(1, POLL_S)
        if not messages:
            if time.monotonic() - heard_at > SILENCE_S:
                raise RangeUnreadable(f"nothing more of {asked} came within {SILENCE_S:g} s, after offset {position}")
            continue
        heard_at = time.monotonic()
        last = messages[-1]
        if any(map(Message.error, messages)):
            position = max(position, *(_noticed(asked, message) for message in messages))
            messages = [message for message in messages if message.error() is None]
        else:
            position = int(last.offset() or 0) + 1
        if messages and int(messages[-1].offset() or 0) >= asked.end:
            messages = [message for message in messages if int(message.offset() or 0) < asked.end]
        gathered += messages
        if len(gathered) >= BATCH:
            yield gathered
            gathered = []
    if gathered:
        yield gathered


def _noticed(asked: Range, message: Message) -> int:
    """How far reading has come by a message that may be the client's word: the end of the partition, or an error."""
    error = message.error()
    if error is None:
        return int(message.offset() or 0) + 1
    if error.code() == KafkaError._PARTITION_EOF:
        return int(message.offset() or 0)
    if passes(error) and not refuses(error):
        return -1
    raise RangeUnreadable(f"{asked} can't be read: {error.str()} ({error.name()})")


class Reading:
    """Sent to Spark's Python processes: how the ranges of a split are read there."""

    def __init__(self, properties: Mapping[str, Any], batch_of: Callable[[list[Message]], pa.RecordBatch]) -> None:
        self._properties, self._batch_of = dict(properties), batch_of

    def __call__(self, split: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        return read_ranges(self._properties, split, self._batch_of)


def ddl_of(columns: Sequence[str]) -> str:
    return ", ".join(f"`{name}` {DDL[name]}" for name in columns)
