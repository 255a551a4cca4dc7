"""Whatever comes in, however odd, in whatever state: it is decided or ignored with a reason. Nothing stops the shard,
and what the leader knows stays what the log says."""

from __future__ import annotations

import json
from collections.abc import Callable

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from coordinator.core import note_heartbeat, note_silence
from coordinator.draft import Gone, Withdrawal
from coordinator.quarantine import Impossible, Unreadable
from coordinator.repair import REPAIRS
from coordinator.state import entity_of
from events.keys import KINDS, MAX_NAME_BYTES, Entity, order_key
from events.records import (
    Cancel,
    CheckpointAcked,
    CheckpointCommitted,
    CheckpointFailed,
    Command,
    CommandAction,
    Event,
    Heartbeat,
    Order,
    Pause,
    Repair,
    Report,
    ReportHappening,
    Restore,
    Resume,
    StagingRemoved,
    Stop,
    Submit,
    TakeSavepoint,
    TaskFailed,
    TaskPosition,
    TaskProgress,
    TaskReady,
    TaskRunning,
    TaskStalled,
)
from tests.shard import LEASE_MS, Shard, specification
from tests.strategies import CODEC, TEXT, record_of
from tests.test_coordinator_core import same_after_replay

RECORD_BYTES = 2 * 1024 * 1024  # half of what a topic takes
Act = Callable[[Shard], None]

JOBS = st.sampled_from(["a", "a", "a", "b", "nobody"])
NAMES = st.one_of(JOBS, TEXT, st.sampled_from(["", "x" * 1_000_000, "a/b", "ü" * 256, "ü" * 257]))
TEXTS = st.one_of(TEXT, st.just("y" * 3_900_000))
SMALL = st.integers(-1, 3)
NUMBERS = st.one_of(SMALL, SMALL, st.integers(-(2**63), 2**63 - 1))
WORKERS = st.one_of(st.sampled_from(["w1", "w2"]), NAMES)
BODIES = st.one_of(
    st.builds(lambda n, retries: specification(n, restart={"retries": retries}), st.integers(1, 3), st.integers(0, 3)),
    st.sampled_from(
        [specification(2, checkpoint={"interval_ms": 50}), specification(0), specification(10_000_000), "{}", "", "["]
    ),
    st.just(json.dumps({"source": [{"name": "x" * 1_000_000, "kind": "k"}], "sink": []})),
    TEXT,
)
ENTITIES = st.one_of(
    st.sampled_from(["job/a", "task/a/0/0", "pending/a/0", "checkpoint/a/0", "cleanup/a/1", "cleanup/a/2", "job/b"]),
    st.sampled_from(sorted(KINDS)).map(lambda kind: f"{kind}/a/0/0"),
    TEXT,
)
STATES = st.sampled_from(["FAILING", "FAILED", "ABORTED", "COMMITTED", "ABANDONED", "REMOVED", "RUNNING", ""])
ACTIONS: st.SearchStrategy[CommandAction] = st.one_of(
    st.builds(Submit, specification=BODIES),
    st.builds(Cancel, reason=TEXTS),
    st.builds(TakeSavepoint, name=st.one_of(st.sampled_from(["s1", "s2"]), NAMES), stop=st.booleans()),
    st.builds(
        Restore,
        savepoint=st.one_of(st.sampled_from(["", "", "s1", "s2"]), TEXT),
        specification=st.one_of(st.just(""), BODIES),
        elsewhere=st.one_of(
            st.just(()), st.tuples(st.builds(TaskPosition, pipeline=NUMBERS, task=NUMBERS, position=st.binary()))
        ),
    ),
    st.builds(Stop),
    st.builds(Pause),
    st.builds(Resume),
    st.builds(Repair, entity=ENTITIES, to=STATES, reason=TEXTS),
)
HAPPENINGS: st.SearchStrategy[ReportHappening] = st.one_of(
    st.sampled_from(
        [
            TaskRunning(),
            TaskReady(),
            TaskFailed(reason="boom"),
            TaskFailed(reason="y" * 3_900_000, lasting=True),
            TaskStalled(progressed_at=-1),
            StagingRemoved(),
        ]
    ),
    st.builds(CheckpointAcked, checkpoint=NUMBERS, position=st.binary(max_size=9)),
    st.builds(CheckpointCommitted, checkpoint=NUMBERS, rows=NUMBERS),
    st.builds(CheckpointFailed, checkpoint=NUMBERS, reason=TEXTS, lasting=st.booleans(), conclusive=st.booleans()),
    record_of("Report").map(lambda report: report.happening),
)
COMMANDS = st.builds(
    Command,
    id=st.one_of(st.sampled_from(["1", "2", "3"]), NAMES),
    job=NAMES,
    by=st.one_of(st.sampled_from(["", "me"]), TEXTS),
    time=NUMBERS,
    action=ACTIONS,
)
REPORTS = st.builds(
    Report,
    incarnation=NUMBERS,
    job=NAMES,
    pipeline=NUMBERS,
    task=NUMBERS,
    attempt=NUMBERS,
    worker=WORKERS,
    time=NUMBERS,
    happening=HAPPENINGS,
)
PROGRESS = st.builds(TaskProgress, incarnation=NUMBERS, job=NAMES, pipeline=NUMBERS, task=NUMBERS, attempt=NUMBERS)
HEARTBEATS = st.builds(
    Heartbeat,
    worker=WORKERS,
    instance=TEXT,
    time=NUMBERS,
    slots=st.one_of(st.integers(0, 4), NUMBERS),
    draining=st.booleans(),
    tasks=st.lists(PROGRESS, max_size=3).map(tuple),
)


