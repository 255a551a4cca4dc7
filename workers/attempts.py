"""The life of a task's attempt on its worker: deployed, running, asked for checkpoints, stopped, ended, succeeded.

STARTING → RUNNING → READY, from each of them → STOPPING → ENDED or straight → ENDED. A task has one attempt at a time;
a higher one fences it and waits until it has stopped. Called by workers/core.py, which has already turned away orders
of an older reign. Pure: it never changes the ledger it reads, and never waits.
"""

from __future__ import annotations

from msgspec.structs import replace

from events import records
from workers import happenings as h
from workers.happenings import Outcome, Settings, StageCheckpoint, StartTask, StopTask, ignored, say
from workers.ledger import (
    Change,
    Drop,
    Held,
    Identity,
    Ledger,
    Phase,
    Pulse,
    Put,
    SetPulse,
    Successor,
    TaskKey,
    Terminal,
)

ENDS = (h.Crashed, h.Stopped)  # asked for a tuple, Python answers faster than for a union
MOST_DOUBLINGS = 20
CHECKPOINTING = (Phase.RUNNING, Phase.READY)


def identity_of(order: records.Order) -> Identity:
    return Identity(order.job, order.incarnation, order.pipeline, order.task, order.attempt)


def key_of(order: records.Order) -> TaskKey:
    return TaskKey(order.job, order.pipeline, order.task)


def changed(old: Held, new: Held) -> tuple[Change, ...]:
    return () if new == old else (Put(new),)


def following(held: Held, order: records.Order) -> Held:
    """The attempt, knowing the reign whose order it follows."""
    return held if order.epoch <= held.epoch else replace(held, epoch=order.epoch)


# Orders --------------------------------------------------------------------------------------------------------------


def deploy(ledger: Ledger, order: records.Order, action: records.Deploy, now_ms: int, settings: Settings) -> Outcome:
    who, held = identity_of(order), ledger.tasks.get(key_of(order))
    version = (order.incarnation, order.attempt)
    if held is not None and version == held.version:
        return _deploy_again(held, order, now_ms, settings)
    if held is not None and version < held.version:
        return refuse(who, f"stale: attempt {held.who.attempt} of {_named(held.who)} is known here", now_ms, settings)
    if held is not None and held.active:
        return _succeed(held, Successor(who, order.epoch, action), now_ms, settings)
    if settings.draining:
        return refuse(who, "no room: the worker is draining", now_ms, settings)
    if ledger.active >= settings.slots:
        return refuse(who, f"no room: {ledger.active} of {settings.slots} slots are taken", now_ms, settings)
    return _start(who, order.epoch, action, now_ms)


def refuse(who: Identity, reason: str, now_ms: int, settings: Settings) -> Outcome:
    return Outcome(reports=(say(who, records.TaskRefused(reason=reason), now_ms, settings),), ignored=reason)


def _deploy_again(held: Held, order: records.Order, now_ms: int, settings: Settings) -> Outcome:
    """The answer to a deploy that has been followed. It says what is so; it neither touches the task nor its pulse,
    so that a stall stays a stall."""
    new = following(held, order)
    answers: list[records.ReportHappening] = []
    if held.phase in CHECKPOINTING:
        answers.append(records.TaskRunning(started_at=held.started_at))
    elif held.phase is Phase.STOPPING:
        new = replace(new, withdrawn=False)  # somebody asks for it again: its end has to be told
    if held.report is not None:
        answers.append(held.report)
    reports = tuple(say(held.who, answer, now_ms, settings) for answer in answers)
    # Starting or stopping: the answer comes with Started or Stopped.
    return Outcome(reports=reports, changes=changed(held, new), ignored="" if reports else f"it is {held.phase}")


def _start(who: Identity, epoch: int, action: records.Deploy, now_ms: int) -> Outcome:
    held = Held(who=who, epoch=epoch, phase=Phase.STARTING, lowest=action.next_checkpoint)
    return Outcome(
        effects=(StartTask(who, action),),
        changes=(Put(held), SetPulse(held.key, Pulse(progressed_at=now_ms))),
    )


def _succeed(held: Held, coming: Successor, now_ms: int, settings: Settings) -> Outcome:
    """An order for a higher attempt has come while a lower one is active: fence and stop that first."""
    waiting, deployed = held.successor, isinstance(coming.fate, records.Deploy)
    if waiting is not None and _version(coming.who) < _version(waiting.who):
        stale = f"stale: attempt {waiting.who.attempt} of {_named(waiting.who)} waits to start"
        return refuse(coming.who, stale, now_ms, settings) if deployed else ignored(stale)
    if waiting is not None and waiting.who == coming.who and (deployed or isinstance(waiting.fate, Terminal)):
        # Nothing new, but for the reign. Its answer comes when the attempt before it has stopped.
        coming = replace(waiting, epoch=max(waiting.epoch, coming.epoch))
    new = replace(held, successor=coming, withdrawn=False)
    return stop(new, f"fenced by attempt {coming.who.attempt} of {_named(coming.who)}", now_ms, settings)


