"""A coordinator process of the simulation: the production core with a shell that reads, writes transactions, leads and
follows. Its memory is gone with it; what it knows it reads from the log again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from coordinator.core import Input, Sweep, Timer, activation, decide, drafted, may_lead, note_heartbeat, note_silence
from coordinator.draft import Decision, Gone, Withdrawal, boundary, take_over
from coordinator.quarantine import Unreadable
from coordinator.state import LOGIC, State, entity_of, fold
from events.codec import Header
from events.records import Cause, Cursor, Event, Leader, Position
from events.table import admits
from tests.simulation.broker import FencedError, NoAnswer, Rotten

if TYPE_CHECKING:
    from tests.simulation.world import World

DETECTION_MS = 500
INPUTS = ("commands", "reports")
ID = "shard-0"


def header_of(value: Event | Gone | Rotten) -> Header:
    """As the first bytes, or a tombstone's headers, say it."""
    known = value.was if isinstance(value, Rotten) else value
    if isinstance(known, Gone):
        return Header(known.epoch, 0, known.incarnation, 2**31 - 1, 0)
    return Header(known.epoch, known.logic, known.incarnation, known.attempt, known.due_at)


class Reading:
    """A state and what could not be read of it, folded record by record under the rules of the log."""

    def __init__(self, logic: int = LOGIC) -> None:
        self.state = State(0, writes=logic)
        self.epoch = 0
        self.unreadable: dict[str, Rotten] = {}

    def take(self, records: Iterable[tuple[int, str, Event | Gone | Rotten]]) -> None:
        """As in production, only the newest record of a key is folded (`events/table.py`)."""
        newest: dict[str, Event | Gone | Rotten] = {}
        for _, key, value in records:
            if isinstance(value, Event) and value.epoch == self.epoch:
                newest[key] = value
                continue
            before, header = newest[key] if key in newest else self.state.get(entity_of(key)), header_of(value)
            if admits(header, self.epoch, header_of(before) if isinstance(before, Event) else None):
                self.epoch = header.epoch
                newest[key] = value
        for key, value in newest.items():
            if self.unreadable:
                self.unreadable.pop(key, None)
            if isinstance(value, Rotten):
                self.unreadable[key] = value
            fold(self.state, entity_of(key), value if isinstance(value, Event) else None)

    def set_aside(self) -> list[Unreadable]:
        return [
            Unreadable(entity_of(key), header_of(rotten).incarnation, "it is rotten")
            for key, rotten in sorted(self.unreadable.items())
        ]


