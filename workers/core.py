"""The worker's decisions: from its ledger, an input and the time to effects, reports and changes of the ledger.

`decide` is a pure function: the same ledger, input and time give the same outcome, in production, in the simulation and
in a replay. It never touches Kafka, a clock, a disk, Spark or a thread, and never changes the ledger (`ledger.apply`
does). What the caller owes is said at `Outcome`. An input that makes no sense is ignored with a reason, never an error.

The attempts of tasks are in workers/attempts.py; here is what concerns the worker as a whole, publishing and staging.
"""

from __future__ import annotations

from typing import get_args

from msgspec.structs import replace

from events import records
from workers import attempts
from workers import happenings as h
from workers.attempts import identity_of, key_of
from workers.happenings import NOTHING, Outcome, Publish, RemoveStaging, Settings, ignored, say
from workers.ledger import (
    Change,
    Drop,
    Held,
    JobKey,
    Ledger,
    Phase,
    PipelineKey,
    Publication,
    Pulse,
    Put,
    Removal,
    SetPulse,
    SetReached,
    TaskKey,
)

TASK_HAPPENINGS = get_args(h.TaskHappening)  # asked for a tuple, Python answers faster than for a union


def decide(ledger: Ledger, it: h.Input, now_ms: int, settings: Settings) -> Outcome:
    """What follows from an input. See `Outcome` for the order in which the caller carries it out."""
    if isinstance(it, h.Tick):
        return _tick(ledger, now_ms, settings)
    if isinstance(it, h.Reached):
        # A silence ends one lease, however many late answers come after it: the next begins when it would last.
        at = max(ledger.reached_at, it.sent_at or now_ms)
        was_over, is_over = (now_ms - reached > settings.lease_ms for reached in (ledger.reached_at, at))
        return Outcome(changes=(SetReached(at, ledger.lease + (was_over and not is_over)),))
    if isinstance(it, records.Order):
        return _follow(ledger, it, now_ms, settings)
    if isinstance(it, h.Withdrawn):
        return _withdraw(ledger, TaskKey(it.job, it.pipeline, it.task), now_ms, settings)
    if isinstance(it, TASK_HAPPENINGS):
        return attempts.happen(ledger, it, now_ms, settings)
    if isinstance(it, h.Published | h.PublishFailed):
        return _publish_answered(ledger, it, now_ms, settings)
    if isinstance(it, h.StagingGone | h.StagingStuck):
        return _removal_answered(ledger, it, now_ms, settings)
    return _restart(ledger, now_ms, settings)


def heartbeat(ledger: Ledger, now_ms: int, settings: Settings) -> records.Heartbeat:
    """What the worker says of itself now and then."""
    return records.Heartbeat(
        worker=settings.worker,
        instance=settings.instance,
        host=settings.host,
        version=settings.version,
        time=now_ms,
        slots=settings.slots,
        labels=settings.labels,
        draining=settings.draining,
        tasks=tuple(_progress_of(held, ledger.pulse(key)) for key, held in ledger.tasks.items() if held.active),
        lease=ledger.lease,
    )


def _progress_of(held: Held, pulse: Pulse) -> records.TaskProgress:
    return records.TaskProgress(
        incarnation=held.who.incarnation,
        job=held.who.job,
        pipeline=held.who.pipeline,
        task=held.who.task,
        attempt=held.who.attempt,
        rows=pulse.rows,
        bytes_read=pulse.bytes_read,
        progressed_at=pulse.progressed_at,
    )


def may_publish(ledger: Ledger, lease: int, now_ms: int, settings: Settings) -> bool:
    """To be asked right before output is made visible, with the lease that came with `Publish`: what a worker began
    before others may have given it up, it does not publish after."""
    return lease == ledger.lease and now_ms - ledger.reached_at <= settings.lease_ms


