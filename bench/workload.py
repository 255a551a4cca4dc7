"""A log like a busy shard's: jobs come, deploy, run, checkpoint and end; each key is written again and again."""

from __future__ import annotations

import random
from collections.abc import Iterator

from events.records import Ack, Cause, Checkpoint, Cursor, Event, EventState, Job, Pipeline, Position, ReadyMark, Task

START_MS = 1_790_000_000_000
TASKS = 5
KEYS_PER_JOB = 3 + 2 * TASKS  # job, pipeline, checkpoint; task and ready mark for each task
GROUP = 1000
JOBS_AT_ONCE = 200
LIFE = ("CREATED", "DEPLOYING", "RUNNING", "READY_TO_CLOSE", "FINISHED")


def entities(job: int) -> list[str]:
    name = f"orders-{job:06d}"
    of_tasks = [f"{kind}/{name}/0/{task}" for kind in ("task", "ready") for task in range(TASKS)]
    return [f"job/{name}", f"pipeline/{name}/0", f"checkpoint/{name}/0", *of_tasks]


def state_of(entity: str, rng: random.Random, step: int) -> EventState:
    kind = entity.partition("/")[0]
    if kind == "job":
        return Job(pipelines=1, submitted_at=START_MS, restarts=step % 3)
    if kind == "pipeline":
        return Pipeline(tasks=TASKS, next_checkpoint=step + 1)
    if kind == "checkpoint":
        acks = tuple(Ack(checkpoint=step, task=t, attempt=1, position=b"%016d" % step) for t in range(2))
        return Checkpoint(id=step, triggered_at=START_MS + step, acks=acks)
    if kind == "ready":
        return ReadyMark(worker=f"worker-{rng.randrange(8)}", position=b"%016d" % step)
    return Task(worker=f"worker-{rng.randrange(8)}", since=START_MS + step, rows=step * 1000)


def event(entity: str, state: EventState, sequence: int, step: int, *, epoch: int = 3) -> Event:
    kind, _, rest = entity.partition("/")
    return Event(
        epoch=epoch,
        logic=1,
        incarnation=1 + sequence // 1000,
        attempt=1 if kind in ("task", "ready") else 0,
        due_at=START_MS + sequence if kind in ("pipeline", "checkpoint") else 0,
        sequence=sequence,
        time=START_MS + sequence,
        entity=entity,
        transition="progressed",
        from_=LIFE[step % len(LIFE)],
        to=LIFE[(step + 1) % len(LIFE)],
        job=rest.split("/")[0] if kind != "cursor" else "",
        cause=Cause(kind="INPUT", topic="reports", partition=0, offset=sequence),
        state=state,
    )


def cursor(shard: int, sequence: int) -> Event:
    positions = (Position(topic="commands", partition=shard, offset=sequence // 50),
                 Position(topic="reports", partition=shard, offset=sequence))  # fmt: skip
    return event(f"cursor/{shard}", Cursor(positions=positions, incarnations=sequence), sequence, 0)


def groups(events: int, keys: int, *, seed: int = 7, shard: int = 0) -> Iterator[list[Event]]:
    """Transactions of GROUP events, the last of each the cursor: `events` in all, over `keys` entities. Jobs overlap:
    JOBS_AT_ONCE are alive at a time, the way they are on a busy shard."""
    rng = random.Random(seed)
    names = [entity for job in range(keys // KEYS_PER_JOB + 1) for entity in entities(job)][:keys]
    born = 0
    for sequence in range(0, events, GROUP):
        step, size = sequence // GROUP, min(GROUP, events - sequence)
        grown = max(1, len(names) * (sequence + size) // events)
        alive = names[max(0, grown - JOBS_AT_ONCE * KEYS_PER_JOB) : grown]
        chosen = names[born:grown] + rng.choices(alive, k=size - 1 - (grown - born))
        born = grown
        yield [
            *(event(entity, state_of(entity, rng, step), sequence + i, step) for i, entity in enumerate(chosen)),
            cursor(shard, sequence + size - 1),
        ]
