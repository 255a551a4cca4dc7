"""One reign over a shard: inputs are decided on and written, group by group, each group in one transaction with the
cursor that says how far they were consumed. It ends with Fenced or OutcomeUnknown, or when its owner resigns.

The order: read inputs → decide and fold each, so that the next one sees it → one transaction → only then is anything
known to be so. What a transaction did not do is taken back and decided again. One thread at a time.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from coordinator import core
from coordinator.core import Sweep, Timer, note_heartbeat, note_silence
from coordinator.draft import Draft, Gone, Withdrawal, ended
from coordinator.health import last_checkpoint_ms
from coordinator.hearing import Hearing
from coordinator.quarantine import Impossible
from coordinator.replica import Replica
from coordinator.state import State, entity_of
from coordinator.telling import tell
from events.cluster import Cluster
from events.codec import Codec
from events.dead_letters import DeadLetters
from events.errors import DetentError, RecordTooLarge, TransactionAborted, UnreadableRecord
from events.inputs import Input, InputsReader, Partition
from events.keys import named, order_key, shard_of
from events.reader import raw
from events.records import Cause, Command, Cursor, Event, Leader, Order, Position, Report
from events.table import tombstone_headers
from events.writer import Outgoing, TransactionalWriter

LOG = logging.getLogger(__name__)
KINDS: dict[str, type[Command] | type[Report]] = {"commands": Command, "reports": Report}
LONGEST_WAIT_S = 0.02
# A transaction is closed when it has as many events, whatever waits: it must end well within its time limit.
MOST_EVENTS = 20_000
SLICES, MOST_SWEPT = 20, 100
MOST_AGES = 50
ABORT_PAUSE_S, LONGEST_ABORT_PAUSE_S = 0.05, 2.0


@dataclass(frozen=True, slots=True)
class Rules:
    """What an operator may choose."""

    lease_ms: int = 10_000
    sweep_ms: int = 1000
    group_records: int = 1000
    group_bytes: int = 4 * 1024 * 1024
    group_ms: int = 50


class Counts(Protocol):
    """Where what happens is counted."""

    def transaction(self, shard: int, inputs: int, events: Sequence[Event | Gone], took_s: float) -> None: ...
    def swept(self, shard: int, orphans: int, checkpointed: list[tuple[int, str]]) -> None: ...
    def ignored(self, shard: int, notes: Sequence[str]) -> None: ...
    def dead_letter(self, shard: int, topic: str) -> None: ...
    def aborted(self, shard: int) -> None: ...
    def quarantined(self, shard: int) -> None: ...


class CursorUnreadable(DetentError):
    """Nobody knows how far the shard's inputs were consumed. It is not led until a person has looked."""


