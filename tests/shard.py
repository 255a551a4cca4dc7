"""A shard in the hand: the coordinator's core with a log, and workers that do what a test says. Time is the test's."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from coordinator.core import Input, Sweep, Timer, activation, decide, note_heartbeat
from coordinator.draft import Decision, Gone, Withdrawal, boundary, take_over
from coordinator.state import State, entity_of, fold
from events.records import (
    Cause,
    Command,
    CommandAction,
    Event,
    Heartbeat,
    Leader,
    Order,
    Report,
    ReportHappening,
    Submit,
)

LEASE_MS = 5000


def specification(*parallelism: int, **env: Any) -> str:
    """A job with one pipeline whose sources have these parallelisms."""
    sources = [{"name": f"in{i}", "kind": "generator", "parallelism": n} for i, n in enumerate(parallelism or (1,))]
    sink = {"name": "out", "kind": "files", "from": [s["name"] for s in sources]}
    return json.dumps({"env": env, "source": sources, "sink": [sink]})


@dataclass
class Shard:
    now: int = 1_000_000
    state: State = field(default_factory=lambda: State(0))
    log: list[Event | Gone] = field(default_factory=list)
    orders: list[Order | Withdrawal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    offset: int = 0

    def __post_init__(self) -> None:
        self.elect()

    def elect(self) -> None:
        """A new leader: memory gone, the log folded again, soft state empty."""
        again = State(0)
        for event in self.log:
            fold(again, entity_of(event.entity), event if isinstance(event, Event) else None)
        self.state = again
        self.state.led_since, self.state.lease_ms = self.now, LEASE_MS
        leader = Leader(coordinator="c", reason="test")
        self.write(activation(self.state, self.state.epoch + 1, self.now, leader).decision())

    def write(self, decision: Decision) -> Decision:
        take_over(self.state, decision)
        self.log += decision.events
        self.orders += decision.orders
        self.notes += decision.notes
        if not decision.is_empty:
            end = boundary(self.state, self.now, ())
            fold(self.state, entity_of(end.entity), end)
            self.log.append(end)
        return decision

    def give(self, given: Input) -> Decision:
        self.offset += 1
        cause = Cause(kind="INPUT", topic="test", partition=0, offset=self.offset)
        return self.write(decide(self.state, given, self.now, cause))

    def command(self, job: str, action: CommandAction, command_id: str | None = None, by: str = "me") -> Event:
        command = Command(id=command_id or f"cmd-{self.offset}", job=job, by=by, action=action)
        self.give(command)
        return self.state.jobs[job].commands[command.id]

    def submit(self, job: str = "a", *parallelism: int, **env: Any) -> Event:
        return self.command(job, Submit(specification=specification(*parallelism, **env)))

    def worker(self, name: str, slots: int = 4, **fields: Any) -> None:
        said = Heartbeat(worker=name, instance=f"{name}-1", time=self.now, slots=slots, **fields)
        note_heartbeat(self.state, said, self.now)
        self.give(said)

    def report(self, job: str, task: int, happening: ReportHappening, **given: Any) -> Decision:
        view = self.state.jobs.get(job)
        known = view.pipelines[0].tasks.get(task) if view and view.pipelines else None
        fields: dict[str, Any] = {
            "incarnation": view.event.incarnation if view and view.event else 1,
            "attempt": known.attempt if known else 0,
            "worker": known.state.worker if known else "w1",  # type: ignore[union-attr]
            "pipeline": 0,
        }
        return self.give(Report(job=job, task=task, time=self.now, happening=happening, **(fields | given)))

    def wait(self, ms: int) -> None:
        """Let time pass; every deadline fires when it is due."""
        end = self.now + ms
        while (due := self.state.next_due()) is not None and due <= end:
            self.now = max(self.now, due)
            for due_at, entity in self.state.due(self.now):
                self.give(Timer(entity, due_at))
        self.now = end

    def sweep(self) -> Decision:
        return self.give(Sweep(tuple(self.state.jobs)))

    def job(self, name: str = "a") -> str:
        view = self.state.jobs.get(name)
        return view.event.to if view and view.event else ""

    def tasks(self, name: str = "a") -> list[str]:
        return [task.to for _, task in sorted(self.state.jobs[name].pipelines[0].tasks.items())]

    def new_orders(self) -> list[Order | Withdrawal]:
        taken, self.orders = self.orders, []
        return taken

    def actions(self) -> list[str]:
        return [type(o.action).__name__ if isinstance(o, Order) else "withdrawn" for o in self.new_orders()]
