"""How jobs end, and what is left then: the terminal event and the promise of cleanup are one transaction. Until the
cleanup is due the ended job stays as a tombstone that late reports find; then all its keys go, in one transaction, if
and only if the owner still matches.

Pure decisions over a Draft.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinator.checkpoint import checkpoint_of, committed_point, is_uncommitted, published_rows
from coordinator.deploy import choose_worker, has_labels, task_of
from coordinator.draft import Draft
from coordinator.lifecycle import ACTIVE_TASK, ENDING_JOB, TERMINAL_JOB, TERMINAL_TASK
from coordinator.savepoint import fail_savepoints, savepoint_of
from coordinator.specification import plan
from coordinator.state import JobView, State, entity_of
from events.keys import named
from events.records import Cleanup, Event, Job, RemoveStaging, StopTask, Summary

STAGING = -1  # orders to remove staging are the job's, not a pipeline's or a task's
AGAIN_MS = 2000
AGAIN_AT_MOST_MS = 60_000
PATIENT_TRIES = 6  # two minutes


def job_of(job: JobView) -> tuple[Event, Job]:
    assert job.event is not None
    assert isinstance(job.event.state, Job)
    return job.event, job.event.state


def cleanup_of(event: Event) -> Cleanup:
    assert isinstance(event.state, Cleanup)
    return event.state


def fail_job(draft: Draft, name: str, reason: str) -> None:
    """The job can't go on. Already ending, it goes on ending as it was."""
    event, known = job_of(draft.state.jobs[name])
    if event.to in ENDING_JOB | TERMINAL_JOB:
        return
    draft.emit(named("job", name), "failing", replace(known, reason=reason), incarnation=event.incarnation)
    cancel_tasks(draft, name, reason)


def cancel_job(draft: Draft, name: str, reason: str) -> None:
    event, known = job_of(draft.state.jobs[name])
    draft.emit(named("job", name), "cancelling", replace(known, reason=reason), incarnation=event.incarnation)
    cancel_tasks(draft, name, reason)


def cancel_tasks(draft: Draft, name: str, reason: str) -> None:
    """Stop what runs. What it still writes is never published, so nobody waits for it to stop."""
    job = draft.state.jobs[name]
    for number, pipeline in job.pipelines.items():
        for index, task in list(pipeline.tasks.items()):
            if task.to in TERMINAL_TASK:
                continue
            if task.to in ACTIVE_TASK:
                draft.order(task, number, index, task_of(task).worker, StopTask(reason=reason))
            state = replace(task_of(task), since=draft.now, reason=reason)
            draft.emit(named("task", name, number, index), "canceled", state, incarnation=task.incarnation,
                       attempt=task.attempt)  # fmt: skip
        if pipeline.pending is not None and pipeline.pending.to == "TRIGGERED":
            gone = replace(checkpoint_of(pipeline.pending), reason=reason)
            draft.emit(named("pending", name, number), "aborted", gone, incarnation=pipeline.pending.incarnation)
        if pipeline.event is not None and pipeline.event.to in ("SCHEDULED", "RUNNING", "SUSPENDED"):
            draft.emit(named("pipeline", name, number), "canceled", pipeline.event.state,
                       incarnation=pipeline.event.incarnation)  # fmt: skip


def end_when_nothing_is_open(draft: Draft, name: str) -> None:
    """State-triggered: an ending job has ended when every completed checkpoint is committed. Completing was the
    decision: the rows behind it are published, or given up for good reason."""
    job = draft.state.jobs[name]
    event, _ = job_of(job)
    if event.to not in ENDING_JOB or any(is_uncommitted(p) for p in job.pipelines.values()):
        return
    end_job(draft, name, "failed" if event.to == "FAILING" else "canceled")


def end_job(draft: Draft, name: str, transition: str, *, reason: str | None = None) -> None:
    """Terminal, with the promise of cleanup and the summary, in one transaction."""
    job = draft.state.jobs[name]
    event, known = job_of(job)
    done = replace(known, ended_at=draft.now, reason=known.reason if reason is None else reason)
    draft.emit(named("job", name), transition, done, incarnation=event.incarnation)
    fail_savepoints(draft, job, name)
    promise_cleanup(draft, name)


