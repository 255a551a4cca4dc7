"""What becomes of an attempt that fails, stalls or loses its worker. Attempts only grow; a new one fences
the one before.

Pure decisions over a Draft.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinator.checkpoint import abort, checkpoint_of
from coordinator.deploy import is_lost, task_of
from coordinator.draft import Draft
from coordinator.ending import fail_job, job_of
from coordinator.lifecycle import ENDING_JOB, TERMINAL_JOB, WORKING_TASK
from coordinator.state import JobView, TaskId
from events.keys import named
from events.records import Cause, Heartbeat, StopTask, Worker

VERDICT_MS = 86_400_000  # how long a verdict on a worker stays on the log


def fail_task(
    draft: Draft, task: TaskId, reason: str, *, lasting: bool = False, stop: bool = False, transition: str = "failed"
) -> None:
    """An attempt is over. By policy a new one is created, after a back-off, or the job fails."""
    name, number, index = task
    job = draft.state.jobs[name]
    event = job.pipelines[number].tasks[index]
    known = task_of(event)
    if stop:  # it may still run somewhere: from now on it is fenced
        draft.order(event, number, index, known.worker, StopTask(reason=reason))
    entity = named("task", *task)
    failed = replace(known, reason=reason, since=draft.now)
    draft.emit(entity, transition, failed, incarnation=event.incarnation, attempt=event.attempt)
    draft.delete(named("ready", *task))  # a mark holds for its attempt only
    draft.delete(named("ack", *task))
    interrupt_pipeline(draft, job, number, reason)
    due_at = None if lasting else restart_at(draft, job)
    if due_at is None:
        fail_job(draft, name, f"task {number}/{index} failed for good: {reason}")
        return
    fresh = replace(failed, worker="", rows=0, bytes_read=0, refused_by=(), reason=f"restarts: {reason}")
    draft.emit(entity, "retried", fresh, incarnation=event.incarnation, attempt=event.attempt + 1, due_at=due_at)


def interrupt_pipeline(draft: Draft, job: JobView, number: int, reason: str) -> None:
    """Without all its tasks a pipeline does not run: the checkpoint in flight is void, and so is the word RUNNING."""
    pipeline = job.pipelines[number]
    event, _ = job_of(job)
    if pipeline.pending is not None and pipeline.pending.to == "TRIGGERED":
        abort(draft, job, number, f"a task was lost: {reason}", count=False)
    if pipeline.event is not None and pipeline.event.to == "RUNNING":
        entity = named("pipeline", event.job, number)
        draft.emit(entity, "restarting", pipeline.event.state, incarnation=event.incarnation)
    if event.to == "RUNNING":
        draft.emit(named("job", event.job), "restarting", event.state, incarnation=event.incarnation)


def restart_at(draft: Draft, job: JobView) -> int | None:
    """When a failed task may start again; None when the policy allows no further restart."""
    event, known = job_of(job)
    policy = job.plan.env.restart
    if event.to in ENDING_JOB | TERMINAL_JOB:
        return None
    within = bool(known.window_at) and draft.now - known.window_at < policy.window_ms
    used = known.restarts if within else 0
    if used >= policy.retries:
        return None
    counted = replace(known, restarts=used + 1, window_at=known.window_at if within else draft.now)
    draft.emit(named("job", event.job), "counted", counted, incarnation=event.incarnation)
    return draft.now + min(policy.backoff_ms << min(used, 20), policy.max_backoff_ms)


def lose_worker(draft: Draft, worker: str, reason: str) -> None:
    """The failure detector's verdict. It is about the tasks that are there now, whatever the worker still does."""
    heard = draft.state.heard.get(worker)
    instance = heard.heartbeat.instance if heard else ""
    verdict = Worker(instance=instance, heard_at=heard.at if heard else 0, reason=reason)
    draft.emit(named("worker", worker), "lost", verdict, incarnation=0, due_at=draft.now + VERDICT_MS)
    for task in sorted(draft.state.tasks_on.get(worker, ())):
        if task in draft.state.tasks_on.get(worker, ()):  # a job that failed meanwhile has none left
            fail_task(draft, task, f"worker {worker} is lost: {reason}", stop=True)


def find_lost(draft: Draft, said: Heartbeat) -> None:
    """A worker that was started again and does not run what its process before it ran: those attempts are over. As a
    rule it says so itself; one that lost its disk knows nothing of them."""
    runs = {(task.job, task.pipeline, task.task) for task in said.tasks}
    for task in sorted(draft.state.tasks_on.get(said.worker, set()) - runs):
        event = draft.state.jobs[task[0]].pipelines[task[1]].tasks.get(task[2])
        if event is not None and event.to in WORKING_TASK and task_of(event).instance != said.instance:
            fail_task(draft, task, f"worker {said.worker} was started anew and does not have it", stop=True)


def judge_workers(draft: Draft, jobs: list[str]) -> None:
    """Which workers with tasks, or with something of these jobs to publish, have been silent too long. A leader that
    has just begun has heard nobody yet: it gives everyone the full time first."""
    publishing = {
        worker
        for job in jobs
        for pipeline in draft.state.jobs[job].pipelines.values()
        if pipeline.checkpoint is not None and pipeline.checkpoint.to == "COMPLETED"
        for worker in checkpoint_of(pipeline.checkpoint).held_by
    }
    for worker in sorted({*draft.state.tasks_on, *publishing}):
        heard = draft.state.heard.get(worker)
        silent = draft.now - max(heard.at if heard else 0, draft.state.led_since)
        if silent > draft.state.lease_ms and not is_lost(draft.state, worker):
            draft.cause = Cause(kind="DETECTOR", note=f"worker {worker} silent for {silent} ms")
            lose_worker(draft, worker, f"not heard for {silent} ms")