def trigger(
    ledger: Ledger, order: records.Order, action: records.TriggerCheckpoint, now_ms: int, settings: Settings
) -> Outcome:
    held = ledger.tasks.get(key_of(order))
    if held is not None and held.successor is not None and held.successor.who == identity_of(order):
        return ignored("no checkpoint before it has started")
    if held is None or (order.incarnation, order.attempt) > held.version:
        unknown = records.TaskFailed(reason="this worker has no such attempt: its deploy order never came")
        return _not_here(held, order, unknown, now_ms, settings)
    if (order.incarnation, order.attempt) < held.version:
        return ignored("stale: a checkpoint of an older attempt")
    if isinstance(held.report, Terminal):
        return Outcome(reports=(say(held.who, held.report, now_ms, settings),))
    if held.phase not in CHECKPOINTING:
        return ignored(f"no checkpoint while it is {held.phase}")
    if action.checkpoint < held.lowest:
        return ignored(f"stale: checkpoint {action.checkpoint} is over, {held.lowest} is the lowest that may come")
    # Only when every task is known to be ready does a final checkpoint come.
    settled = held.settled or (action.purpose == "FINAL" and held.report is not None)
    new = replace(following(held, order), settled=settled)
    if action.checkpoint == held.staging:
        return Outcome(changes=changed(held, new))
    if held.acked is not None and action.checkpoint == held.acked.checkpoint:
        return Outcome(reports=(say(held.who, _ack(held, held.acked), now_ms, settings),), changes=changed(held, new))
    pieces = tuple(piece for piece in held.pieces if piece[0] > action.completed)
    new = replace(new, lowest=action.checkpoint, staging=action.checkpoint, acked=None, pieces=pieces)
    return Outcome(effects=(StageCheckpoint(held.who, action.checkpoint),), changes=(Put(new),))


def stop_ordered(
    ledger: Ledger, order: records.Order, action: records.StopTask, now_ms: int, settings: Settings
) -> Outcome:
    held = ledger.tasks.get(key_of(order))
    if held is None or (order.incarnation, order.attempt) > held.version:
        never = records.TaskStopped(reason=action.reason or "it never ran here")
        return _not_here(held, order, never, now_ms, settings)
    if (order.incarnation, order.attempt) < held.version:
        return ignored("stale: a stop of an older attempt")
    if isinstance(held.report, Terminal):
        return Outcome(reports=(say(held.who, held.report, now_ms, settings),))
    return stop(following(held, order), action.reason or "ordered", now_ms, settings)


def _not_here(held: Held | None, order: records.Order, end: Terminal, now_ms: int, settings: Settings) -> Outcome:
    """An order for an attempt that never came to this worker (compaction may have taken its deploy order, or the ledger
    is new): its end is kept and reported like any other, so that nobody waits for it for ever."""
    who = identity_of(order)
    if held is not None and held.active:
        return _succeed(held, Successor(who, order.epoch, end), now_ms, settings)
    return _keep(who, order.epoch, end, now_ms, settings)


# What ends an attempt ------------------------------------------------------------------------------------------------


def stop(held: Held, reason: str, now_ms: int, settings: Settings) -> Outcome:
    """Tells an active attempt to stop; one that is already stopping is not told again and gets no more time."""
    if held.phase is Phase.STOPPING:
        return Outcome(changes=(Put(held),))
    new = replace(
        held, phase=Phase.STOPPING, why=reason, stop_by=now_ms + settings.stop_patience_ms, staging=0, report=None
    )
    return Outcome(effects=(StopTask(held.who, reason),), changes=(Put(new),))


def end(held: Held, terminal: Terminal, now_ms: int, settings: Settings) -> Outcome:
    """An active attempt is over."""
    if held.withdrawn:
        return Outcome(changes=(Drop(held.key),))
    if held.successor is None:
        return _keep(held.who, held.epoch, terminal, now_ms, settings)
    # A higher attempt settles the report of this one: said once for those who look on, and kept no longer.
    last = say(held.who, terminal, now_ms, settings)
    who, epoch, fate = held.successor.who, held.successor.epoch, held.successor.fate
    then = (
        _start(who, epoch, fate, now_ms)
        if isinstance(fate, records.Deploy)
        else _keep(who, epoch, fate, now_ms, settings)
    )
    return Outcome(then.effects, (last, *then.reports), then.changes)


def abandon(held: Held, now_ms: int, settings: Settings) -> Outcome:
    """It has not stopped in time. Its staging is its own and nothing of it will be published, so waiting for it
    protects nothing; its slot is free although its thread may still hang."""
    late = f"{held.why}; it did not stop within {settings.stop_patience_ms} ms and is given up"
    return end(held, records.TaskStopped(reason=late), now_ms, settings)


def _keep(who: Identity, epoch: int, terminal: Terminal, now_ms: int, settings: Settings) -> Outcome:
    held = Held(who=who, epoch=epoch, phase=Phase.ENDED, report=terminal)
    pulse = Pulse(repeat_at=now_ms + settings.repeat_ms)
    return Outcome(reports=(say(who, terminal, now_ms, settings),), changes=(Put(held), SetPulse(held.key, pulse)))