def joined(outcomes: list[Outcome]) -> Outcome:
    if not outcomes:  # as at most ticks
        return NOTHING
    return Outcome(
        tuple(effect for outcome in outcomes for effect in outcome.effects),
        tuple(report for outcome in outcomes for report in outcome.reports),
        tuple(change for outcome in outcomes for change in outcome.changes),
    )


# Orders --------------------------------------------------------------------------------------------------------------


def _follow(ledger: Ledger, order: records.Order, now_ms: int, settings: Settings) -> Outcome:
    action = order.action
    void = _void(ledger, order, settings)
    if void:
        if isinstance(action, records.Deploy) and order.worker == settings.worker:
            return attempts.refuse(identity_of(order), void, now_ms, settings)
        return ignored(void)
    if isinstance(action, records.Deploy):
        return attempts.deploy(ledger, order, action, now_ms, settings)
    if isinstance(action, records.TriggerCheckpoint):
        return attempts.trigger(ledger, order, action, now_ms, settings)
    if isinstance(action, records.CommitCheckpoint):
        return _commit(ledger, order, action, now_ms, settings)
    if isinstance(action, records.StopTask):
        return attempts.stop_ordered(ledger, order, action, now_ms, settings)
    return _remove_staging(ledger, order, action, now_ms, settings)


def _void(ledger: Ledger, order: records.Order, settings: Settings) -> str:
    """Why an order is not to be followed; empty if it is."""
    if order.worker != settings.worker:
        return f"it is for worker {order.worker}"
    epoch = ledger.epoch(order.job, order.incarnation)
    if order.epoch < epoch:
        return f"stale: epoch {order.epoch} is over, {epoch} has given orders"
    removal = isinstance(order.action, records.RemoveStaging | records.StopTask)
    if not removal and JobKey(order.job, order.incarnation) in ledger.removals:
        return f"stale: incarnation {order.incarnation} has ended and its staging is removed"
    return ""


def _withdraw(ledger: Ledger, key: TaskKey, now_ms: int, settings: Settings) -> Outcome:
    """Nothing more is wanted of the task: what has ended is forgotten, what goes on is forgotten when it ends."""
    outcomes = []
    held = ledger.tasks.get(key)
    if held is not None and held.active:
        gone = replace(held, withdrawn=True, successor=None)
        outcomes.append(attempts.stop(gone, "its order was withdrawn", now_ms, settings))
    elif held is not None:
        outcomes.append(Outcome(changes=(Drop(key),)))
    changes: list[Change] = []
    for other in ledger.ordered_by.get(key, ()):
        if isinstance(other, PipelineKey):
            publication = ledger.publications[other]
            changes.append(Put(replace(publication, withdrawn=True)) if publication.publishing else Drop(other))
        else:
            removal = ledger.removals[other]
            changes.append(Put(replace(removal, withdrawn=True)) if removal.removing else Drop(other))
    outcomes.append(Outcome(changes=tuple(changes)))
    return joined(outcomes)


# Publishing: idempotent by job, incarnation, pipeline and checkpoint -------------------------------------------------


def _commit(
    ledger: Ledger, order: records.Order, action: records.CommitCheckpoint, now_ms: int, settings: Settings
) -> Outcome:
    """The order names a task because every order does; whether that task runs here does not matter."""
    held = ledger.tasks.get(key_of(order))
    if held is not None and held.who.incarnation > order.incarnation:
        return ignored(f"stale: incarnation {held.who.incarnation} is known here")
    who, checkpoint = identity_of(order), action.checkpoint
    before = ledger.publications.get(PipelineKey(order.job, order.incarnation, order.pipeline))
    now = replace(before or Publication(who=who, epoch=order.epoch), who=who, epoch=order.epoch, withdrawn=False)
    noted = () if now == before else (Put(now),)
    if checkpoint <= now.published:
        rows = now.rows if checkpoint == now.published else 0
        again = records.CheckpointCommitted(checkpoint=checkpoint, rows=rows)
        return Outcome(reports=(say(who, again, now_ms, settings),), changes=noted)
    if checkpoint == now.publishing:
        return Outcome(changes=noted)
    if checkpoint < now.publishing:
        return ignored(f"stale: checkpoint {now.publishing} is being published")
    if (action.instance, action.lease) != (settings.instance, ledger.lease):
        # It may have been given up since, and others been told: whoever leads gives the order anew if it still stands.
        return ignored("stale: it was given to an earlier process or lease of this worker")
    effect = Publish(
        job=order.job,
        incarnation=order.incarnation,
        pipeline=order.pipeline,
        checkpoint=checkpoint,
        specification=action.specification,
        staged=action.staged,
        lease=ledger.lease,
        tries=action.tries,
        conclusive=action.conclusive,
    )
    return Outcome(effects=(effect,), changes=(Put(replace(now, publishing=checkpoint)),))


