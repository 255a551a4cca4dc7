"""A coordinator process of the simulation: the production core with a shell that reads, writes transactions, leads and
follows. Its memory is gone with it; what it knows it reads from the log again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinator.core import Input, Sweep, Timer, activation, decide, note_heartbeat
from coordinator.draft import Decision, Withdrawal, boundary, take_over
from coordinator.state import State, entity_of, fold
from events.records import Cause, Cursor, Event, Leader, Position
from tests.simulation.broker import FencedError, NoAnswer

if TYPE_CHECKING:
    from tests.simulation.world import World

DETECTION_MS = 500
LEASE_MS = 3000
INPUTS = ("commands", "reports")
ID = "shard-0"


class Coordinator:
    def __init__(self, world: World, name: str, rank: int) -> None:
        self.world, self.name, self.rank = world, name, rank
        self.alive = True
        self.asleep_until = 0
        self.start()

    def start(self) -> None:
        self.state = State(0)
        self.position = 0  # on events
        self.waiting: list[tuple[int, Any, Any]] = []
        self.heartbeats = 0
        self.leading = 0  # the producer's epoch while it believes that it leads
        self.swept = 0

    def step(self) -> None:
        if self.leading:
            self.lead()
        else:
            self.follow()
            if self.world.now - self.world.beaten > DETECTION_MS * (1 + self.rank):
                self.take_over()

    def follow(self) -> None:
        """Whole transactions only."""
        found, self.position = self.world.broker.partition("events").read(self.position)
        self.waiting += found
        last = max((i for i, (_, key, _) in enumerate(self.waiting) if key == "cursor/0"), default=-1)
        for _, key, value in self.waiting[: last + 1]:
            fold(self.state, entity_of(key), value)
        del self.waiting[: last + 1]

    def take_over(self) -> None:
        """Fence, then read to the end, then write the election."""
        broker = self.world.broker
        self.world.point(self, "fence")
        epoch = broker.init(ID)
        self.start()
        self.follow()
        for _, key, value in self.waiting:  # compaction may have taken the cursors of what is left before the end
            fold(self.state, entity_of(key), value)
        self.waiting.clear()
        self.leading = epoch
        self.state.led_since = self.world.now
        self.world.beaten = self.world.now
        self.world.count("takeovers")
        leader = Leader(coordinator=self.name, reason="the leader before fell silent")
        decision = activation(self.state, self.state.epoch + 1, self.world.now, leader)
        self.state.epoch += 1
        self.write(decision, self.positions())

    def positions(self) -> dict[str, int]:
        cursor = self.state.cursor.state if self.state.cursor else None
        known = {p.topic: p.offset for p in cursor.positions} if isinstance(cursor, Cursor) else {}
        return {topic: known.get(topic, 0) for topic in INPUTS}

    def lead(self) -> None:
        world = self.world
        world.beaten = world.now
        before = self.positions()
        positions = dict(before)
        decided: list[Decision] = []
        inputs: list[tuple[Input, Cause]] = []
        for topic in INPUTS:
            found, positions[topic] = world.broker.partition(topic).read(
                positions[topic], limit=world.rng.randint(1, 8)
            )
            inputs += [
                (value, Cause(kind="INPUT", topic=topic, partition=0, offset=offset)) for offset, _, value in found
            ]
        beats, self.heartbeats = world.broker.partition("workers").read(self.heartbeats)
        for _, _, said in beats:
            note_heartbeat(self.state, said, world.now)
            inputs.append((said, Cause(kind="DETECTOR", note="heartbeat")))
        inputs += [(Timer(entity, due), Cause(kind="TIMER", note=entity)) for due, entity in self.state.due(world.now)]
        if world.now - self.swept > 1000:
            self.swept = world.now
            inputs.append((Sweep(LEASE_MS), Cause(kind="STATE", note="sweep")))
        for given, cause in inputs:
            decision = decide(self.state, given, world.now, cause)
            take_over(self.state, decision)  # the next input of the group sees it
            decided.append(decision)
        if positions != before or any(not d.is_empty for d in decided):
            events = tuple(event for d in decided for event in d.events)
            orders = tuple(order for d in decided for order in d.orders)
            self.write(Decision(events, orders), positions, folded=True)

    def write(self, decision: Decision, positions: dict[str, int], *, folded: bool = False) -> None:
        """One transaction: events, orders, cursor. On any doubt about its outcome: start over from the log."""
        if not folded:
            take_over(self.state, decision)
        kept = tuple(Position(topic=t, partition=0, offset=o) for t, o in positions.items())
        cursor = boundary(self.state, self.world.now, kept)
        fold(self.state, entity_of(cursor.entity), cursor)
        broker, epoch = self.world.broker, self.leading
        try:
            for event in (*decision.events, cursor):
                self.world.point(self, "event")
                broker.send(ID, epoch, "events", event.entity, event if isinstance(event, Event) else None)
            for order in decision.orders:
                self.world.point(self, "order")
                withdrawn = isinstance(order, Withdrawal)
                key = (order.worker, order.job, order.pipeline, order.task)
                broker.send(ID, epoch, "orders", key, None if withdrawn else order)
            self.world.commit(self, ID, epoch)
        except (FencedError, NoAnswer):
            self.start()  # the log tells
            return
        self.world.written(decision, cursor)
