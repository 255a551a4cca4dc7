"""The errors of the log: types with the facts in fields, messages that say what happened, to what, and what to do."""

from __future__ import annotations

from dataclasses import dataclass


class DetentError(Exception):
    """Everything Detent raises on purpose. The message alone must be enough to act on."""

    def __str__(self) -> str:
        return self.message()

    def message(self) -> str:
        return super().__str__()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands. The offset is -1 where it isn't known."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        offset = "unknown offset" if self.offset < 0 else f"offset {self.offset}"
        return f"{self.topic}/{self.partition} at {offset}"


@dataclass(eq=False)
class UnreadableRecord(DetentError):
    """A record that can't be used. It goes to dead letters whole; it never stops a reader."""

    place: Place
    reason: str

    def message(self) -> str:
        return f"the record on {self.place} can't be read: {self.reason}. Its bytes are kept in dead letters."


class UnknownSchema(UnreadableRecord):
    """The record names a schema that is not on the schemas topic (or in the registry)."""


class UnreadableKey(DetentError):
    """A key that names no entity."""

    def __init__(self, key: bytes, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def message(self) -> str:
        shown = self.key[:80]
        return f"the key {shown!r}{'…' if len(self.key) > 80 else ''} names no entity: {self.reason}"


@dataclass(eq=False)
class EncodingError(DetentError):
    """A record of ours that does not fit its schema: a programmer's error."""

    record: str
    reason: str

    def message(self) -> str:
        return f"a {self.record} does not fit its schema: {self.reason}"


@dataclass(eq=False)
class RecordTooLarge(DetentError):
    """A record that no broker would take; nothing of its transaction was sent."""

    topic: str
    key: bytes
    size: int
    limit: int

    def message(self) -> str:
        return (
            f"the record with key {self.key[:80]!r} for {self.topic} has {self.size:,} bytes; at most {self.limit:,} "
            "are allowed. Nothing was sent. Make it smaller, or raise max_record_bytes and the topic's "
            "max.message.bytes together."
        )


@dataclass(eq=False)
class TopicMismatch(DetentError):
    """Topics that are there but are not what Detent needs."""

    problems: tuple[str, ...]

    def message(self) -> str:
        listed = "".join(f"\n  - {problem}" for problem in self.problems)
        return f"the topics are not fit for Detent, so it does not start:{listed}"


@dataclass(eq=False)
class BrokerUnreachable(DetentError):
    """No broker answered in time."""

    bootstrap_servers: str
    doing: str
    waited_s: float

    def message(self) -> str:
        return (
            f"no broker at {self.bootstrap_servers} answered within {self.waited_s:g} s while {self.doing}. "
            "Check that it runs and that the address and the security settings (kafka.*) are right."
        )


@dataclass(eq=False)
class PropertyRefused(DetentError):
    """The Kafka client does not take its properties."""

    reason: str

    def message(self) -> str:
        return f"the Kafka client does not take its properties: {self.reason}. Check the settings kafka.*."


@dataclass(eq=False)
class AccessRefused(DetentError):
    """A broker is there and turns us away: asking again changes nothing until somebody changes something."""

    bootstrap_servers: str
    doing: str
    reason: str
    remedy: str

    def message(self) -> str:
        return f"the broker at {self.bootstrap_servers} refused us while {self.doing}: {self.reason}. {self.remedy}"


@dataclass(eq=False)
class TransactionAborted(DetentError):
    """Nothing of the transaction is or will be visible. Go back to the cursor and decide again."""

    transactional_id: str
    reason: str

    def message(self) -> str:
        return f"a transaction of {self.transactional_id} was aborted, nothing of it is visible: {self.reason}"


@dataclass(eq=False)
class Fenced(DetentError):
    """A newer leader has taken the shard, or the broker gave this one's transaction up because it took too long. This
    writer is closed for good. What it was committing is on the log or is not: whoever goes on reads it first."""

    transactional_id: str
    reason: str

    def message(self) -> str:
        return (
            f"this writer of {self.transactional_id} is fenced: there is a newer owner, or its transaction took longer "
            f"than transaction.timeout.ms ({self.reason})"
        )


@dataclass(eq=False)
class OutcomeUnknown(DetentError):
    """The broker gave no definite answer. The writer is closed: open a new one and read what the log says."""

    transactional_id: str
    doing: str
    reason: str

    def message(self) -> str:
        return (
            f"whether the {self.doing} of {self.transactional_id} took effect is not known ({self.reason}). "
            "The producer was thrown away; the log, read after a new one is open, tells."
        )
