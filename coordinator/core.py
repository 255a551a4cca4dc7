"""The coordinator's core: (state, input, now) → what is to be written. It changes nothing, touches nothing, and gives
the same answer wherever it runs: in production, in the simulation and in forensic replay.

Inputs are commands, reports and heartbeats from the topics, timers that came due, and the sweep.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from coordinator.checkpoint import order_commit, trigger
from coordinator.commands import obey, refuse
from coordinator.deploy import order_deploy, place, place_waiting, task_of
from coordinator.draft import Decision, Draft
from coordinator.ending import begin_cleanup, expire_summary
from coordinator.failure import VERDICT_MS, fail_task, find_lost, judge_workers
from coordinator.lifecycle import TERMINAL_JOB
from coordinator.quarantine import Impossible, Unreadable, quarantine, set_aside
from coordinator.reports import abandon, hear, stop_strays
from coordinator.settle import settle
from coordinator.state import Heard, State, entity_of
from coordinator.words import is_name
from events.keys import Entity, named
from events.records import Cause, Command, Event, Heartbeat, Leader, Report, Worker

SETTLED_AT_ONCE = 1000


class Timer(NamedTuple):
    """A deadline that has come: what the entity said when it was written."""

    entity: str
    due_at: int


class Sweep(NamedTuple):
    """Now and then: judge the workers, and take every step of these jobs that was not taken."""

    jobs: tuple[str, ...]


class Undoable(NamedTuple):
    """A command whose decision can't be made or can't be written."""

    command: Command
    reason: str


Input = Command | Report | Heartbeat | Timer | Sweep | Unreadable | Impossible | Undoable


def note_heartbeat(state: State, heartbeat: Heartbeat, now: int) -> None:
    """Soft state: what a worker said. Not on the log. One without a usable name can't be given orders."""
    if is_name(heartbeat.worker):
        state.heard[heartbeat.worker] = Heard(heartbeat, now)


def note_silence(state: State, now: int) -> None:
    """Soft state: a silent worker that nothing is wanted of is forgotten. On one that has tasks, `Sweep` judges."""
    for worker in [
        w for w, heard in state.heard.items() if now - heard.at > state.lease_ms and w not in state.tasks_on
    ]:
        del state.heard[worker]


def decide(state: State, given: Input, now: int, cause: Cause) -> Decision:
    """What an input leads to, and all that the state then calls for."""
    return drafted(state, given, now, cause).decision()


def drafted(state: State, given: Input, now: int, cause: Cause) -> Draft:
    """The same, with the state as it is after it: for a leader, who decides on the next input before this decision is
    on the log, and takes back what does not get there (`Draft.take_back`)."""
    draft = Draft(state, now, cause)
    try:
        if isinstance(given, Command):
            obey(draft, given)
        elif isinstance(given, Report):
            hear(draft, given)
        elif isinstance(given, Heartbeat):
            heartbeat(draft, given)
        elif isinstance(given, Timer):
            fire(draft, given)
        elif isinstance(given, Unreadable):
            set_aside(draft, given)
        elif isinstance(given, Impossible):
            quarantine(draft, given)
        elif isinstance(given, Undoable):
            refuse(draft, given.command, given.reason)
        else:
            jobs = [name for name in given.jobs if name in state.jobs]
            judge_workers(draft, jobs)
            settle(draft, jobs)
        settle(draft)
    except BaseException:
        draft.take_back()  # whatever was wrong
        raise
    return draft


def activation(state: State, epoch: int, now: int, leader: Leader, unreadable: Sequence[Unreadable] = ()) -> Draft:
    """What a new leader writes first: its election, what becomes of the jobs whose records it could not read, and the
    steps that its predecessor left undone. As a rule there are none, for every input is settled with all that it calls
    for; so where there are many jobs, the first ones are looked at here and the sweep looks at the others."""
    draft = Draft(state, now, Cause(kind="ELECTION", note=leader.reason))
    try:
        state.epoch = epoch
        draft.emit(named("leader", state.shard), "elected", leader, incarnation=0)
        for each in unreadable:
            set_aside(draft, each)
        settle(draft, list(islice(state.jobs, SETTLED_AT_ONCE)))
    except BaseException:
        draft.take_back()
        raise
    return draft


def resignation(state: State, now: int, leader: Leader) -> Draft:
    """What a leader writes last when it goes of its own accord: whoever reads it need not wait for silence."""
    draft = Draft(state, now, Cause(kind="ELECTION", note=leader.reason))
    draft.emit(named("leader", state.shard), "resigned", leader, incarnation=0)
    return draft


def may_lead(state: State) -> bool:
    """Older logic does not lead over what newer logic has written: it would not understand it."""
    return state.logic <= state.writes


def heartbeat(draft: Draft, said: Heartbeat) -> None:
    """A worker that was given up is back; what it lost is started anew, what it should not run is stopped; and there
    may be room."""
    if not is_name(said.worker):
        draft.note(f"a heartbeat of a worker without a usable name: {said.worker!r}")
        return
    verdict = draft.state.workers.get(said.worker)
    if verdict is not None and verdict.to == "LOST":
        back = Worker(instance=said.instance, heard_at=draft.now, reason="heard again")
        due_at = draft.now + VERDICT_MS
        draft.emit(named("worker", said.worker), "returned", back, incarnation=0, due_at=due_at)
    find_lost(draft, said)
    stop_strays(draft, said)
    place_waiting(draft)


def fire(draft: Draft, timer: Timer) -> None:
    """A deadline. It is about the entity as it was when it was set: one that has moved on is left alone."""
    entity = entity_of(timer.entity)
    event = draft.state.get(entity)
    if event is None or event.due_at != timer.due_at:
        draft.note(f"a timer of {timer.entity} that no longer counts")
        return
    draft.cause = Cause(kind="TIMER", note=timer.entity)
    if entity.kind in ("command", "worker"):
        draft.delete(entity)
        return
    if entity.kind == "summary":
        expire_summary(draft, event)
        return
    job = draft.state.jobs[entity.job]
    ended = job.event is None or job.event.to in TERMINAL_JOB
    if entity.kind == "cleanup":
        begin_cleanup(draft, event)
    elif entity.kind == "checkpoint":
        order_commit(draft, job, int(entity.parts[1]))
    elif ended:
        draft.note(f"a timer of {timer.entity}, which has ended")
    elif entity.kind == "pipeline":
        trigger(draft, job, int(entity.parts[1]), "PERIODIC")
    elif entity.kind == "pending":
        abandon(draft, job, int(entity.parts[1]), "it was not acknowledged in time")
    elif entity.kind == "task":
        task_due(draft, entity, event)


def task_due(draft: Draft, entity: Entity, event: Event) -> None:
    """A back-off is over, or a deployment was not answered in time: asking again is harmless, and if the worker is not
    there, the attempt is over."""
    key = (str(entity.parts[0]), int(entity.parts[1]), int(entity.parts[2]))
    job = draft.state.jobs[key[0]]
    known = task_of(event)
    if event.to == "CREATED":
        draft.emit(entity, "waiting", replace(known, reason=""), incarnation=event.incarnation, attempt=event.attempt)
        place(draft, key)
    elif event.to == "DEPLOYING" and known.worker in draft.state.heard:
        due_at = draft.now + job.plan.env.deploy_timeout_ms
        again = draft.emit(
            entity, "repeated", known, incarnation=event.incarnation, attempt=event.attempt, due_at=due_at
        )
        order_deploy(draft, job, key[1], key[2], again)
    elif event.to == "DEPLOYING":
        fail_task(draft, key, f"worker {known.worker} did not answer", stop=True)
