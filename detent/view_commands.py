"""`detent jobs`, `job`, `checkpoints`, `workers`, `cluster`: how things are, by the log and the heartbeats."""

from __future__ import annotations

from typing import Annotated

import typer

from coordinator import history
from coordinator.lifecycle import states
from coordinator.phrases import count, duration
from coordinator.views import CheckpointView, JobDetail, JobView, ShardView, TakeoverView, TaskView
from detent.looking import Look, looks
from detent.output import say, say_json
from detent.tables import number, pairs, size, table
from detent.times import ago, clock, now_ms

STATES = ("running", "ended", *states("job"))
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]
Incarnation = Annotated[
    int, typer.Option("--incarnation", min=0, help="Which job of this id, by its number; without it the newest.")
]


def _known_states(given: list[str] | None) -> list[str]:
    found = [state if state in STATES else state.upper() for state in given or ()]
    for state in found:
        if state not in STATES:
            raise typer.BadParameter(f"{state!r} is no state; it may be {', '.join(STATES)}")
    return found


@looks
def jobs(
    look: Look,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", callback=_known_states, help="running, ended, or a state; may be given many times."),
    ] = None,
    search: Annotated[str, typer.Option("--search", help="Only ids that contain this.")] = "",
    unhealthy: Annotated[bool, typer.Option("--unhealthy", help="Only those that are not well, and why.")] = False,
    start: Annotated[int, typer.Option("--start", min=0, help="Leave out so many.")] = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many.")] = 50,
) -> None:
    """List jobs, newest first: state, health, rows, age of the last checkpoint.

    An ended job is listed until its summary goes (env.history_ms); it is never among those that run.

    Example: detent jobs --state running --unhealthy
    """
    page = look.model.jobs(state or (), search, start, limit, unhealthy=unhealthy)
    if look.as_json:
        say_json(page)
        return
    if not page.items:
        say("No job is like that." if page.counts else "No jobs yet. `detent submit FILE` runs one.")
        return
    table(
        ["job", "state", "health", "since", "rows", "rows/s", "checkpoint", "since last", "restarts", "reason"],
        [_job_row(job) for job in page.items],
    )
    if page.total > start + len(page.items):
        say(f"\n{len(page.items)} of {page.total:,} jobs; --start {start + len(page.items)} shows the next.")


def _job_row(job: JobView) -> list[str]:
    last = job.seconds_since_last_checkpoint
    return [
        job.id,
        job.state,
        "" if job.is_ended else job.health,
        ago(job.since),
        number(job.rows_published if job.is_ended else max(job.rows, job.rows_published)),
        "" if job.is_ended else number(job.rows_per_second),
        str(job.last_checkpoint_id or job.checkpoints or ""),
        duration(last * 1000) if last is not None else "",
        str(job.restarts or ""),
        job.health_reason or job.reason,
    ]


@looks
def job(look: Look, job_id: JobId, incarnation: Incarnation = 0) -> None:
    """Show all about a job: its state and why, tasks, checkpoints, commands.

    Example: detent job orders
    """
    found = look.model.job(job_id, incarnation)
    if found is None:
        raise look.unknown(job_id)
    if look.as_json:
        say_json(found)
    else:
        print_job(found)


def print_job(found: JobDetail) -> None:
    line, now = found.job, now_ms()
    say(f"{line.id} is {line.state} since {clock(line.since)} ({ago(line.since, now)})")
    last = line.seconds_since_last_checkpoint
    checkpoint = f"{line.last_checkpoint_id} at {clock(line.last_checkpoint_time)}" if line.last_checkpoint_id else ""
    pairs([
        ("reason", line.reason),
        ("health", "" if line.is_ended else f"{line.health}{': ' if line.health_reason else ''}{line.health_reason}"),
        ("cause", line.cause.text if line.cause else ""),
        ("incarnation", f"{line.incarnation}"),
        ("others of this id", ", ".join(str(n) for n in found.incarnations if n != line.incarnation)),
        ("submitted", f"{clock(line.submitted_at)} by {line.submitted_by or 'somebody'}"),
        ("restored from", line.origin),
        ("started", clock(line.started_at)),
        ("ended", clock(line.ended_at)),
        ("id is free", clock(line.free_at)),
        ("rows read", number(line.rows) if line.rows else ""),
        ("rows published", number(line.rows_published)),
        ("rows a second", number(line.rows_per_second) if line.rows_per_second else ""),
        ("last checkpoint", checkpoint),
        ("since the last one", duration(last * 1000) if last is not None else ""),
        ("in flight for", duration(line.pending_checkpoint_age_ms) if line.pending_checkpoint_age_ms else ""),
        ("restarts", str(line.restarts or "")),
    ])  # fmt: skip
    if found.tasks:
        say("")
        table(
            ["task", "source", "state", "attempt", "worker", "since", "rows", "rows/s", "reason"],
            [_task_row(task, now) for task in found.tasks],
        )
    if found.commands:
        say("")
        table(
            ["command", "action", "answer", "by", "at", "reason"],
            [[c.id, c.action, c.state, c.by, clock(c.decided_at), c.reason] for c in found.commands],
        )
    for retry in found.retrying:
        again = f"{retry.what} of {retry.entity} is tried again at {clock(retry.next_at)}"
        say(f"\n{again} (try {retry.tries}): {retry.error}")
    if found.savepoints:
        say("")
        table(["savepoint", "state", "kept"], [[s.name, s.state, clock(s.kept_at)] for s in found.savepoints])
    say(f"\n`detent explain {line.id}` tells why it is so, `detent log {line.id}` every transition.")


