"""What a job waits for, since when, and what would move it. From what is shown of it and of the cluster; pure."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.phrases import count, duration, listing, sentence, tasks
from coordinator.views import CheckpointView, JobDetail, PipelineView, ShardView, TaskView, View, WorkerView

ENDING = {"FAILING": "FAILED", "CANCELLING": "CANCELED"}
LAST = {"DRAINING": "drain", "SAVEPOINTING": "savepoint", "PAUSING": "pause"}


class Wait(View, frozen=True):
    """One thing that a job waits for."""

    what: str
    since: int | None = None
    until: int | None = None  # when something happens by itself, at the latest
    moves: str = ""  # what would move it


def waits(detail: JobDetail, shard: ShardView | None, workers: Sequence[WorkerView], silent: str = "") -> list[Wait]:
    """Everything that the job waits for. `silent` says why nobody seems to lead its shard; empty when somebody does."""
    job = detail.job
    found: list[Wait] = []
    if silent:
        found.append(
            Wait(
                what=sentence(f"nobody decides for it: {silent}"),
                since=shard.since if shard else None,
                moves="Start a coordinator (`detent coordinator`): it goes on where the last one was.",
            )
        )
    if job.is_ended:
        return found + _cleanup(detail)
    if job.state == "PAUSED":
        moves = f"`detent resume {job.id}` lets it go on from its last checkpoint."
        return [*found, Wait(what="Somebody's word: it is paused.", since=job.since, moves=moves)]
    if job.state in ENDING:
        found.append(
            Wait(
                what=f"What it has completed to be published, before it is {ENDING[job.state]}.",
                since=job.since,
                moves="It ends by itself then; the checkpoint below says how far that is.",
            )
        )
    found += _tasks(detail, workers)
    for pipeline in detail.pipelines:
        found += _checkpoint(job.state, pipeline)
    if not found and job.state in ("RUNNING", *LAST):
        found += _runs(detail)
    return found


def _runs(detail: JobDetail) -> list[Wait]:
    job = detail.job
    due = min((p.next_checkpoint_at for p in detail.pipelines if p.next_checkpoint_at), default=None)
    if job.mode == "STREAMING":
        return [
            Wait(what="Nothing: it runs, and has no end of its own.", until=due, moves="Its next checkpoint is due.")
        ]
    ready = sum(pipeline.ready for pipeline in detail.pipelines)
    left = len(detail.tasks) - ready
    return [
        Wait(
            what=f"Nothing but its data: {count(left, 'task')} of {len(detail.tasks)} still read.",
            until=due,
            moves="It ends by itself when all have read their sources to the end.",
        )
    ]


def _tasks(detail: JobDetail, workers: Sequence[WorkerView]) -> list[Wait]:
    found = []
    room = [task for task in detail.tasks if task.is_waiting]
    if room:
        found.append(_room(detail, room, workers))
    for task in detail.tasks:
        name = tasks([(task.pipeline, task.task)])
        if task.state == "CREATED" and task.restarts_at and not task.is_waiting:
            why = task.reason.removeprefix("restarts: ")
            what = sentence(f"{name} to start again as attempt {task.attempt}, after: {why}")
            found.append(Wait(what=what, since=task.since, until=task.restarts_at, moves="It starts by itself then."))
        elif task.state == "DEPLOYING":
            what = sentence(f"worker {task.worker} to say that {name} (attempt {task.attempt}) runs")
            moves = f"It is asked again by itself. If {task.worker} is gone, its lease runs out and the task moves."
            found.append(Wait(what=what, since=task.since, moves=moves))
        elif task.is_stalled:
            what = sentence(f"{name} on {task.worker} to make progress: {task.reason}")
            moves = (
                f"Look at {task.worker}'s log. `detent repair {detail.job.id}` fails the attempt and starts a new one; "
                "env.restart_stalled does so by itself."
            )
            found.append(Wait(what=what, since=task.since, moves=moves))
    return found


def _room(detail: JobDetail, room: Sequence[TaskView], workers: Sequence[WorkerView]) -> Wait:
    labels = dict(detail.specification.get("env", {}).get("labels", {}))
    usable = [worker for worker in workers if worker.state == "HEARD"]
    fits = [worker for worker in usable if labels.items() <= worker.labels.items()]
    if not usable:
        why, moves = "no worker is heard", "Start one: `detent worker`."
    elif not fits:
        wanted = listing(f"{name}={value}" for name, value in sorted(labels.items()))
        why = f"none of the {count(len(usable), 'worker')} that are heard has the labels {wanted}"
        moves = "Start a worker with these labels (worker.labels), or submit the job without env.labels."
    else:
        said = listing(f"{worker.id} uses {worker.used} of {worker.slots}" for worker in fits)
        why = f"all slots are taken ({said})"
        moves = "Start another worker (`detent worker`), or wait until other jobs end: it is placed at once then."
    since = min((task.since for task in room if task.since), default=None)
    names = tasks((task.pipeline, task.task) for task in room)
    return Wait(what=sentence(f"room on a worker for {names}: {why}"), since=since, moves=moves)


def _checkpoint(state: str, pipeline: PipelineView) -> list[Wait]:
    pending, newest, found = pipeline.pending, pipeline.newest, list[Wait]()
    if newest is not None and newest.state == "COMPLETED":
        found.append(_publishing(pipeline, newest))
    if pending is not None and pending.state == "TRIGGERED" and (state != "RUNNING" or pending.purpose != "PERIODIC"):
        names = tasks((pipeline.pipeline, task) for task in pending.waits_for)
        what = f"{names} to acknowledge the {pending.purpose.lower()} checkpoint {pending.id}"
        moves = "It is given up and taken again if it is not acknowledged in time."
        found.append(Wait(what=sentence(what), since=pending.triggered_at, moves=moves))
    elif pipeline.unhealthy:
        moves = "See which task does not acknowledge, and its worker's log; `detent checkpoints` shows all of them."
        since = pipeline.last_checkpoint_time
        found.append(Wait(what=sentence(f"a checkpoint: it {pipeline.unhealthy}"), since=since, moves=moves))
    return found


def _publishing(pipeline: PipelineView, newest: CheckpointView) -> Wait:
    error = f"; the last try failed: {newest.reason}" if newest.reason else ""
    what = f"checkpoint {newest.id} of pipeline {pipeline.pipeline} to be published (try {newest.tries}{error})"
    moves = "It is tried again by itself, with growing pauses; what stands in the way at the sink has to go."
    if not newest.reason and newest.tries <= 1:
        moves = "A worker is at it; it is asked again if it does not answer."
    return Wait(what=sentence(what), since=newest.triggered_at, until=newest.next_try_at, moves=moves)


def _cleanup(detail: JobDetail) -> list[Wait]:
    job, found = detail.job, list[Wait]()
    if detail.summary is not None and detail.summary.can_be_restored:
        moves = f"`detent restore {job.id}` runs it again from what it has committed last."
        found.append(Wait(what="Nothing: it has ended, and can be restored.", until=job.listed_until, moves=moves))
    if job.free_at is None:
        return found
    stuck = [retry for retry in detail.retrying if retry.what == "cleanup"]
    if stuck:
        what = f"what it staged to be removed (try {stuck[0].tries}): {stuck[0].error}"
        moves = "It is tried again by itself; until then its id can't be used."
        return [*found, Wait(what=sentence(what), since=job.ended_at, until=stuck[0].next_at, moves=moves)]
    delay = f" {duration(job.free_at - job.ended_at)} after its end" if job.ended_at else ""
    what = f"its cleanup, which is due{delay}; its id can be used again then"
    return [*found, Wait(what=sentence(what), since=job.ended_at, until=job.free_at, moves="It happens by itself.")]
