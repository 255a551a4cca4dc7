"""A worker's core in the hand, for its tests: orders and happenings in a line each, and what they led to."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from events import records as r
from workers import happenings as h
from workers.core import decide
from workers.happenings import Outcome, Settings
from workers.ledger import Held, Identity, Ledger, Publication, Put, Removal, TaskKey, apply

SETTINGS = Settings(
    worker="w1", instance="i1", slots=2, lease_ms=1000, stall_ms=500, stop_patience_ms=300, repeat_ms=100,
    repeat_cap_ms=400,
)  # fmt: skip
DEPLOY = r.Deploy(specification="{}", next_checkpoint=1)
KEY = TaskKey("job", 0, 0)


def who(attempt: int = 1, task: int = 0, incarnation: int = 1, job: str = "job") -> Identity:
    return Identity(job, incarnation, 0, task, attempt)


def order(action: Any, at: Identity | None = None, epoch: int = 1, worker: str = "w1") -> r.Order:
    at = at or who()
    return r.Order(
        epoch=epoch, incarnation=at.incarnation, job=at.job, pipeline=at.pipeline, task=at.task, attempt=at.attempt,
        worker=worker, time=0, action=action,
    )  # fmt: skip


def trigger(checkpoint: int, completed: int = 0, purpose: str = "PERIODIC", at: Identity | None = None) -> r.Order:
    return order(r.TriggerCheckpoint(checkpoint=checkpoint, completed=completed, purpose=purpose), at)


def commit(checkpoint: int, at: Identity | None = None, epoch: int = 1) -> r.Order:
    action = r.CommitCheckpoint(checkpoint=checkpoint, specification="{}", staged=(piece("a"),))
    return order(action, at, epoch)


def addressed(it: h.Input, ledger: Ledger, settings: Settings) -> h.Input:
    """As a leader addresses it that has just heard the worker, unless the test says otherwise."""
    if not isinstance(it, r.Order) or not isinstance(it.action, r.CommitCheckpoint) or it.action.instance:
        return it
    return replace(it, action=replace(it.action, instance=settings.instance, lease=ledger.lease))


def piece(name: str) -> r.Staged:
    return r.Staged(name=name, rows=1, size=10)


def staged(checkpoint: int, *names: str, at: Identity | None = None) -> h.Staged:
    return h.Staged(at or who(), checkpoint, b"p%d" % checkpoint, tuple(map(piece, names)), 10 * checkpoint, 100)


def published(checkpoint: int, rows: int = 5) -> h.Published:
    return h.Published("job", 1, 0, checkpoint, rows)


REMOVE = r.RemoveStaging(specification="{}")
STOP = r.StopTask(reason="cancelled")
WITHDRAWN = h.Withdrawn("job", 0, 0)


class Bench:
    """A worker in the hand: carries changes out, keeps what was said and done."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.ledger, self.now, self.settings = Ledger(), 1000, settings
        self.effects: list[h.Effect] = []
        self.reports: list[r.Report] = []
        self.give(h.Restarted())

    def give(self, *inputs: h.Input) -> Outcome:
        """Decides one after the other; returns the last outcome."""
        for it in inputs:
            outcome = decide(self.ledger, addressed(it, self.ledger, self.settings), self.now, self.settings)
            apply(self.ledger, outcome.changes)
            self.effects += outcome.effects
            self.reports += outcome.reports
        return outcome

    def running(self, *attempts: Identity) -> Bench:
        for at in attempts or (who(),):
            self.give(order(DEPLOY, at), h.Started(at))
        return self

    def later(self, ms: int, *, reached: bool = True) -> Outcome:
        self.now += ms
        if reached:
            self.give(h.Reached())
        return self.give(h.Tick())

    def held(self, key: TaskKey = KEY) -> Held:
        return self.ledger.tasks[key]


def said(outcome: Outcome) -> list[Any]:
    return [report.happening for report in outcome.reports]


def stored(ledger: Ledger) -> Ledger:
    """The ledger as the next process finds it: hard state only, through bytes."""
    entries = [*ledger.tasks.values(), *ledger.publications.values(), *ledger.removals.values()]
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(entries), type=list[Held | Publication | Removal])
    assert read == entries
    again = Ledger()
    apply(again, [Put(entry) for entry in read])
    return again


def empty(ledger: Ledger) -> bool:
    return ledger == Ledger(reached_at=ledger.reached_at, lease=ledger.lease)