def _publish_answered(ledger: Ledger, it: h.Published | h.PublishFailed, now_ms: int, settings: Settings) -> Outcome:
    key = PipelineKey(it.job, it.incarnation, it.pipeline)
    before = ledger.publications.get(key)
    if before is None or not before.published < it.checkpoint <= before.publishing:
        return ignored("a publication that nobody waits for")
    publishing = 0 if it.checkpoint == before.publishing else before.publishing
    happening: records.CheckpointCommitted | records.CheckpointFailed
    if isinstance(it, h.Published):
        now = replace(before, publishing=publishing, published=it.checkpoint, rows=it.rows)
        happening = records.CheckpointCommitted(checkpoint=it.checkpoint, rows=it.rows)
    else:
        now = replace(before, publishing=publishing)
        happening = records.CheckpointFailed(
            checkpoint=it.checkpoint, lasting=it.lasting, reason=it.reason, tries=it.tries, conclusive=it.conclusive
        )
    change: Change = Drop(key) if now.withdrawn and not publishing else Put(now)
    return Outcome(reports=(say(before.who, happening, now_ms, settings),), changes=(change,))


# The removal of staging ----------------------------------------------------------------------------------------------


def _remove_staging(
    ledger: Ledger, order: records.Order, action: records.RemoveStaging, now_ms: int, settings: Settings
) -> Outcome:
    """An older incarnation's staging is removed even while a newer one runs: staging is by incarnation, and the cleanup
    of the old one may be due later than the start of the new one."""
    who, key = identity_of(order), JobKey(order.job, order.incarnation)
    before = ledger.removals.get(key)
    now = replace(before or Removal(who=who, epoch=order.epoch), who=who, epoch=order.epoch, withdrawn=False)
    if now.done:
        gone = records.StagingRemoved(removed=now.removed)
        return Outcome(reports=(say(who, gone, now_ms, settings),), changes=() if now == before else (Put(now),))
    let_go, busy = _let_go(ledger, key, now_ms, settings)
    if busy:  # it may still write or read there: the order is repeated until done, and begins then
        return Outcome(let_go.effects, (), (*let_go.changes, Put(now)), "something of the job is still at work")
    if now.removing:
        return Outcome(changes=() if now == before else (Put(now),))
    effect = RemoveStaging(order.job, order.incarnation, action.specification)
    return Outcome(effects=(effect,), changes=(*let_go.changes, Put(replace(now, removing=True))))


def _let_go(ledger: Ledger, job: JobKey, now_ms: int, settings: Settings) -> tuple[Outcome, bool]:
    """Forgets all of a job's incarnation but its removal, and stops what runs; also whether any is still at work."""
    outcomes, busy = [], False
    of = ledger.jobs.get(job)
    for key in of.keys if of is not None else ():
        publication = ledger.publications[key] if isinstance(key, PipelineKey) else None
        held = ledger.tasks[key] if isinstance(key, TaskKey) else None
        if publication is not None and publication.publishing:
            busy = True
            outcomes.append(Outcome(changes=(Put(replace(publication, withdrawn=True)),)))
        elif held is not None and held.active:
            busy = busy or held.who.incarnation == job.incarnation
            newer = held.successor
            if newer is not None and newer.who.incarnation == job.incarnation:
                newer = None
            gone = replace(held, successor=newer, withdrawn=newer is None)
            outcomes.append(attempts.stop(gone, "its job has ended", now_ms, settings))
        elif not isinstance(key, JobKey):
            outcomes.append(Outcome(changes=(Drop(key),)))
    return joined(outcomes), busy


