"""What happens in a telling, kept as it happens, and written as lines that a person can read: when, who, what, why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from coordinator.draft import Gone
from events.records import (
    Ack,
    Checkpoint,
    CheckpointAcked,
    CheckpointCommitted,
    CheckpointFailed,
    Cleanup,
    Command,
    CommitCheckpoint,
    Deploy,
    Event,
    Leader,
    Order,
    Outcome,
    Pipeline,
    ReadyMark,
    RemoveStaging,
    Report,
    Savepoint,
    StopTask,
    Submit,
    Task,
    TriggerCheckpoint,
)
from tests.simulation.broker import Broker, Rotten
from workers import happenings as h


class Withdrawn(NamedTuple):
    worker: str
    job: str
    pipeline: int
    task: int


class Entry(NamedTuple):
    at: int
    who: str
    what: Any
    offset: int = -1  # of an event, on its topic


class Trace:
    """Follows the log, and is told what is not on it."""

    def __init__(self, broker: Broker, began: int) -> None:
        self.broker, self.began = broker, began
        self.events, self.orders = broker.partition("events"), broker.partition("orders")
        self.at_event = self.at_order = 0
        self.leaders: dict[int, str] = {}
        self.entries: list[Entry] = []

    def say(self, now: int, who: str, what: Any) -> None:
        self.follow(now)
        self.entries.append(Entry(now, who, what))

    def follow(self, now: int) -> None:
        found, self.at_event = self.events.read(self.at_event)
        for offset, key, value in found:
            event = value.was if isinstance(value, Rotten) else value
            if key == "cursor/0":
                continue
            if isinstance(event, Event) and isinstance(event.state, Leader):
                self.leaders[event.epoch] = event.state.coordinator
            who = self.leaders.get(event.epoch, "?")
            if event.epoch < max(self.leaders, default=0):  # behind the election of a newer reign
                self.entries.append(Entry(now, who, f"void, of epoch {event.epoch}: {self.line(event)}"))
            else:
                self.entries.append(Entry(now, who, event, offset))
        found, self.at_order = self.orders.read(self.at_order)
        for _, key, order in found:
            who = self.leaders.get(order.epoch, "?") if order else self.leaders.get(max(self.leaders, default=0), "?")
            self.entries.append(Entry(now, who, order or Withdrawn(*key)))

    def told_events(self) -> Iterator[Event]:
        return (entry.what for entry in self.entries if isinstance(entry.what, Event))

    def told_orders(self) -> Iterator[Order]:
        return (entry.what for entry in self.entries if isinstance(entry.what, Order))

    def text(self) -> str:
        lines: list[tuple[int, str, str]] = []
        for at, who, what, _ in self.entries:
            gone = what.entity if isinstance(what, Gone) else ""
            if gone and lines and lines[-1][2].startswith("deletes"):
                lines[-1] = (at, who, f"{lines[-1][2]}, {gone}")
            else:
                lines.append((at, who, self.line(what)))
        return "".join(f"{self.when(at)}  {who:<3}  {text}\n" for at, who, text in lines)

    def when(self, at: int) -> str:
        return f"{(at - self.began) / 1000:>7.3f}"

    def line(self, what: Any) -> str:
        if isinstance(what, str):
            return what
        if isinstance(what, Event):
            return self.event_line(what)
        if isinstance(what, Gone):
            return f"deletes {what.entity}"
        if isinstance(what, Order):
            return f"→ {what.worker}  {order_line(what)}"
        if isinstance(what, Withdrawn):
            return f"→ {what.worker}  nothing more is wanted of {named(what.job, what.pipeline, what.task)}"
        if isinstance(what, Report):
            return f"reports  {report_line(what)}"
        if isinstance(what, Command):
            return f"asks  {command_line(what)}"
        return effect_line(what)

    def event_line(self, event: Event) -> str:
        moved = f"{event.from_ or '·'} → {event.to}" if event.from_ != event.to else f"still {event.to}"
        parts = [f"{event.entity:<18} {event.transition}: {moved}"]
        if event.attempt:
            parts.append(f"attempt {event.attempt}")
        parts += [f"epoch {event.epoch}"] if isinstance(event.state, Leader) else state_words(event.state)
        if event.due_at:
            parts.append(f"due {self.when(event.due_at).strip()}")
        if reason := getattr(event.state, "reason", ""):
            parts.append(f"“{reason}”")
        return f"{', '.join(parts)}  [{cause(event)}]"


def cause(event: Event) -> str:
    why = event.cause
    said = {"INPUT": f"{why.topic}@{why.offset}", "TIMER": "timer", "ELECTION": "election"}.get(why.kind, why.note)
    return f"{said}, {why.note}" if why.kind == "INPUT" and why.note else said


def state_words(state: Any) -> list[str]:
    """What of an entity's state belongs in its line."""
    if isinstance(state, Task):
        return [f"on {state.worker}"] if state.worker else []
    if isinstance(state, Checkpoint):
        return [f"checkpoint {state.id} {state.purpose}"] + ([f"try {state.tries}"] if state.tries else [])
    if isinstance(state, Ack):
        return [f"checkpoint {state.checkpoint} at {state.position.decode()}"]
    if isinstance(state, ReadyMark):
        return [f"at {state.position.decode()}"]
    if isinstance(state, Pipeline):
        return [f"{state.failures} failed in a row"] if state.failures else []
    if isinstance(state, Cleanup):
        return [f"try {state.tries}"] if state.tries else []
    if isinstance(state, Outcome):
        return [state.action]
    if isinstance(state, Savepoint):
        return [f"pipeline {p.pipeline} at checkpoint {p.checkpoint}" for p in state.points]
    return []


