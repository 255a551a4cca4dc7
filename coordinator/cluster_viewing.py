"""Who is there, for people: shards with their leaders and takeovers, coordinators, workers. From the states of all
shards and what coordinators and workers said last, at a time. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest

from msgspec.structs import replace

from coordinator.lifecycle import TERMINAL_JOB
from coordinator.state import Heard, State
from coordinator.views import CoordinatorView, ShardView, TakeoverView, WorkerView
from events.records import Beat, Event, Leader, Worker

MOST_TASKS = 100  # of a worker that are named
MOST_TAKEOVERS = 50  # of a shard that are remembered


def takeover_view(shard: int, event: Event, before: str = "", first_commit_ms: int = 0) -> TakeoverView:
    """An election on the log. How long its first transaction took is not on it: the leader's beats say so."""
    assert isinstance(event.state, Leader)
    known = event.state
    told = bool(known.detect_ms or known.fence_ms or known.replay_ms)
    total = known.detect_ms + known.fence_ms + known.replay_ms + first_commit_ms
    return TakeoverView(
        shard=shard,
        epoch=event.epoch,
        at=event.time,
        leader=known.coordinator,
        before=before,
        reason=known.reason,
        detect_ms=known.detect_ms if told else None,
        fence_ms=known.fence_ms if told else None,
        replay_ms=known.replay_ms if told else None,
        first_commit_ms=first_commit_ms or None,
        total_ms=total if told else None,
    )


def shard_view(
    state: State, takeovers: Sequence[TakeoverView] = (), beats: Iterable[Beat] = (), next_offset: int = 0
) -> ShardView:
    event = state.leader
    known = event.state if event is not None and isinstance(event.state, Leader) else Leader(coordinator="")
    standing = (beat.coordinator for beat in beats if state.shard in beat.standing_by)
    alive = sum(job.event is not None and job.event.to not in TERMINAL_JOB for job in state.jobs.values())
    return ShardView(
        shard=state.shard,
        state=event.to if event else "",
        leader=known.coordinator if event is not None and event.to == "LEADING" else "",
        epoch=state.epoch,
        since=event.time if event else None,
        address=known.address,
        instance=known.instance,
        version=known.version,
        reason=known.reason,
        standing_by=tuple(sorted(standing)),
        jobs=alive,
        next_offset=next_offset,
        takeovers=tuple(takeovers),
    )


def coordinator_view(beat: Beat, heard_at: int, now: int) -> CoordinatorView:
    return CoordinatorView(
        id=beat.coordinator,
        instance=beat.instance,
        address=beat.address,
        version=beat.version,
        leads={led.shard: led.epoch for led in beat.shards},
        standing_by=beat.standing_by,
        started_at=beat.started_at or None,
        heard_at=heard_at,
        seconds_since_heard=max(0, now - heard_at) / 1000,
    )


def worker_views(
    states: Sequence[State], heard: Mapping[str, Heard] | None, now: int, lease_ms: int
) -> list[WorkerView]:
    """Everyone who was heard, or has tasks, or was given up, by name. In the past nobody knows who was heard (None)."""
    names = set(heard or ())
    for state in states:
        names |= {*state.tasks_on, *(worker for worker, event in state.workers.items() if event.to == "LOST")}
    found = [_worker(name, states, (heard or {}).get(name), now, lease_ms) for name in sorted(names - {""})]
    if heard is not None:
        return found
    past = "it had tasks then; what it said is not on the log"
    return [worker if worker.state == "LOST" else replace(worker, state="UNKNOWN", reason=past) for worker in found]


def _worker(name: str, states: Sequence[State], heard: Heard | None, now: int, lease_ms: int) -> WorkerView:
    on_it = [task for state in states for task in state.tasks_on.get(name, ())]
    tasks = nsmallest(MOST_TASKS, on_it)
    verdicts = [event for state in states if (event := state.workers.get(name)) is not None and event.to == "LOST"]
    said = heard.heartbeat if heard else None
    silent_ms = now - heard.at if heard else None
    reason = ""
    if verdicts:
        verdict = max(verdicts, key=lambda event: event.time).state
        state, reason = "LOST", verdict.reason if isinstance(verdict, Worker) else ""
    elif said is None or silent_ms is None:
        state, reason = "SILENT", "nothing was heard of it"
    elif silent_ms > lease_ms:
        state, reason = "SILENT", f"not heard for {silent_ms} ms, longer than its lease of {lease_ms} ms"
    else:
        state = "DRAINING" if said.draining else "HEARD"
    return WorkerView(
        id=name,
        state=state,
        instance=said.instance if said else "",
        host=said.host if said else "",
        version=said.version if said else "",
        slots=said.slots if said else 0,
        used=max(len(said.tasks) if said else 0, len(on_it)),
        labels=dict(said.labels) if said else {},
        heard_at=heard.at if heard else None,
        seconds_since_heard=max(0, silent_ms) / 1000 if silent_ms is not None else None,
        tasks=tuple("/".join(map(str, task)) for task in tasks),
        reason=reason,
    )