def repeat(held: Held, report: records.ReportHappening, pulse: Pulse, now_ms: int, settings: Settings) -> Outcome:
    tries = min(pulse.tries + 1, MOST_DOUBLINGS)
    due = now_ms + min(settings.repeat_ms << tries, settings.repeat_cap_ms)
    again = replace(pulse, tries=tries, repeat_at=due)
    return Outcome(reports=(say(held.who, report, now_ms, settings),), changes=(SetPulse(held.key, again),))


# Happenings of its loop ----------------------------------------------------------------------------------------------


def happen(ledger: Ledger, it: h.TaskHappening, now_ms: int, settings: Settings) -> Outcome:
    held = ledger.tasks.get(TaskKey(it.who.job, it.who.pipeline, it.who.task))
    if held is None or held.who != it.who or not held.active:
        return ignored("it is not the active attempt")
    if isinstance(it, ENDS):
        return end(held, _terminal(held, it), now_ms, settings)
    if held.phase is Phase.STOPPING:
        return ignored("it is fenced or stopping")
    if isinstance(it, h.Progressed):
        return Outcome(changes=(_progress(ledger, held, it.rows, it.bytes_read, it.at),))
    if isinstance(it, h.Started):
        return _started(held, now_ms, settings)
    if isinstance(it, h.Exhausted):
        return _exhausted(ledger, held, it, now_ms, settings)
    if isinstance(it, h.Staged):
        return _staged(ledger, held, it, now_ms, settings)
    if it.checkpoint != held.staging:
        return ignored("a checkpoint that nobody waits for")
    failed = records.CheckpointFailed(checkpoint=it.checkpoint, lasting=it.lasting, reason=it.reason)
    return Outcome(reports=(say(it.who, failed, now_ms, settings),), changes=(Put(replace(held, staging=0)),))


def _terminal(held: Held, it: h.Crashed | h.Stopped) -> Terminal:
    if held.phase is Phase.STOPPING:  # its end was wanted: an error on the way is no failure of the task
        return records.TaskStopped(reason=f"{held.why}; {it.reason}" if it.reason else held.why)
    if isinstance(it, h.Crashed):
        return records.TaskFailed(lasting=it.lasting, reason=it.reason)
    return records.TaskStopped(reason=it.reason)


def _started(held: Held, now_ms: int, settings: Settings) -> Outcome:
    if held.phase is not Phase.STARTING:
        return ignored("it has started before")
    running = say(held.who, records.TaskRunning(started_at=now_ms), now_ms, settings)
    new = replace(held, phase=Phase.RUNNING, started_at=now_ms)
    return Outcome(reports=(running,), changes=(Put(new), SetPulse(held.key, Pulse(progressed_at=now_ms))))


def _exhausted(ledger: Ledger, held: Held, it: h.Exhausted, now_ms: int, settings: Settings) -> Outcome:
    if held.phase is Phase.READY:
        return ignored("it is ready already")
    if held.phase is Phase.STARTING:
        return ignored("it has not started")
    ready = records.TaskReady(position=it.position)
    new = replace(held, phase=Phase.READY, report=ready, settled=False)
    pulse = replace(ledger.pulse(held.key), stalled=False, tries=0, repeat_at=now_ms + settings.repeat_ms)
    return Outcome(reports=(say(it.who, ready, now_ms, settings),), changes=(Put(new), SetPulse(held.key, pulse)))


def _staged(ledger: Ledger, held: Held, it: h.Staged, now_ms: int, settings: Settings) -> Outcome:
    if not held.staged < it.checkpoint <= held.staging:
        return ignored("a checkpoint that nobody waits for")
    new = replace(held, staged=it.checkpoint, pieces=(*held.pieces, (it.checkpoint, it.pieces)))
    progress = _progress(ledger, held, it.rows, it.bytes_read, now_ms)
    if it.checkpoint < held.staging:  # given up meanwhile: its output is acknowledged with the one that followed
        return Outcome(changes=(Put(new), progress), ignored="a checkpoint that was given up")
    acked = records.CheckpointAcked(
        checkpoint=it.checkpoint, position=it.position, rows=it.rows, bytes_read=it.bytes_read
    )
    new = replace(new, staging=0, acked=acked)
    return Outcome(reports=(say(it.who, _ack(new, acked), now_ms, settings),), changes=(Put(new), progress))


def _ack(held: Held, acked: records.CheckpointAcked) -> records.CheckpointAcked:
    return replace(acked, staged=tuple(staged for _, pieces in held.pieces for staged in pieces))


def _progress(ledger: Ledger, held: Held, rows: int, bytes_read: int, at: int) -> SetPulse:
    pulse = ledger.pulse(held.key)
    at = max(at, pulse.progressed_at)
    return SetPulse(held.key, replace(pulse, rows=rows, bytes_read=bytes_read, progressed_at=at, stalled=False))


def _version(who: Identity) -> tuple[int, int]:
    return (who.incarnation, who.attempt)


def _named(who: Identity) -> str:
    return f"incarnation {who.incarnation}"