def _task_row(task: TaskView, now: int) -> list[str]:
    state = "STALLED" if task.is_stalled else "WAITING" if task.is_waiting else task.state
    return [
        f"{task.pipeline}/{task.task}",
        task.source,
        state,
        str(task.attempt),
        task.worker,
        ago(task.since, now),
        number(task.rows) if task.rows else "",
        number(task.rows_per_second) if task.rows_per_second else "",
        task.reason,
    ]


@looks
def checkpoints(
    look: Look,
    job_id: JobId,
    incarnation: Incarnation = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many, the newest.")] = 50,
) -> None:
    """List a job's checkpoints, newest last: state, rows, size, how long each took, the age of the one in flight.

    The one to restore from is the newest that is COMMITTED. COMPLETED is decided and being published.

    Example: detent checkpoints orders --limit 10
    """
    if look.model.job(job_id, incarnation) is None:
        raise look.unknown(job_id)
    found = history.checkpoints(look.past.history(job_id), job_id, now_ms(), incarnation)
    shown = sorted(found, key=lambda each: (each.triggered_at or 0, each.pipeline))[-limit:]
    if look.as_json:
        say_json(shown)
        return
    if not shown:
        say(f"{job_id} has had no checkpoint yet, or the log no longer tells of any.")
        return
    table(
        ["pipeline", "id", "state", "purpose", "triggered", "took", "age", "rows", "size", "tries", "reason"],
        [_checkpoint_row(one) for one in shown],
    )


def _checkpoint_row(one: CheckpointView) -> list[str]:
    acked = f"{one.acked} of {one.tasks} tasks have acknowledged" if one.state == "TRIGGERED" else ""
    return [
        str(one.pipeline),
        str(one.id),
        one.state,
        one.purpose,
        clock(one.triggered_at),
        duration(one.duration_ms) if one.duration_ms is not None else "",
        duration(one.age_ms) if one.age_ms is not None else "",
        number(one.rows),
        size(one.size),
        str(one.tries) if one.tries > 1 else "",
        one.reason or acked,
    ]


@looks
def workers(look: Look) -> None:
    """List the workers: whether they are heard, their room, and what they run.

    LOST is a coordinator's verdict; SILENT is one that has not been heard for longer than its lease.

    Example: detent workers
    """
    found = look.model.workers()
    if look.as_json:
        say_json(found)
        return
    if not found:
        say("No worker is heard. Start one with `detent worker`.")
        return
    table(
        ["worker", "state", "slots", "heard", "host", "labels", "tasks", "reason"],
        [
            [
                worker.id,
                worker.state,
                f"{worker.used}/{worker.slots}",
                ago(worker.heard_at),
                worker.host,
                ", ".join(f"{name}={value}" for name, value in sorted(worker.labels.items())),
                count(len(worker.tasks), "task") if len(worker.tasks) > 3 else ", ".join(worker.tasks),
                worker.reason,
            ]
            for worker in found
        ],
    )


@looks
def cluster(look: Look) -> None:
    """Show who leads which shard, since when and why, who stands by, and how long takeovers took.

    Example: detent cluster
    """
    found = look.model.cluster_view()
    if look.as_json:
        say_json(found)
        return
    columns = ["shard", "state", "leader", "epoch", "since", "standing by", "jobs", "reason"]
    table(columns, [_shard_row(shard) for shard in found.shards])
    taken = sorted((t for s in found.shards for t in s.takeovers if t.before), key=lambda each: each.at)[-10:]
    if taken:
        say("\nThe last takeovers:")
        columns = ["at", "shard", "epoch", "from", "to", "took", "noticed", "fenced", "read", "first commit", "reason"]
        table(columns, [_takeover_row(each) for each in taken])


def _shard_row(shard: ShardView) -> list[str]:
    standing = ", ".join(shard.standing_by)
    known = [str(shard.shard), shard.state or "UNLED", shard.leader, str(shard.epoch), ago(shard.since), standing]
    return [*known, str(shard.jobs), shard.reason]


def _takeover_row(taken: TakeoverView) -> list[str]:
    parts = (taken.total_ms, taken.detect_ms, taken.fence_ms, taken.replay_ms, taken.first_commit_ms)
    took = [duration(part) if part is not None else "" for part in parts]
    return [clock(taken.at), str(taken.shard), str(taken.epoch), taken.before, taken.leader, *took, taken.reason]
