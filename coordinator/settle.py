"""What the state itself calls for, computed after every input for the jobs it touched: so no step can be missed,
whoever led when the last input came. This is what heals, too: a sweep settles every job, and where nothing is to
be done it decides nothing.

Pure decisions over a Draft.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinator.checkpoint import (
    checkpoint_of,
    complete_when_all_acked,
    in_flight,
    is_uncommitted,
    order_commit,
    schedule_next,
    trigger,
)
from coordinator.deploy import place_job, task_of
from coordinator.draft import Draft
from coordinator.ending import end_job, end_when_nothing_is_open, job_of, promise_cleanup
from coordinator.lifecycle import ACTIVE_TASK, ENDING_JOB, TERMINAL_JOB, WORKING_TASK
from coordinator.savepoint import add_points, is_kept, wants_point
from coordinator.state import JobView, PipelineView
from events.keys import named
from events.records import StopTask

# The checkpoint that a job on its way to an end asks its pipelines for.
LAST_CHECKPOINT = {"DRAINING": "DRAIN", "SAVEPOINTING": "SAVEPOINT", "PAUSING": "PAUSE"}
ROUNDS = 20  # far more than any chain of steps is long


def settle(draft: Draft, names: list[str] | None = None) -> None:
    """Take every step that the state calls for, until it calls for none."""
    for name in list(names if names is not None else draft.touched):
        for _ in range(ROUNDS):
            before = len(draft.events) + len(draft.orders)
            job = draft.state.jobs.get(name)
            if job is None or job.event is None:
                break
            if job.event.to in TERMINAL_JOB:
                if job.cleanup is None:
                    promise_cleanup(draft, name)
                break
            add_points(draft, job)
            place_job(draft, name)
            for number in sorted(job.pipelines):
                settle_pipeline(draft, name, number)
            settle_job(draft, name)
            if len(draft.events) + len(draft.orders) == before:
                break
        else:
            raise AssertionError(f"the state of {name} calls for steps without end")


def count(pipeline: PipelineView, *states: str) -> int:
    return sum(pipeline.counts.get(state, 0) for state in states)


def settle_pipeline(draft: Draft, name: str, number: int) -> None:
    job = draft.state.jobs[name]
    pipeline = job.pipelines[number]
    if is_uncommitted(pipeline) and pipeline.checkpoint is not None and not pipeline.checkpoint.due_at:
        order_commit(draft, job, number)
    if pipeline.event is None or pipeline.event.to not in ("SCHEDULED", "RUNNING"):
        return
    working = count(pipeline, *WORKING_TASK) == pipeline.size
    if working and pipeline.event.to == "SCHEDULED":
        entity = named("pipeline", name, number)
        draft.emit(entity, "running", pipeline.event.state, incarnation=pipeline.event.incarnation)
        if not in_flight(pipeline):
            schedule_next(draft, job, number, failures=0)
    complete_when_all_acked(draft, job, number)
    if working and not in_flight(pipeline):
        after_checkpoint(draft, job, name, number)


def after_checkpoint(draft: Draft, job: JobView, name: str, number: int) -> None:
    """Nothing is in flight and all tasks work: what the last checkpoint led to, or the one that is called for."""
    pipeline = job.pipelines[number]
    assert job.event is not None
    last = checkpoint_of(pipeline.checkpoint).purpose if pipeline.checkpoint else ""
    wanted = LAST_CHECKPOINT.get(job.event.to, "")
    all_ready = count(pipeline, "READY_TO_CLOSE") == pipeline.size
    if (last == "FINAL" and all_ready) or (last == "DRAIN" and wanted == "DRAIN"):
        close_pipeline(draft, job, name, number, "finished")
    elif (wanted == "PAUSE" and last == wanted) or (wanted == "SAVEPOINT" and not wants_point(job, number)):
        close_pipeline(draft, job, name, number, "suspended")
    elif wanted:
        trigger(draft, job, number, wanted)
    elif all_ready:
        trigger(draft, job, number, "FINAL")
    elif wants_point(job, number):
        trigger(draft, job, number, "SAVEPOINT")


def close_pipeline(draft: Draft, job: JobView, name: str, number: int, transition: str) -> None:
    """All that the pipeline has read is published: its tasks end."""
    pipeline = job.pipelines[number]
    assert pipeline.event is not None
    for index, task in list(pipeline.tasks.items()):
        if task.to in ACTIVE_TASK:
            draft.order(task, number, index, task_of(task).worker, StopTask(reason=transition))
            state = replace(task_of(task), since=draft.now)
            draft.emit(named("task", name, number, index), transition, state, incarnation=task.incarnation,
                       attempt=task.attempt)  # fmt: skip
        if transition == "suspended":  # marks hold for their attempt only, and the next one is another
            draft.delete(named("ready", name, number, index))
            draft.delete(named("ack", name, number, index))
    draft.emit(named("pipeline", name, number), transition, pipeline.event.state,
               incarnation=pipeline.event.incarnation)  # fmt: skip


def settle_job(draft: Draft, name: str) -> None:
    job = draft.state.jobs[name]
    event, known = job_of(job)
    pipelines = job.pipelines.values()
    states = {p.event.to for p in pipelines if p.event}
    entity = named("job", name)
    if event.to in ENDING_JOB:
        end_when_nothing_is_open(draft, name)
    elif event.to == "CREATED" and all(not count(p, "CREATED") for p in pipelines):
        draft.emit(entity, "scheduled", known, incarnation=event.incarnation)
    elif event.to == "SCHEDULED" and states <= {"RUNNING", "FINISHED"} and "RUNNING" in states:
        started = replace(known, started_at=known.started_at or draft.now)
        draft.emit(entity, "running", started, incarnation=event.incarnation)
    elif event.to in ("SCHEDULED", "RUNNING", "DRAINING") and states == {"FINISHED"}:
        end_job(draft, name, "finished")
    elif event.to == "SAVEPOINTING" and states <= {"SUSPENDED", "FINISHED"} and is_kept(job, known.savepoint):
        end_job(draft, name, "savepointed")
    elif event.to == "PAUSING" and states <= {"SUSPENDED", "FINISHED"}:
        draft.emit(entity, "paused", known, incarnation=event.incarnation)