def says(report: Report) -> Act:
    """As it is; or, more often to the point, of what runs."""

    def act(shard: Shard) -> None:
        shard.give(report)

    return act


def says_of_what_runs(happening: ReportHappening, index: int) -> Act:
    def act(shard: Shard) -> None:
        running = sorted(task for tasks in shard.state.tasks_on.values() for task in tasks)
        if not running:
            return
        name, number, task = running[index % len(running)]
        view = shard.state.jobs[name]
        known = view.pipelines[number].tasks[task]
        pending, checkpoint = view.pipelines[number].pending, view.pipelines[number].checkpoint
        at = pending.state.id if pending else checkpoint.state.id if checkpoint else 1  # type: ignore[union-attr]
        said = replace(happening, checkpoint=at) if hasattr(happening, "checkpoint") else happening
        committing = isinstance(said, CheckpointCommitted) or (isinstance(said, CheckpointFailed) and index % 2)
        shard.report(name, -1 if committing else task, said, attempt=known.attempt, worker=known.state.worker)  # type: ignore[union-attr]

    return act


def beats(heartbeat: Heartbeat) -> Act:
    def act(shard: Shard) -> None:
        note_heartbeat(shard.state, heartbeat, shard.now)
        shard.give(heartbeat)

    return act


def asks(command: Command) -> Act:
    def act(shard: Shard) -> None:
        shard.give(command)

    return act


def passes(ms: int) -> Act:
    def act(shard: Shard) -> None:
        shard.wait(ms)
        note_silence(shard.state, shard.now)
        shard.sweep()

    return act


def goes_well(shard: Shard) -> None:
    """Workers do what they were told: all run, acknowledge, publish and remove."""
    for name, job in list(shard.state.jobs.items()):
        for incarnation in list(job.cleanups):
            shard.report(name, -1, StagingRemoved(), pipeline=-1, worker="w1", incarnation=incarnation)
        for number, pipeline in list(job.pipelines.items()):
            pending, checkpoint = pipeline.pending, pipeline.checkpoint
            for index, task in list(pipeline.tasks.items()):
                who = {"pipeline": number, "attempt": task.attempt, "worker": task.state.worker}  # type: ignore[union-attr]
                if pending is not None and pending.to == "TRIGGERED":
                    acked = CheckpointAcked(checkpoint=pending.state.id, position=b"7")  # type: ignore[union-attr]
                    shard.report(name, index, acked, **who)
                else:
                    shard.report(name, index, TaskRunning(), **who)
            if checkpoint is not None and checkpoint.to == "COMPLETED":
                done = CheckpointCommitted(checkpoint=checkpoint.state.id)  # type: ignore[union-attr]
                shard.report(name, -1, done, pipeline=number, worker="w1")


def takes_over(shard: Shard) -> None:
    shard.elect()
    shard.worker("w1")


def loses(entity: Entity) -> Act:
    """Somebody finds that a record can't be read, or that a job can't be decided on."""

    def act(shard: Shard) -> None:
        known = shard.state.get(entity)
        if known is None:
            shard.give(Impossible("a", "odd"))
        else:
            shard.give(Unreadable(entity, known.incarnation, "rotten"))

    return act