class Coordinator:
    def __init__(self, world: World, name: str, rank: int) -> None:
        self.world, self.name, self.rank = world, name, rank
        self.alive = True
        self.asleep_until = 0
        self.logic = LOGIC
        broker = world.broker
        self.events, self.beats = broker.partition("events"), broker.partition("workers")
        self.inputs = {topic: broker.partition(topic) for topic in INPUTS}
        self.start()

    def start(self) -> None:
        self.skew = self.world.skew()
        self.begin()

    def begin(self) -> None:
        """From nothing: all it knows is what the log will tell."""
        self.reading = Reading(self.logic)
        self.position = 0  # on events
        self.waiting: list[tuple[int, Any, Any]] = []
        self.heartbeats = 0
        self.leading = 0  # the producer's epoch while it believes that it leads
        self.swept = 0

    @property
    def state(self) -> State:
        return self.reading.state

    @property
    def now(self) -> int:
        return self.world.now + self.skew

    def step(self) -> None:
        if self.leading:
            self.lead()
        else:
            if self.position < self.events.stable:
                self.follow()
            if self.world.now - self.world.beaten > DETECTION_MS * (1 + self.rank) and may_lead(self.state):
                self.take_over()

    def follow(self) -> None:
        """Whole transactions only."""
        found, self.position = self.events.read(self.position)
        self.waiting += found
        last = max((i for i, (_, key, _) in enumerate(self.waiting) if key == "cursor/0"), default=-1)
        self.reading.take(self.waiting[: last + 1])
        del self.waiting[: last + 1]

    def take_over(self) -> None:
        """Fence, then read to the end, then write the election."""
        self.world.point(self, "fence")
        epoch = self.world.broker.init(ID)
        self.follow()
        self.reading.take(self.waiting)  # compaction may have taken the cursors of what is left before the end
        self.waiting.clear()
        if not may_lead(self.state):  # newer logic has led since it looked
            return
        self.leading = epoch
        self.heartbeats = 0
        self.state.heard.clear()
        self.state.led_since, self.state.lease_ms = self.now, self.world.lease_ms
        self.world.beaten = self.world.now
        self.world.count("takeovers")
        leader = Leader(coordinator=self.name, reason="the leader before fell silent")
        aside = self.reading.set_aside()
        decision = activation(self.state, self.state.epoch + 1, self.now, leader, aside).decision()
        self.reading.unreadable.clear()
        self.state.epoch += 1
        self.write(self.by_its_logic(decision), self.positions())

    def by_its_logic(self, decision: Decision) -> Decision:
        """Older logic had a bug: it forgot to promise the cleanup. Whoever follows it has to heal that."""
        if self.logic == LOGIC or any(isinstance(e, Event) and e.transition == "restored" for e in decision.events):
            return decision
        kept = tuple(e for e in decision.events if isinstance(e, Gone) or e.transition != "promised")
        return Decision(kept, decision.orders, decision.notes)

    def positions(self) -> dict[str, int]:
        cursor = self.state.cursor.state if self.state.cursor else None
        known = {p.topic: p.offset for p in cursor.positions} if isinstance(cursor, Cursor) else {}
        return {topic: known.get(topic, 0) for topic in INPUTS}

    def lead(self) -> None:
        world, now = self.world, self.now
        world.beaten = world.now
        if self.is_quiet(now):
            return
        positions = self.positions()
        inputs: list[tuple[Input, Cause]] = []
        has_read = False
        for topic, partition in self.inputs.items():
            if positions[topic] >= partition.stable:
                continue
            found, positions[topic] = partition.read(positions[topic], limit=world.rng.randint(1, 8))
            has_read = True
            for offset, _, value in found:
                if isinstance(value, Rotten):
                    world.count("dead letters")
                else:
                    inputs.append((value, Cause(kind="INPUT", topic=topic, partition=0, offset=offset)))
        inputs += self.heartbeats_and_timers(now)
        decided = [self.decide(given, now, cause) for given, cause in inputs]
        if has_read or any(not d.is_empty for d in decided):
            events = tuple(event for d in decided for event in d.events)
            orders = tuple(order for d in decided for order in d.orders)
            notes = tuple(note for d in decided for note in d.notes)
            self.write(Decision(events, orders, notes), positions, folded=True)

    def is_quiet(self, now: int) -> bool:
        """Nothing has come in since it last wrote, and nothing is due."""
        if self.heartbeats < self.beats.stable or now - self.swept > 1000 or self.state.timers[:1] < [(now + 1, "")]:
            return False
        cursor = self.state.cursor.state if self.state.cursor else None
        if not isinstance(cursor, Cursor):
            return False
        return all(self.inputs[p.topic].stable <= p.offset for p in cursor.positions)

    def decide(self, given: Input, now: int, cause: Cause) -> Decision:
        """The next input of the group sees it."""
        if self.logic == LOGIC:
            return drafted(self.state, given, now, cause).kept()
        decision = self.by_its_logic(decide(self.state, given, now, cause))
        take_over(self.state, decision)
        return decision

    def heartbeats_and_timers(self, now: int) -> list[tuple[Input, Cause]]:
        inputs: list[tuple[Input, Cause]] = []
        if self.heartbeats < self.beats.stable:
            beats, self.heartbeats = self.beats.read(self.heartbeats)
            newest = {worker: said for _, worker, said in beats}  # of each: as in coordinator/hearing.py
            for said in newest.values():
                note_heartbeat(self.state, said, now)
                inputs.append((said, Cause(kind="DETECTOR", note="heartbeat")))
        inputs += [(Timer(entity, due), Cause(kind="TIMER", note=entity)) for due, entity in self.state.due(now)]
        if now - self.swept > 1000:
            self.swept = now
            note_silence(self.state, now)
            sweep = Sweep(tuple(self.state.jobs))
            inputs.append((sweep, Cause(kind="STATE", note="sweep")))
        return inputs

    def write(self, decision: Decision, positions: dict[str, int], *, folded: bool = False) -> None:
        """One transaction: events, orders, cursor. On any doubt about its outcome: start over from the log."""
        if not folded:
            take_over(self.state, decision)
        kept = tuple(Position(topic=t, partition=0, offset=o) for t, o in positions.items())
        cursor = boundary(self.state, self.now, kept)
        fold(self.state, entity_of(cursor.entity), cursor)
        events = (*decision.events, cursor)
        try:
            self.send(events, decision)
            self.world.commit(self, ID, self.leading)
        except FencedError:
            self.world.leak(events)
            self.begin()  # the log tells
            return
        except NoAnswer:
            self.unanswered()
            return
        self.world.count("transactions")
        for note in decision.notes:
            self.world.noted(self, note)

    def unanswered(self) -> None:
        """Never another transaction with this producer."""
        self.begin()

    def send(self, events: tuple[Event | Gone, ...], decision: Decision) -> None:
        broker, epoch = self.world.broker, self.leading
        for event in events:
            self.world.point(self, "event", event)
            broker.send(ID, epoch, "events", event.entity, event)
        for order in decision.orders:
            self.world.point(self, "order", order)
            key = (order.worker, order.job, order.pipeline, order.task)
            broker.send(ID, epoch, "orders", key, None if isinstance(order, Withdrawal) else order)