def promise_cleanup(draft: Draft, name: str) -> None:
    """What an ended job must have: its cleanup due, and its summary."""
    job = draft.state.jobs[name]
    event, known = job_of(job)
    if job.cleanup is None:
        delay_ms = job.plan.env.cleanup_delay_ms
        due_at = draft.now + (max(delay_ms, draft.state.lease_ms + 1) if known.quarantined else delay_ms)
        cleanup = Cleanup(owner=event.incarnation, ended=event.to)
        draft.emit(named("cleanup", name, event.incarnation), "promised", cleanup, incarnation=event.incarnation,
                   due_at=due_at)  # fmt: skip
    list_summary(draft, job, name)


def list_summary(draft: Draft, job: JobView, name: str) -> None:
    """If there is none: also one that was there and could not be read, for it remembers the job's commands."""
    event, known = job_of(job)
    env = job.plan.env
    entity = named("summary", name, event.incarnation)
    if draft.state.get(entity) is None:
        due_at = draft.now + env.cleanup_delay_ms + env.history_ms
        draft.emit(entity, "listed", summary_of(job, event, known), incarnation=event.incarnation, due_at=due_at)


def summary_of(job: JobView, event: Event, known: Job) -> Summary:
    """What stays of the job, and what it takes to restore it. A finished job has nothing left to go on with; of one
    that is quarantined nobody knows what it published last."""
    savepoints = tuple(savepoint_of(s) for _, s in sorted(job.savepoints.items()) if s.to == "KEPT")
    goes_on = event.to != "FINISHED"
    points = tuple(committed_point(n, p) for n, p in sorted(job.pipelines.items()))
    return Summary(
        submitted_at=known.submitted_at,
        ended_at=known.ended_at,
        rows=sum(map(published_rows, job.pipelines.values())),
        checkpoints=sum(checkpoint_of(p.checkpoint).id for p in job.pipelines.values() if p.checkpoint),
        restarts=known.restarts,
        commands=tuple(sorted(job.commands)),
        specification=job.body if goes_on or savepoints else "",
        points=() if not goes_on or known.quarantined else points,
        savepoints=savepoints,
        reason=f"{event.to}: {known.reason}" if known.reason else event.to,
    )


def begin_cleanup(draft: Draft, event: Event) -> None:
    """Due: have a worker remove what is left in staging. Asked again until it is reported."""
    known, name = cleanup_of(event), event.job
    body = specification_of(draft.state, name, known.owner)
    not_before, reason = astray(draft.state, name, known.owner, draft.now)
    worker = None if reason else remover(draft.state, plan(body).env.labels if body else {}, known.tries)
    held = known.held_by if worker is None or worker in known.held_by else (*known.held_by, worker)
    if not reason:
        reason = known.reason if worker else "no worker is there to remove what is staged"
    moved = replace(known, tries=known.tries + 1, held_by=held, reason=reason)
    due_at = max(not_before, draft.now + min(AGAIN_MS << min(known.tries, 20), AGAIN_AT_MOST_MS))
    transition = "begun" if event.to == "PROMISED" else "repeated"
    entity = named("cleanup", name, known.owner)
    draft.emit(entity, transition, moved, incarnation=event.incarnation, due_at=due_at)
    if worker is not None:
        draft.order(event, STAGING, STAGING, worker, RemoveStaging(specification=body))


def astray(state: State, name: str, incarnation: int, now: int) -> tuple[int, str]:
    """Of a quarantined job nobody may know who ran it, so nobody could be told to stop: why its staging must not be
    removed yet, if so, and until when at least. Workers that are heard are told (`stop_strays`); whoever is not heard
    has stopped by itself when its lease was over. What they stage until then would be left for good."""
    job = state.jobs[name]
    known = job_of(job)[1] if job.event is not None and job.event.incarnation == incarnation else None
    if known is None or not known.quarantined:
        return 0, ""
    all_heard_at = max(state.led_since, known.ended_at) + state.lease_ms
    if now <= all_heard_at:
        return all_heard_at + 1, "some worker may still run it, and has until then to say so or to stop by itself"
    for worker, heard in state.heard.items():
        if any((task.job, task.incarnation) == (name, incarnation) for task in heard.heartbeat.tasks):
            return 0, f"an attempt of it still runs on {worker}"
    return 0, ""