def _removal_answered(ledger: Ledger, it: h.StagingGone | h.StagingStuck, now_ms: int, settings: Settings) -> Outcome:
    key = JobKey(it.job, it.incarnation)
    before = ledger.removals.get(key)
    if before is None or not before.removing:
        return ignored("a removal that nobody waits for")
    if isinstance(it, h.StagingStuck):
        change: Change = Drop(key) if before.withdrawn else Put(replace(before, removing=False))
        stuck = say(before.who, records.StagingFailed(reason=it.reason), now_ms, settings)
        return Outcome(reports=(stuck,), changes=(change,))
    change = Drop(key) if before.withdrawn else Put(replace(before, removing=False, done=True, removed=it.removed))
    return Outcome(
        reports=(say(before.who, records.StagingRemoved(removed=it.removed), now_ms, settings),), changes=(change,)
    )


# Time and restarts ---------------------------------------------------------------------------------------------------


def _tick(ledger: Ledger, now_ms: int, settings: Settings) -> Outcome:
    silent_ms = now_ms - ledger.reached_at
    lost = f"lease lost: Kafka was not reached for {silent_ms} ms" if silent_ms > settings.lease_ms else ""
    outcomes = [_look_after(held, ledger.pulse(key), lost, now_ms, settings) for key, held in ledger.tasks.items()]
    return joined([outcome for outcome in outcomes if outcome is not NOTHING])


def _look_after(held: Held, pulse: Pulse, lost: str, now_ms: int, settings: Settings) -> Outcome:
    if held.phase is Phase.STOPPING:
        return attempts.abandon(held, now_ms, settings) if now_ms >= held.stop_by else NOTHING
    if lost and held.active:
        return attempts.stop(held, lost, now_ms, settings)
    if held.phase is Phase.RUNNING and not pulse.stalled and now_ms - pulse.progressed_at > settings.stall_ms:
        doing = f"staging checkpoint {held.staging}" if held.staging else "reading"
        stalled = records.TaskStalled(progressed_at=pulse.progressed_at, reason=doing)
        once = SetPulse(held.key, replace(pulse, stalled=True))
        return Outcome(reports=(say(held.who, stalled, now_ms, settings),), changes=(once,))
    if held.report is not None and not held.settled and now_ms >= pulse.repeat_at:
        return attempts.repeat(held, held.report, pulse, now_ms, settings)
    return NOTHING


def _restart(ledger: Ledger, now_ms: int, settings: Settings) -> Outcome:
    """The predecessor's threads are gone with it: its attempts are lost, and said to be so at once; what was being
    published or removed is ordered again and done again. Kept reports may never have been sent: they are now."""
    changes: list[Change] = [SetReached(now_ms, ledger.lease + 1)]
    outcomes = []
    for held in ledger.tasks.values():
        if held.active:
            lost = records.TaskFailed(reason="the worker restarted")
            outcomes.append(attempts.end(held, lost, now_ms, settings))
        elif held.report is not None:
            outcomes.append(attempts.repeat(held, held.report, Pulse(), now_ms, settings))
    for pipeline, publication in ledger.publications.items():
        if publication.publishing:
            changes.append(Drop(pipeline) if publication.withdrawn else Put(replace(publication, publishing=0)))
    for job, removal in ledger.removals.items():
        if removal.removing:
            changes.append(Drop(job) if removal.withdrawn else Put(replace(removal, removing=False)))
    return joined([*outcomes, Outcome(changes=tuple(changes))])