def named(job: str, pipeline: int, task: int) -> str:
    return (
        f"{job}'s staging" if pipeline < 0 else f"{job}/{pipeline}'s commit" if task < 0 else f"{job}/{pipeline}/{task}"
    )


def order_line(order: Order) -> str:
    action = order.action
    task = f"{order.job}/{order.pipeline}/{order.task} attempt {order.attempt}"
    if isinstance(action, Deploy):
        return f"Deploy {task} {begins(action)}"
    if isinstance(action, TriggerCheckpoint):
        return f"TriggerCheckpoint {action.checkpoint} {action.purpose} of {task}"
    if isinstance(action, CommitCheckpoint):
        last = ", the last word" if action.conclusive else ""
        return f"CommitCheckpoint {action.checkpoint} of {order.job}/{order.pipeline}{last}"
    if isinstance(action, StopTask):
        return f"StopTask {task} “{action.reason}”"
    assert isinstance(action, RemoveStaging)
    return f"RemoveStaging of {order.job} incarnation {order.incarnation}"


def begins(deploy: Deploy) -> str:
    return (
        f"from checkpoint {deploy.checkpoint} at {deploy.position.decode()}"
        if deploy.checkpoint
        else "from the beginning"
    )


def report_line(report: Report) -> str:
    said = report.happening
    name = type(said).__name__
    of = named(report.job, report.pipeline, report.task)
    attempt = f" attempt {report.attempt}" if report.pipeline >= 0 and report.task >= 0 else ""
    if isinstance(said, CheckpointAcked):
        rows = sum(piece.rows for piece in said.staged)
        return f"{name} {said.checkpoint} of {of}{attempt} at {said.position.decode()}, {rows} rows staged"
    if isinstance(said, CheckpointCommitted):
        return f"{name} {said.checkpoint} of {of}, {said.rows} rows"
    number = f" {said.checkpoint}" if isinstance(said, CheckpointFailed) else ""
    lasting = " for good" if getattr(said, "lasting", False) else ""
    reason = getattr(said, "reason", "")
    return f"{name}{number} of {of}{attempt}{lasting}" + (f" “{reason}”" if reason else "")


def command_line(command: Command) -> str:
    if isinstance(command.action, Submit):
        return f"Submit {command.job}, as {command.id}"
    fields = msgspec.structs.asdict(command.action)
    said = ", ".join(f"{name} {value}" for name, value in fields.items() if value and isinstance(value, str | bool))
    return f"{type(command.action).__name__} {command.job}, as {command.id}{f' ({said})' if said else ''}"


def effect_line(effect: Any) -> str:
    if isinstance(effect, h.StartTask):
        return f"starts {identity(effect)} {begins(effect.deploy)}"
    if isinstance(effect, h.StopTask):
        return f"stops {identity(effect)} “{effect.reason}”"
    if isinstance(effect, h.StageCheckpoint):
        return f"stages checkpoint {effect.checkpoint} of {identity(effect)}"
    if isinstance(effect, h.Publish):
        return f"publishes checkpoint {effect.checkpoint} of {effect.job}/{effect.pipeline}"
    assert isinstance(effect, h.RemoveStaging)
    return f"removes staging of {effect.job} incarnation {effect.incarnation}"


def identity(effect: h.StartTask | h.StopTask | h.StageCheckpoint) -> str:
    who = effect.who
    return f"{who.job}/{who.pipeline}/{who.task} attempt {who.attempt}"
