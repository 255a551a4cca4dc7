"""Publishes commands and awaits their outcomes from the log, as any service may. It needs nothing but the broker.

An outcome is never unknown for good: the command's id is the asker's, asking again with it is safe, and the shard's
cursor tells when a command has been decided on. So whoever got no answer in time asks again and gets the first one.

Any thread may ask; each call has a reader of its own.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from events.cluster import Cluster, refuses
from events.codec import Codec
from events.errors import DetentError, Place, UnreadableRecord
from events.follower import Follower
from events.keys import named, shard_of
from events.outcomes import conflict_entity, digest_of, outcome_entity
from events.reader import offset_of
from events.records import Cancel, Command, Cursor, Event, Outcome, Summary
from events.table import Table
from events.topics import answered

PATIENCE_S = 30.0
POLL_S = 0.1
WAIT_MS = 20  # an asker waits for one record: the broker is not to hold it back for company


class Answer(NamedTuple):
    """What became of a command. `offset` is where the log goes on after it: who has read up to there sees what it did.

    `state` is ACCEPTED, REFUSED, or ENDED: the job that it was given to has ended since, and its outcome went with it.
    """

    job: str
    command_id: str
    state: str
    action: str
    by: str
    reason: str
    incarnation: int
    shard: int
    offset: int
    decided_at: int

    @property
    def is_accepted(self) -> bool:
        return self.state == "ACCEPTED"


@dataclass(eq=False)
class NotAnswered(DetentError):
    """No outcome in time. It is decided on as soon as a coordinator leads the shard, once."""

    job: str
    command_id: str
    place: Place | None
    waited_s: float

    def message(self) -> str:
        on = f"is on the log ({self.place})" if self.place else "may be on the log"
        return (
            f"command {self.command_id} for job {self.job} {on}, and no coordinator has decided on it within "
            f"{self.waited_s:g} s. It will be, once, as soon as one leads shard "
            f"{self.place.partition if self.place else '?'}. Look whether a coordinator runs, and ask again with the "
            "same command id: that never does it twice."
        )


@dataclass(eq=False)
class NotDecided(DetentError):
    """The coordinator has passed the command over: it could not be read as one."""

    job: str
    command_id: str
    place: Place

    def message(self) -> str:
        return (
            f"command {self.command_id} for job {self.job} ({self.place}) was passed over without an outcome; it was "
            "not carried out. The coordinator's log and the dead letters say why."
        )


@dataclass(eq=False)
class NoDetent(DetentError):
    """A broker without Detent's topics."""

    bootstrap_servers: str
    topic: str

    def message(self) -> str:
        return (
            f"the broker at {self.bootstrap_servers} has no topic {self.topic}: no coordinator has ever run there. "
            "Start one (`detent up`, or `detent coordinator`), or set kafka.topic_prefix to the prefix it has."
        )


def shards_of(cluster: Cluster, patience_s: float = PATIENCE_S) -> int:
    """How many shards there are, as the topics have it. Raises NoDetent."""
    name, admin = cluster.topic("commands"), cluster.admin()

    def ask() -> int:
        topic = admin.list_topics(name, timeout=3).topics[name]
        if topic.error is not None and refuses(topic.error):
            raise cluster.refusal(f"asking for the topic {name}", topic.error)
        return 0 if topic.error is not None else len(topic.partitions)

    found = answered(cluster, f"asking for the topic {name}", patience_s, ask)
    if not found:
        raise NoDetent(cluster.bootstrap_servers, name)
    return found