class Reign:
    def __init__(
        self,
        cluster: Cluster,
        codec: Codec,
        replica: Replica,
        writer: TransactionalWriter,
        hearing: Hearing,
        dead_letters: DeadLetters,
        now_ms: Callable[[], int],
        rules: Rules,
        counts: Counts,
    ) -> None:
        self._cluster, self._codec, self._replica, self._writer = cluster, codec, replica, writer
        self._hearing, self._dead_letters, self._now_ms = hearing, dead_letters, now_ms
        self._rules, self._counts = rules, counts
        self.state: State = replica.state
        self._heard = 0  # the version of what was heard from workers
        self._swept_ms = 0
        self._unswept: list[str] = []
        self._slice = 1
        self._orphans = 0
        self._checkpointed: list[tuple[int, str]] = []  # when running jobs last committed a checkpoint
        self._waiting: deque[Input] = deque()
        self._drafts: list[Draft] = []  # what the state has and the log has not
        self._events: list[Event | Gone] = []
        self._orders: list[Order | Withdrawal] = []
        self._notes: list[str] = []
        self._one_by_one = 0  # inputs still to be decided in a transaction each, since a group was too large
        self._consumed: dict[Partition, int] = {}
        self._inputs: InputsReader | None = None
        self._abort_pause_s = ABORT_PAUSE_S

    # Beginning and end ---------------------------------------------------------------------------------------------

    def begin(self, leader: Leader) -> None:
        """Write the election, and all that the predecessor left undone. The log must have been read to its end."""
        replica, state, now = self._replica, self.state, self._now_ms()
        if named("cursor", state.shard).key in replica.unreadable:
            raise CursorUnreadable(
                f"the cursor of shard {state.shard} can't be read, so it is not known how far its commands and reports "
                "were consumed. The shard is not led. Its bytes are in dead letters; see `detent repair --help`."
            )
        for poison in replica.poison:
            self._dead_letters.put_poison("events", state.shard, poison)
        self._dead_letters.flush()
        replica.poison.clear()
        state.heard.clear()
        state.led_since, state.lease_ms = now, self._rules.lease_ms
        self._heard, heard = self._hearing.since(0)
        for each in heard:
            note_heartbeat(state, each.heartbeat, each.at)
        self._save()
        self._take(core.activation(state, state.epoch + 1, now, leader, replica.set_aside()))
        known = state.cursor.state.positions if state.cursor and isinstance(state.cursor.state, Cursor) else ()
        self._consumed = {(p.topic, p.partition): p.offset for p in known}
        self._write(0)
        replica.unreadable.clear()
        replica.lead()

    def open_inputs(self) -> None:
        """After the election: from here on commands and reports are read."""
        shard = self.state.shard
        self._inputs = InputsReader(self._cluster, {(t, shard): self._consumed.get((t, shard)) for t in KINDS})
        self._consumed = dict(self._inputs.positions)

    def resign(self, leader: Leader) -> None:
        """The last transaction of this reign."""
        self._save()
        self._take(core.resignation(self.state, self._now_ms(), leader))
        self._write(0)

    def close(self) -> None:
        if self._inputs is not None:
            self._inputs.close()
        self._writer.close()

    # Group after group ---------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Decide on what has come, and write it. Waits a little when nothing has."""
        assert self._inputs is not None
        if not self._waiting:
            self._waiting.extend(self._inputs.poll(self._patience_s(), self._rules.group_records))
        self._save()
        count = self._decide_inputs()
        self._decide_the_rest()
        if not self._events and not self._orders and not count:
            return
        try:
            self._write(count)
            self._abort_pause_s = ABORT_PAUSE_S
        except TransactionAborted as aborted:
            LOG.warning("transaction aborted, decided again shard=%d reason=%s", self.state.shard, aborted.reason)
            self._counts.aborted(self.state.shard)
            self._back_to_cursor()
            time.sleep(self._abort_pause_s)
            self._abort_pause_s = min(2 * self._abort_pause_s, LONGEST_ABORT_PAUSE_S)
        except RecordTooLarge as error:
            self._too_large(count, error)

    def _patience_s(self) -> float:
        now = self._now_ms()
        due = self.state.next_due()
        sweep = self._swept_ms + self._rules.sweep_ms // SLICES
        soonest = min(sweep, due) if due is not None else sweep
        return max(0.0, min(LONGEST_WAIT_S, (soonest - now) / 1000))

    def _decide_inputs(self) -> int:
        """As many as fit a transaction. Returns how many."""
        count, size, until = 0, 0, time.monotonic() + self._rules.group_ms / 1000
        while self._waiting and len(self._events) < MOST_EVENTS and size < self._rules.group_bytes:
            given = self._waiting.popleft()
            self._decide_input(given)
            place = given.place
            self._consumed[given.topic, given.partition] = place.offset + 1
            count, size = count + 1, size + len(given.message.value() or b"")
            self._one_by_one = max(0, self._one_by_one - 1)
            if self._one_by_one or time.monotonic() > until:
                break
        return count

    def _decide_input(self, given: Input) -> None:
        try:
            record = self._codec.decode(given.message.value(), KINDS[given.topic], given.place)
        except UnreadableRecord as error:
            self._put_aside(given, error.reason)
            return
        place = given.place
        cause = Cause(kind="INPUT", topic=place.topic, partition=place.partition, offset=place.offset)
        if not self.state.owns(record.job):
            self._put_aside(given, f"job {record.job!r} belongs to another partition")
            return
        try:
            self._decide(record, cause)
        except Exception as error:  # a fault of ours must not stop the shard's other jobs
            LOG.exception("an input could not be decided on, its job is quarantined shard=%d place=%s job=%s",
                          self.state.shard, place, record.job)  # fmt: skip
            self._put_aside(given, f"it could not be decided on: {error!r}")
            self._give_up(record, f"{place} could not be decided on: {error!r}", cause)

    def _decide_the_rest(self) -> None:
        """Heartbeats, deadlines, and the sweep."""
        state, now = self.state, self._now_ms()
        self._heard, heard = self._hearing.since(self._heard)
        for each in heard:
            note_heartbeat(state, each.heartbeat, each.at)
            self._decide(each.heartbeat, Cause(kind="DETECTOR", note=f"heartbeat of {each.heartbeat.worker}"))
        for due_at, entity in state.due(now):
            if len(self._events) >= MOST_EVENTS:
                break
            try:
                self._decide(Timer(entity, due_at), Cause(kind="TIMER", note=entity))
            except Exception as error:
                LOG.exception("a deadline could not be decided on shard=%d entity=%s", state.shard, entity)
                if not (job := entity_of(entity).job):
                    raise
                self._quarantine(job, f"its deadline {entity} could not be decided on: {error!r}",
                                 Cause(kind="TIMER", note=entity))  # fmt: skip
        if now - self._swept_ms >= self._rules.sweep_ms / SLICES:
            self._swept_ms = now
            self._sweep(now)

    def _sweep(self, now: int) -> None:
        """A slice of the jobs at a time, so that nobody waits for it: all within `sweep_ms`, or, where there are many,
        at a pace that costs next to nothing."""
        note_silence(self.state, now)
        if not self._unswept:
            self._counts.swept(self.state.shard, self._orphans, heapq.nsmallest(MOST_AGES, self._checkpointed))
            self._orphans, self._checkpointed = 0, []
            self._unswept = list(self.state.jobs)
            self._slice = min(MOST_SWEPT, -(-len(self._unswept) // SLICES))
        jobs, self._unswept = tuple(self._unswept[: self._slice]), self._unswept[self._slice :]
        views = [(job, self.state.jobs[job]) for job in jobs if job in self.state.jobs]
        self._orphans += sum(view.is_orphaned for _, view in views)
        self._checkpointed += [(at, job) for job, view in views if (at := last_checkpoint_ms(view))]
        self._decide(Sweep(jobs), Cause(kind="STATE", note="sweep"))

    def _decide(self, given: core.Input, cause: Cause) -> None:
        self._take(core.drafted(self.state, given, self._now_ms(), cause))

    def _give_up(self, record: Command | Report, reason: str, cause: Cause) -> None:
        """A command is refused; of a report nobody knows what it should have led to, so its job ends."""
        if isinstance(record, Command):
            self._decide(core.Undoable(record, reason), cause)
        else:
            self._quarantine(record.job, reason, cause)

    def _quarantine(self, job: str, reason: str, cause: Cause) -> None:
        self._counts.quarantined(self.state.shard)
        self._decide(Impossible(job, reason), cause)

    def _put_aside(self, given: Input, reason: str) -> None:
        self._counts.dead_letter(self.state.shard, given.topic)
        self._dead_letters.put(given.topic, given.partition, raw(given.message), reason)

    # Onto the log --------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Where a group begins: what `_take_back` goes back to."""
        self._drafts.clear()
        self._events, self._orders, self._notes = [], [], []
        self._consumed_before = dict(self._consumed)

    def _take(self, draft: Draft) -> None:
        self._drafts.append(draft)
        self._events += draft.events
        self._orders += draft.orders
        self._notes += draft.notes

    def _take_back(self) -> None:
        for draft in reversed(self._drafts):
            draft.take_back()
        self._consumed = self._consumed_before

    def _write(self, inputs: int) -> None:
        """Dead letters first, then one transaction that ends with the cursor."""
        state, started = self.state, time.monotonic()
        positions = tuple(Position(topic=t, partition=p, offset=o) for (t, p), o in sorted(self._consumed.items()))
        cursor = ended(state, self._now_ms(), positions)
        self._take(cursor)
        events, written = self._outgoing_events()
        try:
            self._dead_letters.flush()
            offset = self._writer.commit([*self._outgoing_orders(), *events])
        except BaseException:
            self._take_back()
            raise
        self._replica.own(written, offset + 1)
        self._counts.transaction(state.shard, inputs, self._events, time.monotonic() - started)
        if self._notes:
            self._counts.ignored(state.shard, self._notes)
        tell(state.shard, self._events, self._notes)

    def _outgoing_events(self) -> tuple[list[Outgoing], dict[bytes, bytes | None]]:
        shard = self.state.shard
        values = iter(self._codec.encode_all([e for e in self._events if isinstance(e, Event)], "Event"))
        outgoing, written = list[Outgoing](), dict[bytes, bytes | None]()
        for event in self._events:
            key = event.entity.encode()
            if isinstance(event, Event):
                written[key] = value = next(values)
                outgoing.append(Outgoing("events", shard, key, value))
            else:
                written[key] = None
                headers = tombstone_headers(event.epoch, event.incarnation)
                outgoing.append(Outgoing("events", shard, key, None, headers))
        return outgoing, written

    def _outgoing_orders(self) -> list[Outgoing]:
        shards, outgoing = self._cluster.shards, list[Outgoing]()
        for order in self._orders:
            key = order_key(order.worker, order.job, order.pipeline, order.task)
            value = self._codec.encode(order) if isinstance(order, Order) else None
            outgoing.append(Outgoing("orders", shard_of(order.worker, shards), key, value))
        return outgoing

    def _back_to_cursor(self) -> None:
        assert self._inputs is not None
        self._waiting.clear()
        self._inputs.go_to(self._consumed)

    def _too_large(self, count: int, error: RecordTooLarge) -> None:
        """Find the input that asks for what no topic takes: one by one. It is put aside, and its job ends."""
        LOG.error("a record is too large shard=%d key=%s: %s", self.state.shard, error.key, error)
        if count > 1:
            self._one_by_one = count
            self._back_to_cursor()
            return
        self._save()
        cause = Cause(kind="STATE", note="a record of it is too large")
        if count == 1:
            self._back_to_cursor()
            self._skip_one(str(error), cause)
        elif error.topic == "events" and (job := entity_of(error.key.decode()).job):
            self._quarantine(job, str(error), cause)
        else:
            raise error
        self._write(count)

    def _skip_one(self, reason: str, cause: Cause) -> None:
        assert self._inputs is not None
        while not self._waiting:
            self._waiting.extend(self._inputs.poll(LONGEST_WAIT_S, 1))
        given = self._waiting.popleft()
        self._put_aside(given, reason)
        self._consumed[given.topic, given.partition] = given.place.offset + 1
        record = self._codec.decode(given.message.value(), KINDS[given.topic], given.place)
        self._give_up(record, reason, cause)