def remover(state: State, labels: dict[str, str], tries: int) -> str | None:
    """A worker with the job's labels: others may not see what it has staged. Where none comes for long, anybody: an id
    is not held for ever by labels that nobody has any more."""
    fit = [worker for worker in sorted(state.heard) if has_labels(state, worker, labels)]
    if not fit and tries < PATIENT_TRIES:
        return None
    return choose_worker(state, labels if fit else {}, ()) or next(iter(fit or sorted(state.heard)), None)


def specification_of(state: State, name: str, incarnation: int) -> str:
    """What the owner of a cleanup was asked to do: its own key may be a restored job's by now."""
    job = state.jobs[name]
    if job.specification is not None and job.specification.incarnation == incarnation:
        return job.body
    summary = state.summaries.get(name, {}).get(incarnation)
    return summary.state.specification if summary and isinstance(summary.state, Summary) else ""


def stuck_cleanup(draft: Draft, event: Event, reason: str) -> None:
    """Staging could not be removed: shown, and tried again when it is due."""
    if event.to == "REMOVING":
        draft.emit(entity_of(event.entity), "stuck", replace(cleanup_of(event), reason=reason),
                   incarnation=event.incarnation, due_at=event.due_at)  # fmt: skip


def finish_cleanup(draft: Draft, event: Event) -> None:
    """Nothing is left in staging: all keys of the job go, if they are still the owner's; the cleanup record last."""
    if event.to not in ("REMOVING", "REMOVED"):
        return
    known, name = cleanup_of(event), event.job
    for worker in known.held_by:
        draft.withdraw(worker, name, STAGING, STAGING)
    job = draft.state.jobs[name]
    if job.event is not None and job.event.incarnation == known.owner:
        delete_job(draft, name)
    draft.delete(entity_of(event.entity))


def delete_job(draft: Draft, name: str) -> None:
    """All keys of an ended job but its cleanup and its summary, children before the parent."""
    job = draft.state.jobs[name]
    event, _ = job_of(job)
    list_summary(draft, job, name)
    for number, pipeline in sorted(job.pipelines.items()):
        for index, task in sorted(pipeline.tasks.items()):
            for worker in task_of(task).held_by:
                draft.withdraw(worker, name, number, index)
        for index in sorted({*pipeline.tasks, *pipeline.ready, *pipeline.acks}):
            for kind in ("ready", "ack", "task"):
                draft.delete(named(kind, name, number, index))
        for kind in ("pending", "checkpoint", "pipeline"):
            draft.delete(named(kind, name, number))
    complete_summary(draft, job, name, event.incarnation)
    for savepoint in sorted(job.savepoints):
        draft.delete(named("savepoint", name, savepoint))
    for command in sorted(job.commands):
        draft.delete(named("command", name, command))
    for kind in ("specification", "job"):
        draft.delete(named(kind, name))


def complete_summary(draft: Draft, job: JobView, name: str, incarnation: int) -> None:
    """Commands that came after the end are refused, but their late copies must be known, too, for as long as those of
    others: where cleanup was late, the history's time would be all but over."""
    entity = named("summary", name, incarnation)
    event = draft.state.get(entity)
    if event is None or not isinstance(event.state, Summary):
        return
    given = {*event.state.commands, *job.commands}  # one of the job's may have been unreadable since, and set aside
    if len(given) > len(event.state.commands):
        known = replace(event.state, commands=tuple(sorted(given)))
        due_at = max(event.due_at, draft.now + job.plan.env.history_ms)
        draft.emit(entity, "completed", known, incarnation=incarnation, due_at=due_at)


def expire_summary(draft: Draft, event: Event) -> None:
    """The history's time is over. While a cleanup is pending, the summary says what it is to remove."""
    entity = entity_of(event.entity)
    job = draft.state.jobs.get(event.job)
    if job is None or event.incarnation not in job.cleanups:
        draft.delete(entity)
    else:
        due_at = draft.now + AGAIN_AT_MOST_MS
        draft.emit(entity, "extended", event.state, incarnation=event.incarnation, due_at=due_at)