KEPT = st.sampled_from(
    ["job/a", "task/a/0/0", "specification/a", "pipeline/a/0", "checkpoint/a/0", "pending/a/0", "cleanup/a/1",
     "ready/a/0/0", "ack/a/0/0", "summary/a/1", "command/a/1", "savepoint/a/s1", "worker/w1"]
).map(entity_of)  # fmt: skip
USUAL = st.sampled_from(
    [Cancel(), Stop(), Pause(), Resume(), Restore(), Restore(savepoint="s1"), TakeSavepoint(name="s1"),
     TakeSavepoint(name="s2", stop=True), Submit(specification=specification(2)),
     *(Repair(entity=f"{kind}/a{rest}", to=to, reason="it is stuck")
       for (kind, to) in REPAIRS for rest in ([""] if kind == "job" else ["/0/0"] if kind == "task" else ["/0", "/1"]))]
)  # fmt: skip
SENSIBLE = st.one_of(
    st.builds(asks, st.builds(Command, id=st.uuids().map(str), job=st.just("a"), by=st.just("me"), action=USUAL)),
    st.builds(asks, st.builds(Command, id=st.uuids().map(str), job=st.just("a"), by=st.just("me"), action=USUAL)),
    st.builds(asks, st.builds(Command, id=st.uuids().map(str), job=JOBS, by=st.just("me"), action=ACTIONS)),
    st.builds(says_of_what_runs, HAPPENINGS, st.integers(0, 7)),
    st.sampled_from([10, 500, 3000, 70_000]).map(passes),
    st.sampled_from([goes_well, takes_over]),
)
ODD = st.one_of(COMMANDS.map(asks), REPORTS.map(says), HEARTBEATS.map(beats), KEPT.map(loses))
MIXED = st.lists(st.one_of(st.just(goes_well), SENSIBLE, SENSIBLE, SENSIBLE, ODD), max_size=30)
STARTS: dict[str, list[Act]] = {
    "submitted": [],
    "running": [goes_well],
    "checkpointed": [goes_well, passes(500), goes_well, goes_well],
    "pending": [goes_well, passes(500)],
    "completed": [goes_well, passes(500), goes_well],
    "paused": [goes_well, asks(Command(id="p", job="a", action=Pause())), goes_well, goes_well],
    "canceled": [goes_well, asks(Command(id="c", job="a", action=Cancel()))],
    "savepointed": [
        goes_well,
        asks(Command(id="s", job="a", action=TakeSavepoint(name="s1", stop=True))),
        goes_well,
        goes_well,
    ],
    "ready": [goes_well, says_of_what_runs(TaskReady(), 0), says_of_what_runs(TaskReady(), 1)],
    "cleaned up": [goes_well, passes(500), goes_well, goes_well, asks(Command(id="c", job="a", action=Cancel())),
                   passes(500), goes_well],
}  # fmt: skip
ACTS: st.SearchStrategy[list[Act]] = st.builds(
    lambda start, acts: [*STARTS[start], *acts], st.sampled_from(sorted(STARTS)), MIXED
)
ANOTHER_JOB = Command(id="1", job="b", action=Submit(specification=specification(2)))


@given(ACTS)
@settings(max_examples=150)
@example([beats(Heartbeat(worker="", instance="", time=0, slots=9)), asks(ANOTHER_JOB), passes(3 * LEASE_MS)])
def test_nothing_that_comes_in_stops_the_shard(acts: list[Act]) -> None:
    shard = Shard()
    shard.worker("w1")
    shard.submit("a", 2, checkpoint={"interval_ms": 400, "timeout_ms": 1000}, cleanup_delay_ms=200, history_ms=60_000)
    for act in acts:
        written, ordered = len(shard.log), len(shard.orders)
        act(shard)
        same_after_replay(shard)
        for record in (*shard.log[written:], *shard.orders[ordered:]):
            fits(record)
    shard.elect()
    same_after_replay(shard)


def fits(record: Event | Gone | Order | Withdrawal) -> None:
    """The topics take it: it can be encoded, and is not larger than a record may be."""
    if isinstance(record, Event | Order):
        assert len(CODEC.encode(record)) < RECORD_BYTES
    if isinstance(record, Order | Withdrawal):
        assert len(order_key(record.worker, record.job, 0, 0)) < 4 * 3 * MAX_NAME_BYTES