class Asker:
    """Asks on one cluster, whose number of shards must be right (`shards_of`)."""

    def __init__(self, cluster: Cluster, codec: Codec) -> None:
        self._cluster, self._codec = cluster, codec
        self._producer: Producer = cluster.producer(linger_ms=0)
        self._lock = threading.Lock()

    def ask(self, command: Command, *, again: bool = False, patience_s: float = PATIENCE_S) -> Answer:
        """Publish the command and wait for its outcome. With `again`, look first whether it has one: for an id that may
        have been used before. Raises NotAnswered; BrokerUnreachable and others where the broker can't be had."""
        deadline = time.monotonic() + patience_s
        follower = self._follower(command, from_start=again)
        try:
            wait = _Wait(command, follower.table)
            if again and (found := wait.found(None)):
                return found
            place = self.publish(command, max(1.0, deadline - time.monotonic()))
            while (found := wait.found(place)) is None:
                if time.monotonic() > deadline:
                    raise NotAnswered(command.job, command.id, place, patience_s)
                follower.advance(POLL_S)
            return found
        finally:
            follower.close()

    def outcome(self, job: str, command_id: str) -> Answer | None:
        """What is known of a command, without asking anything."""
        command = Command(id=command_id, job=job, action=Cancel())  # which is not looked at
        follower = self._follower(command, from_start=True)
        try:
            return _Wait(command, follower.table, any_content=True).found(None)
        finally:
            follower.close()

    def _follower(self, command: Command, *, from_start: bool) -> Follower:
        """At the end of the log. What is decided from now on stands behind it."""
        outcome_entity(command)  # raises where job or id can't be one
        table = Table("events", shard_of(command.job, self._cluster.shards), self._codec)
        follower = Follower(self._cluster, table, wait_ms=WAIT_MS)
        try:
            if from_start:
                follower.catch_up()
            else:
                table.next_offset = follower.reader.start_and_end()[1]
                follower.rewind()
        except BaseException:
            follower.close()
            raise
        return follower

    def publish(self, command: Command, patience_s: float) -> Place:
        """Put the command on the log and do not wait for its outcome; where it stands then."""
        partition = shard_of(command.job, self._cluster.shards)
        told: list[tuple[KafkaError | None, Message]] = []
        doing = f"publishing command {command.id} for job {command.job}"
        with self._lock:  # the producer's flush waits for everything that it was given
            try:
                self._producer.produce(
                    self._cluster.topic("commands"),
                    self._codec.encode(command),
                    command.job.encode(),
                    partition,
                    on_delivery=lambda error, message: told.append((error, message)),
                )
            except KafkaException as error:
                raise DetentError(f"{doing} failed: {error.args[0].str()}. Nothing was sent.") from error
            self._cluster.flush(self._producer, doing, patience_s)
        ((refusal, message),) = told
        if refusal is not None and refuses(refusal):
            raise self._cluster.refusal(doing, refusal)
        if refusal is not None:
            raise DetentError(f"{doing} failed: {refusal.str()}. Ask again with the same command id.")
        return Place("commands", partition, offset_of(message))


class _Wait:
    """Looks for the outcome in what is known of the shard."""

    def __init__(self, command: Command, table: Table, *, any_content: bool = False) -> None:
        self._command, self._table, self._any = command, table, any_content

    def found(self, place: Place | None) -> Answer | None:
        """With a place: raises NotDecided when the coordinator is past it and there is none."""
        known = self._event(outcome_entity(self._command).key)
        if known is not None and not self._any and _outcome(known).digest != digest_of(self._command):
            known = self._event(conflict_entity(self._command).key)
        if known is not None:
            return self._answer(known)
        if (ended := self._ended()) is not None:
            return ended
        if place is not None and self._consumed(place.partition) > place.offset:
            raise NotDecided(self._command.job, self._command.id, place)
        return None

    def _event(self, key: bytes) -> Event | None:
        try:
            return self._table.read(key)
        except UnreadableRecord:
            return None

    def _consumed(self, partition: int) -> int:
        cursor = self._event(self._table.cursor_key)
        positions = cursor.state.positions if cursor and isinstance(cursor.state, Cursor) else ()
        return max((p.offset for p in positions if (p.topic, p.partition) == ("commands", partition)), default=-1)

    def _ended(self) -> Answer | None:
        """Outcomes go with their job; its summary remembers which commands it was given."""
        prefix = named("summary", self._command.job, 0).key[:-1]
        for key in [key for key in self._table.values if key.startswith(prefix)]:
            event = self._event(key)
            if event and isinstance(event.state, Summary) and self._command.id in event.state.commands:
                reason = f"the job it was given to has ended: {event.state.reason}"
                return self._answer(event, state="ENDED", reason=reason)
        return None

    def _answer(self, event: Event, *, state: str = "", reason: str = "") -> Answer:
        outcome = event.state if isinstance(event.state, Outcome) else None
        return Answer(
            job=self._command.job,
            command_id=self._command.id,
            state=state or event.to,
            action=outcome.action if outcome else type(self._command.action).__name__,
            by=outcome.by if outcome else self._command.by,
            reason=reason or (outcome.reason if outcome else ""),
            incarnation=event.incarnation,
            shard=self._table.shard,
            offset=self._table.next_offset,
            decided_at=event.time,
        )


def _outcome(event: Event) -> Outcome:
    assert isinstance(event.state, Outcome)
    return event.state
