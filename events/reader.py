"""Reads one partition in order, committed records only: plainly, or in whole transactions.

It never skips silently: a position that the log no longer has, a topic that is gone, a broker that refuses are
typed errors. A broker that is merely out of reach is waited for, which the caller sees as nothing arriving.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from events.cluster import FETCH_WAIT_MS, Cluster, passes, refuses
from events.errors import DetentError, Place
from events.table import Raw, Run, transactions
from events.topics import UNKNOWN, answered

BATCH = 2000  # small enough to stay in the processor's cache while it is folded


@dataclass(eq=False)
class UnreadablePartition(DetentError):
    """A partition that can't be read on. Nothing was skipped."""

    place: Place
    reason: str

    def message(self) -> str:
        return (
            f"reading {self.place} can't go on: {self.reason}. Nothing was skipped. If the topic was deleted or "
            "truncated, restore it or start with another prefix."
        )


class PartitionReader:
    """One consumer on one partition. Not for several threads at once."""

    def __init__(
        self, cluster: Cluster, topic: str, partition: int, start: int = 0, *, wait_ms: int = FETCH_WAIT_MS
    ) -> None:
        """`wait_ms`: how long the broker may hold a request when nothing is new, and so how long it may take to learn
        that the end is reached."""
        self.cluster, self.topic, self.partition = cluster, topic, partition
        self._consumer: Consumer = cluster.consumer(fetch_wait_max_ms=wait_ms)
        self.go_to(start)

    def __enter__(self) -> PartitionReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._consumer.close()

    def go_to(self, position: int) -> None:
        """Read on from there."""
        # The offset after everything delivered so far. Markers and compaction leave offsets that nobody delivers;
        # at the end of the log the client tells how far it has come all the same.
        self.position = position
        self._assigned = TopicPartition(self.cluster.topic(self.topic), self.partition, position)
        # Told to the client by the next poll, not now: a consumer that is closed while the broker refuses its position
        # hangs for ever (librdkafka 2.16), and whoever only asks for the end may stand where the log has nothing.
        self._is_told = False

    def pause(self) -> None:
        """Fetch nothing until the next `go_to`."""
        self._consumer.unassign()
        self._is_told = True

    def start_and_end(self, patience_s: float = 30.0) -> tuple[int, int]:
        """The first offset and the one after the last stable record. Fence before you measure: a predecessor's
        prepared commit can still appear behind the end."""
        offsets: tuple[int, int] = answered(
            self.cluster,
            f"asking for the end of {self.topic}/{self.partition}",
            patience_s,
            self._ask_for_offsets,
        )
        return offsets

    def _ask_for_offsets(self) -> tuple[int, int]:
        try:
            return self._consumer.get_watermark_offsets(self._assigned, timeout=3)
        except KafkaException as error:
            if error.args[0].code() not in UNKNOWN:
                raise
            self.check()  # the client says no more of a topic that it may not see
            raise TimeoutError(f"the client does not know who has {self.topic}/{self.partition} yet") from error

    def check(self, timeout_s: float = 3.0) -> None:
        """Raise UnreadablePartition when the partition is gone, AccessRefused when we may not read it: the client says
        nothing of that for minutes. To be called now and then where nothing arrives; a broker that does not answer
        proves nothing."""
        name = self._assigned.topic
        try:
            topic = self._consumer.list_topics(name, timeout=timeout_s).topics[name]
        except KafkaException:
            if refused := self.cluster.turned_away(self._doing):
                raise refused from None
            return
        if topic.error is not None and refuses(topic.error):
            raise self.cluster.refusal(self._doing, topic.error)
        if topic.error is not None or self.partition not in topic.partitions:
            reason = topic.error.str() if topic.error is not None else "the topic has fewer partitions"
            raise UnreadablePartition(Place(self.topic, self.partition, self.position), reason)

    def poll(self, timeout_s: float, limit: int = BATCH) -> list[Message]:
        """What has arrived, at once when there is something; nothing when nothing does in time. `position` tells how
        far reading has come."""
        if not self._is_told:
            self._consumer.assign([self._assigned])
            self._is_told = True
        messages = self._consumer.consume(limit, 0) or self._consumer.consume(1, timeout_s)
        if not all(map(Message.key, messages)):  # notices have no key; looking for that costs least
            messages = [message for message in messages if not self._is_notice(message)]
        if messages:
            # The client counts the markers that it passed over, too.
            passed = self._consumer.position([self._assigned])[0].offset
            self.position = max(self.position, offset_of(messages[-1]) + 1, passed)
        return messages

    @property
    def _doing(self) -> str:
        return f"reading {self._assigned.topic}/{self.partition}"

    def _is_notice(self, message: Message) -> bool:
        """Whether it is the client's word rather than a record: the end of the partition, or an error."""
        error = message.error()
        if error is None:
            return False
        if error.code() == KafkaError._PARTITION_EOF:
            self.position = max(self.position, offset_of(message))
        elif refuses(error):
            raise self.cluster.refusal(self._doing, error)
        elif not passes(error):
            place = Place(self.topic, self.partition, self.position)
            raise UnreadablePartition(place, f"{error.str()} ({error.name()})")
        return True


def offset_of(message: Message) -> int:
    return cast(int, message.offset())


def raw(message: Message) -> Raw:
    value = message.value()
    return Raw(message.offset(), message.key(), value, message.headers() if value is None else None)  # type: ignore[arg-type]


def columns(messages: list[Message]) -> Run:
    return Run(
        list(map(Message.key, messages)),
        list(map(Message.value, messages)),
        lambda i: raw(messages[i]),
    )


class WholeTransactions:
    """Cuts what arrives at transaction boundaries. What comes after the last boundary waits for the rest of its
    transaction: nobody ever sees half of one."""

    def __init__(self, cursor_key: bytes) -> None:
        self._cursor_key = cursor_key
        self._waiting: list[Raw] = []

    @property
    def is_amid(self) -> bool:
        return bool(self._waiting)

    def cut(self, messages: list[Message]) -> list[list[Raw]]:
        """The transactions that end within these messages."""
        arrived = self._waiting + list(map(raw, messages))
        ended = transactions(arrived, self._cursor_key)
        self._waiting = arrived[sum(map(len, ended)) :]
        return ended
