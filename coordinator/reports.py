"""What workers say. A report counts only for the attempt that it is about: late ones are no-ops that say so, and
whoever sent them is told that nothing more is wanted of it.

Pure decisions over a Draft.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinator.checkpoint import COMMIT_TASK, abort, acknowledge, checkpoint_of, commit, give_up, holders
from coordinator.deploy import task_of
from coordinator.draft import Draft
from coordinator.ending import STAGING, cleanup_of, fail_job, finish_cleanup, stuck_cleanup
from coordinator.failure import fail_task
from coordinator.lifecycle import ACTIVE_TASK, TERMINAL_JOB, allows
from coordinator.state import JobView, State, entity_of
from coordinator.words import is_name, shortened
from events.keys import named
from events.records import (
    CheckpointAcked,
    CheckpointCommitted,
    CheckpointFailed,
    Event,
    Heartbeat,
    ReadyMark,
    Report,
    StagingFailed,
    StagingRemoved,
    TaskFailed,
    TaskReady,
    TaskRefused,
    TaskRunning,
    TaskStalled,
    TaskStopped,
)

STALLED = "STALLED: "  # how the reason of a task begins that is alive but makes no progress


def hear(draft: Draft, report: Report) -> None:
    """Take a report in."""
    job = draft.state.jobs.get(report.job)
    said = shortened(report.happening)
    if said is not report.happening:
        report = replace(report, happening=said)
    if isinstance(said, StagingRemoved | StagingFailed):
        hear_of_staging(draft, job, report, said)
    elif job is None or job.event is None or job.event.incarnation != report.incarnation:
        late(draft, report, "there is no such job any more")
    elif isinstance(said, CheckpointCommitted):
        committed(draft, job, report, said)
    elif isinstance(said, CheckpointFailed) and report.task == COMMIT_TASK:
        not_committed(draft, job, report, said)
    else:
        hear_of_task(draft, job, report)


def hear_of_staging(draft: Draft, job: JobView | None, report: Report, said: StagingRemoved | StagingFailed) -> None:
    """It counts for the incarnation that it is about, whether or not another lives under the id by now."""
    cleanup = job.cleanups.get(report.incarnation) if job else None
    if cleanup is None:
        late(draft, report, "its cleanup is over")
    elif isinstance(said, StagingRemoved):
        finish_cleanup(draft, cleanup)
    else:
        stuck_cleanup(draft, cleanup, said.reason)


def late(draft: Draft, report: Report, why: str) -> None:
    """A counted no-op. The worker is told to forget what it still holds, unless something is wanted of it under the
    same key: by a newer attempt, or a newer incarnation."""
    draft.note(f"late {type(report.happening).__name__} of {report.job} {report.pipeline}/{report.task}: {why}")
    ended = isinstance(report.happening, TaskFailed | TaskStopped | TaskReady | StagingRemoved | CheckpointCommitted)
    usable = is_name(report.worker) and is_name(report.job)
    if ended and usable and not is_wanted(draft.state, report.worker, report.job, report.pipeline, report.task):
        draft.withdraw(report.worker, report.job, report.pipeline, report.task)


def is_wanted(state: State, worker: str, name: str, number: int, index: int) -> bool:
    """Whether an order stands for this worker under this key."""
    job = state.jobs.get(name)
    if job is None:
        return False
    if number == STAGING:
        return any(worker in cleanup_of(cleanup).held_by for cleanup in job.cleanups.values())
    pipeline = job.pipelines.get(number)
    if pipeline is None:
        return False
    if index == COMMIT_TASK:
        return pipeline.checkpoint is not None and worker in checkpoint_of(pipeline.checkpoint).held_by
    task = pipeline.tasks.get(index)
    return task is not None and task.to in ACTIVE_TASK and task_of(task).worker == worker


def stop_strays(draft: Draft, said: Heartbeat) -> None:
    """What runs on a worker and is wanted there by nobody is told to stop, as often as it is seen."""
    for task in said.tasks:
        key = (said.worker, task.job, task.pipeline, task.task)
        if is_name(task.job) and draft.state.owns(task.job) and not is_wanted(draft.state, *key):
            draft.note(f"{task.job} {task.pipeline}/{task.task} attempt {task.attempt} runs astray on {said.worker}")
            draft.withdraw(*key)


def uncommitted(draft: Draft, job: JobView, report: Report, number: int) -> Event | None:
    """The completed checkpoint that the report is about; None, and a note, when it waits for no commit."""
    pipeline = job.pipelines.get(report.pipeline)
    checkpoint = pipeline.checkpoint if pipeline else None
    if checkpoint is not None and checkpoint.to == "COMPLETED" and checkpoint_of(checkpoint).id == number:
        return checkpoint
    late(draft, report, f"checkpoint {number} is not waiting for it")
    return None


def committed(draft: Draft, job: JobView, report: Report, said: CheckpointCommitted) -> None:
    if uncommitted(draft, job, report, said.checkpoint) is not None:
        commit(draft, job, report.pipeline)


def not_committed(draft: Draft, job: JobView, report: Report, said: CheckpointFailed) -> None:
    """Tried again with back-off, visibly; what lasts fails the job. Another worker that was told to publish it may
    have done so, or be at it: it is given up when nobody can be, and one has looked after that."""
    checkpoint = uncommitted(draft, job, report, said.checkpoint)
    if checkpoint is None:
        return
    known = replace(checkpoint_of(checkpoint), reason=said.reason)
    held = dict(zip(known.held_by, known.held_tries, strict=True))
    newest = held.get(report.worker) == said.tries  # an older answer does not say what it does now
    if said.lasting:
        out = (report.worker,) if newest and report.worker not in known.refused_by else ()
        known = replace(known, refused=True, refused_by=known.refused_by + out)
    entity = named("checkpoint", report.job, report.pipeline)
    draft.emit(entity, "retried", known, incarnation=checkpoint.incarnation, due_at=checkpoint.due_at)
    if said.lasting or known.tries > job.plan.env.commit.retries:
        fail_job(draft, report.job, f"checkpoint {known.id} can't be published: {said.reason}")
    if said.lasting and said.conclusive and newest and not holders(draft, job.pipelines[report.pipeline]):
        give_up(draft, job, report.pipeline, "abandoned", said.reason)


def hear_of_task(draft: Draft, job: JobView, report: Report) -> None:
    pipeline = job.pipelines.get(report.pipeline)
    task = pipeline.tasks.get(report.task) if pipeline else None
    if task is None:
        late(draft, report, "there is no such task")
        return
    if task.attempt != report.attempt or task.to not in ACTIVE_TASK or task_of(task).worker != report.worker:
        late(draft, report, f"attempt {report.attempt} does not run there; {task.attempt} is {task.to}")
        return
    key = (report.job, report.pipeline, report.task)
    said = report.happening
    if isinstance(said, TaskRunning):
        running(draft, task)
    elif isinstance(said, TaskReady):
        running(draft, task)
        mark_ready(draft, key, task, said)
    elif isinstance(said, CheckpointAcked):
        running(draft, task)
        recover(draft, key, task)
        acknowledge(draft, job, report.pipeline, report.task, report.attempt, said)
    elif isinstance(said, CheckpointFailed):
        not_staged(draft, job, report, said)
    elif isinstance(said, TaskFailed | TaskStopped):
        lasting = isinstance(said, TaskFailed) and said.lasting
        fail_task(draft, key, said.reason, lasting=lasting)
        draft.withdraw(report.worker, *key)
    elif isinstance(said, TaskRefused):
        refuse(draft, key, task, report.worker, said.reason)
    elif isinstance(said, TaskStalled):
        stall(draft, job, key, task, said)
    else:
        draft.note(f"a report that means nothing here: {type(said).__name__}")


def running(draft: Draft, task: Event) -> None:
    """Any word of an attempt at work says that it runs."""
    if task.to == "DEPLOYING":
        state = replace(task_of(task), since=draft.now, reason="")
        draft.emit(entity_of(task.entity), "running", state, incarnation=task.incarnation, attempt=task.attempt)


def recover(draft: Draft, key: tuple[str, int, int], task: Event) -> None:
    """A task that takes part in a checkpoint is not stalled any more."""
    if task.to == "RUNNING" and task_of(task).reason.startswith(STALLED):
        state = replace(task_of(task), reason="")
        draft.emit(named("task", *key), "recovered", state, incarnation=task.incarnation, attempt=task.attempt,
                   due_at=task.due_at)  # fmt: skip


def mark_ready(draft: Draft, key: tuple[str, int, int], task: Event, said: TaskReady) -> None:
    """Each mark is an event of its own, at once. The same mark twice is one."""
    if draft.state.get(named("ready", *key)) is not None:
        return
    mark = ReadyMark(worker=task_of(task).worker, position=said.position)
    draft.emit(named("ready", *key), "marked", mark, incarnation=task.incarnation, attempt=task.attempt)
    state = replace(task_of(task), since=draft.now)
    draft.emit(named("task", *key), "ready", state, incarnation=task.incarnation, attempt=task.attempt)


def not_staged(draft: Draft, job: JobView, report: Report, said: CheckpointFailed) -> None:
    pending = job.pipelines[report.pipeline].pending
    if pending is None or pending.to != "TRIGGERED" or checkpoint_of(pending).id != said.checkpoint:
        draft.note(f"late failure of checkpoint {said.checkpoint}")
        return
    abandon(draft, job, report.pipeline, said.reason, lasting=said.lasting)


def abandon(draft: Draft, job: JobView, number: int, reason: str, *, lasting: bool = False) -> None:
    """A checkpoint has failed. One never ends checkpointing; too many in a row end the job."""
    assert job.event is not None
    failures = abort(draft, job, number, reason)
    if lasting or failures > job.plan.env.checkpoint.tolerated_failures:
        fail_job(draft, job.event.job, f"{failures} checkpoints failed in a row: {reason}")


def refuse(draft: Draft, key: tuple[str, int, int], task: Event, worker: str, reason: str) -> None:
    """It is placed elsewhere, as a new attempt: a late copy of the refusal, or of the order, is then stale."""
    if not allows("task", "refused", task.to) or reason.startswith("stale"):
        draft.note(f"a refusal of {task.entity} that means nothing: it is {task.to}, {reason}")
        return
    known = task_of(task)
    refused = replace(known, worker="", refused_by=(*known.refused_by, worker), reason=reason)
    draft.emit(named("task", *key), "refused", refused, incarnation=task.incarnation, attempt=task.attempt + 1)
    draft.withdraw(worker, *key)


def stall(draft: Draft, job: JobView, key: tuple[str, int, int], task: Event, said: TaskStalled) -> None:
    """Alive but without progress: seen, and by policy fenced and started anew."""
    if not allows("task", "stalled", task.to):
        draft.note(f"late TaskStalled of {task.entity}: its source is exhausted since")
        return
    reason = f"no progress since {said.progressed_at}: {said.reason}"
    state = replace(task_of(task), reason=STALLED + reason)
    draft.emit(named("task", *key), "stalled", state, incarnation=task.incarnation, attempt=task.attempt,
               due_at=task.due_at)  # fmt: skip
    if job.plan.env.restart_stalled and job.event is not None and job.event.to not in TERMINAL_JOB:
        fail_task(draft, key, reason, stop=True)
