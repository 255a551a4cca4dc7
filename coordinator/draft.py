"""A decision in the making: events are folded as they are decided, so that the next step sees them, and taken back at
the end, so that deciding changes nothing.

`Decision` is what comes out: what must be durable, in one transaction, before anybody hears of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from coordinator.lifecycle import reach
from coordinator.state import State, entity_of, fold
from coordinator.words import short
from events.keys import Entity, named
from events.records import Cause, Cursor, Event, EventState, Order, OrderAction, Position


@dataclass(frozen=True, slots=True)
class Gone:
    """An entity that is deleted: a tombstone with the leader's epoch and the owner's incarnation."""

    entity: str
    epoch: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """An order that stands no longer: a tombstone on its key."""

    worker: str
    job: str
    pipeline: int
    task: int


class Decision(NamedTuple):
    """What an input leads to. All of it is written in one transaction that ends with the cursor; nothing of it is
    acted on, answered or shown before that transaction is committed.

    events: transitions, in the order in which they are folded. orders: what workers are told; the newest for a task
    counts. notes: sentences for the log file; they say what was ignored, and why."""

    events: tuple[Event | Gone, ...] = ()
    orders: tuple[Order | Withdrawal, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.events or self.orders)


class Draft:
    """Collects a decision over a state. Use within `deciding`."""

    def __init__(self, state: State, now: int, cause: Cause) -> None:
        self.state, self.now, self.cause = state, now, cause
        self.events: list[Event | Gone] = []
        self.orders: list[Order | Withdrawal] = []
        self.notes: list[str] = []
        self.touched: dict[str, None] = {}
        self._undo: list[tuple[Entity, Event | None]] = []
        self._before = (state.epoch, state.sequence, state.incarnations, state.logic)

    def emit(
        self,
        entity: Entity,
        transition: str,
        state: EventState,
        *,
        incarnation: int,
        attempt: int = 0,
        due_at: int = 0,
        cause: Cause | None = None,
    ) -> Event:
        """Decide a transition. Raises IllegalTransition when the tables do not have it."""
        before = self.state.get(entity)
        was = before.to if before else ""
        event = Event(
            epoch=self.state.epoch,
            logic=self.state.writes,
            incarnation=incarnation,
            attempt=attempt,
            due_at=due_at,
            sequence=self.state.sequence + 1,
            time=self.now,
            entity=entity.text,
            transition=transition,
            from_=was,
            to=reach(entity.kind, transition, was),
            job=entity.job,
            cause=cause or self.cause,
            state=state,
        )
        self._fold(entity, event)
        self.events.append(event)
        return event

    def delete(self, entity: Entity) -> None:
        known = self.state.get(entity)
        if known is not None:
            self.events.append(Gone(entity.text, self.state.epoch, known.incarnation))
            self._fold(entity, None)

    def forget_unreadable(self, entity: Entity, incarnation: int) -> None:
        """Delete what stands on the log and can't be read: the state does not know it."""
        self.events.append(Gone(entity.text, self.state.epoch, incarnation))
        self._fold(entity, None)

    def order(self, of: Event, pipeline: int, task: int, worker: str, action: OrderAction) -> None:
        """Tell a worker what to do for the task, checkpoint or cleanup that the event is of."""
        self.orders.append(
            Order(
                epoch=self.state.epoch,
                incarnation=of.incarnation,
                job=of.job,
                pipeline=pipeline,
                task=task,
                attempt=of.attempt,
                worker=worker,
                time=self.now,
                action=action,
            )
        )

    def withdraw(self, worker: str, job: str, pipeline: int, task: int) -> None:
        self.orders.append(Withdrawal(worker, job, pipeline, task))

    def note(self, text: str) -> None:
        self.notes.append(short(text))

    def decision(self) -> Decision:
        """What was decided. The state is as it was before."""
        self.take_back()
        return self.kept()

    def kept(self) -> Decision:
        """What was decided. The state has it already."""
        return Decision(tuple(self.events), tuple(self.orders), tuple(self.notes))

    def take_back(self) -> None:
        """The state as it was before."""
        for entity, before in reversed(self._undo):
            fold(self.state, entity, before)
        self.state.epoch, self.state.sequence, self.state.incarnations, self.state.logic = self._before
        self._undo.clear()

    def _fold(self, entity: Entity, event: Event | None) -> None:
        self._undo.append((entity, fold(self.state, entity, event)))
        if entity.job and entity.kind != "summary":
            self.touched[entity.job] = None


def take_over(state: State, decision: Decision) -> None:
    """Fold a decision that is on the log."""
    for event in decision.events:
        fold(state, entity_of(event.entity), event if isinstance(event, Event) else None)


def ended(state: State, now: int, positions: tuple[Position, ...]) -> Draft:
    """The cursor record that ends every transaction, and the state with it."""
    draft = Draft(state, now, Cause(kind="STATE", note="end of transaction"))
    cursor = Cursor(positions=positions, incarnations=state.incarnations)
    draft.emit(named("cursor", state.shard), "advanced", cursor, incarnation=0)
    return draft


def boundary(state: State, now: int, positions: tuple[Position, ...]) -> Event:
    """The cursor record that ends every transaction."""
    (event,) = ended(state, now, positions).decision().events
    assert isinstance(event, Event)
    return event
