"""Where tasks run: placing them on workers with room, spread evenly, and ordering their deployment.

Pure decisions over a Draft.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinator.draft import Draft
from coordinator.lifecycle import ENDING_JOB, TERMINAL_JOB
from coordinator.state import JobView, PipelineView, State, TaskId
from events.keys import named
from events.records import Checkpoint, Deploy, Event, Pipeline, Task

WAITS = "it waits for room on a worker"
PLACED_PER_DECISION = 1000
PATIENCE_MS = 1000  # before workers that refused are asked again


def task_of(event: Event) -> Task:
    assert isinstance(event.state, Task)
    return event.state


def free_slots(state: State, worker: str) -> int:
    """Room by what the worker said and by what this shard has placed there since. Other shards place there too: the
    worker itself has the last word."""
    heartbeat = state.heard[worker].heartbeat
    return heartbeat.slots - max(len(heartbeat.tasks), len(state.tasks_on.get(worker, ())))


def is_lost(state: State, worker: str) -> bool:
    verdict = state.workers.get(worker)
    return verdict is not None and verdict.to == "LOST"


def usable(state: State, worker: str) -> bool:
    heard = state.heard.get(worker)
    return heard is not None and not heard.heartbeat.draining and not is_lost(state, worker)


def choose_worker(state: State, labels: dict[str, str], refused_by: tuple[str, ...]) -> str | None:
    """The worker with the most room that has all the labels; the first by name among equals, so that the choice is the
    same wherever it is made."""
    best, most = None, 0
    for worker in sorted(state.heard):
        if worker in refused_by or not usable(state, worker):
            continue
        if has_labels(state, worker, labels) and (room := free_slots(state, worker)) > most:
            best, most = worker, room
    return best


def has_labels(state: State, worker: str, labels: dict[str, str]) -> bool:
    return labels.items() <= state.heard[worker].heartbeat.labels.items()


def place_waiting(draft: Draft) -> None:
    """Place what waits for room, as far as there is any."""
    left = PLACED_PER_DECISION
    for job in list(draft.state.waiting):
        if left <= 0 or not has_room(draft.state):
            return
        left -= place_job(draft, job, left)


def place_job(draft: Draft, job: str, limit: int = PLACED_PER_DECISION) -> int:
    """Place the tasks of a job that wait for room, or let them wait visibly. Returns how many it looked at."""
    waiting = list(draft.state.waiting.get(job, ()))[:limit]
    for task in waiting:
        place(draft, task)
    return len(waiting)


def has_room(state: State) -> bool:
    return any(usable(state, worker) and free_slots(state, worker) > 0 for worker in state.heard)


def place(draft: Draft, task: TaskId) -> None:
    name, number, index = task
    job = draft.state.jobs[name]
    event = job.pipelines[number].tasks[index]
    if job.event is None or job.event.to in TERMINAL_JOB | ENDING_JOB | {"PAUSED"}:
        return
    known = task_of(event)
    worker = choose_worker(draft.state, job.plan.env.labels, known.refused_by)
    entity = named("task", *task)
    if worker is None:
        refused = bool(known.refused_by)
        if known.reason != WAITS or refused:
            later = draft.now + PATIENCE_MS if refused else 0  # then all are asked again
            state = replace(known, refused_by=(), reason=WAITS, worker="")
            draft.emit(entity, "waiting", state, incarnation=event.incarnation, attempt=event.attempt, due_at=later)
        return
    held = known.held_by if worker in known.held_by else (*known.held_by, worker)
    instance = draft.state.heard[worker].heartbeat.instance
    state = replace(known, worker=worker, instance=instance, since=draft.now, held_by=held, reason="")
    due_at = draft.now + job.plan.env.deploy_timeout_ms
    placed = draft.emit(entity, "placed", state, incarnation=event.incarnation, attempt=event.attempt, due_at=due_at)
    order_deploy(draft, job, number, index, placed)


def order_deploy(draft: Draft, job: JobView, number: int, index: int, task: Event) -> None:
    """The same attempt always starts from the same place: the newest completed checkpoint when it was created."""
    pipeline = job.pipelines[number]
    assert pipeline.event is not None
    assert isinstance(pipeline.event.state, Pipeline)
    checkpoint, position = restore_point(pipeline, index)
    action = Deploy(
        specification=job.body,
        checkpoint=checkpoint,
        position=position,
        next_checkpoint=pipeline.event.state.next_checkpoint,
    )
    draft.order(task, number, index, task_of(task).worker, action)


def restore_point(pipeline: PipelineView, index: int) -> tuple[int, bytes]:
    if pipeline.checkpoint is None:
        return 0, b""
    checkpoint = pipeline.checkpoint.state
    assert isinstance(checkpoint, Checkpoint)
    return checkpoint.id, next((ack.position for ack in checkpoint.acks if ack.task == index), b"")
