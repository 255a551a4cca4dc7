"""Scenarios about every moment of a job's life, by the pure core: each is looked at after every single input."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordinator.core import Timer
from coordinator.draft import Gone
from coordinator.lifecycle import TERMINAL_JOB
from coordinator.state import State, entity_of, fold
from events.records import (
    Cancel,
    CheckpointAcked,
    CheckpointCommitted,
    CheckpointFailed,
    Command,
    Event,
    Pause,
    Resume,
    StagingRemoved,
    TaskFailed,
    TaskReady,
    TaskRunning,
)
from tests.shard import Shard

ENV = {
    "checkpoint": {"interval_ms": 100, "timeout_ms": 400},
    "restart": {"retries": 5, "backoff_ms": 50},
    "cleanup_delay_ms": 200,
    "history_ms": 50_000,
}


def live(shard: Shard, tasks: int = 2) -> Iterator[str]:
    """A long life, step by step: checkpoints that fail and time out, a crash, a pause, marks, the end, cleanup."""
    shard.worker("w1")
    shard.worker("w2")
    yield shard.submit("a", tasks, **ENV).to
    yield from run(shard, tasks)
    yield from checkpoint(shard, tasks)
    shard.wait(100)
    yield "triggered again"
    shard.report("a", 0, CheckpointFailed(checkpoint=2, reason="disk full"))
    yield "failed"
    shard.wait(1000)
    yield "timed out"
    shard.report("a", 1, TaskFailed(reason="boom"))
    yield "crashed"
    shard.wait(300)
    yield from run(shard, tasks)
    yield shard.command("a", Pause()).to
    yield from checkpoint(shard, tasks)
    assert shard.job() == "PAUSED"
    yield shard.command("a", Resume()).to
    yield from run(shard, tasks)
    for task in range(tasks):
        shard.report("a", task, TaskReady())
        yield "marked"
    shard.elect()
    yield "another leads"
    shard.worker("w1")
    shard.worker("w2")
    yield from checkpoint(shard, tasks)
    assert shard.job() == "FINISHED"
    shard.wait(200)
    yield "due"
    shard.report("a", -1, StagingRemoved(), pipeline=-1, worker="w1", incarnation=1)
    yield "cleaned up"


def run(shard: Shard, tasks: int) -> Iterator[str]:
    for task in range(tasks):
        shard.report("a", task, TaskRunning())
        yield "running"


def checkpoint(shard: Shard, tasks: int) -> Iterator[str]:
    """The one in flight, or the next: acknowledged and committed."""
    pipeline = shard.state.jobs["a"].pipelines[0]
    if pipeline.pending is None or pipeline.pending.to != "TRIGGERED":
        shard.wait(100)
    assert pipeline.pending is not None
    number = pipeline.pending.state.id  # type: ignore[union-attr]
    for task in range(tasks):
        shard.report("a", task, CheckpointAcked(checkpoint=number, position=b"1"))
        yield "acknowledged"
    shard.report("a", -1, CheckpointCommitted(checkpoint=number), worker="w1")
    yield "committed"


def newest(shard: Shard) -> State:
    """The whole log, replayed."""
    state = State(0)
    for event in shard.log:
        fold(state, entity_of(event.entity), event if isinstance(event, Event) else None)
    return state


@pytest.fixture
def shard() -> Shard:
    return Shard()


def test_Z4_what_runs_always_has_a_next_checkpoint_due(shard: Shard) -> None:
    looked_at = 0
    for step in live(shard):
        job = newest(shard).jobs.get("a")
        pipeline = job.pipelines.get(0) if job else None
        if pipeline is None or pipeline.event is None or pipeline.event.to != "RUNNING":
            continue
        looked_at += 1
        parts = (pipeline.event, pipeline.pending, pipeline.checkpoint)
        assert any(part.due_at for part in parts if part is not None), f"nothing is due: {step}"
    assert looked_at > 10


def test_R7_marks_outlive_coordinators_and_go_with_the_cleanup(shard: Shard) -> None:
    marked = 0
    for step in live(shard):
        ready = {e.entity for e in shard.log if e.entity.startswith("ready/")}
        job = newest(shard).jobs.get("a")
        marks = job.pipelines[0].ready if job and job.pipelines else {}
        if step == "another leads":
            marked = len(marks)
        if step == "cleaned up":
            assert ready == {"ready/a/0/0", "ready/a/0/1"}
            assert not marks
    assert marked == 2


@pytest.mark.parametrize("last_step", range(1, 26))
def test_R7_no_key_of_a_job_is_orphaned_whenever_it_is_canceled(shard: Shard, last_step: int) -> None:
    for number, _ in enumerate(live(shard), 1):
        if number == last_step:
            break
    shard.command("a", Cancel())
    while shard.job() == "CANCELLING":  # a checkpoint was completed: its rows are still published
        shard.report("a", -1, CheckpointCommitted(checkpoint=shard.state.jobs["a"].pipelines[0].checkpoint.state.id),  # type: ignore[union-attr]
                     worker="w1")  # fmt: skip
    shard.elect()
    shard.worker("w1")
    shard.wait(200)
    shard.report("a", -1, StagingRemoved(), pipeline=-1, worker="w1", incarnation=1)
    assert "a" not in newest(shard).jobs, newest(shard).jobs["a"]


def test_B9_a_time_out_changes_nothing_that_has_ended(shard: Shard) -> None:
    """Every deadline that the job ever had comes once more, late, in every state after its end."""
    after_the_end = 0
    for _ in live(shard):
        if "a" in shard.state.jobs and shard.job() not in TERMINAL_JOB:
            continue
        after_the_end += 1
        before = shard.job()
        late = [(e.entity, e.due_at) for e in shard.log if isinstance(e, Event) and e.job == "a" and e.due_at]
        assert late
        for entity, due_at in late:
            if not entity.startswith(("cleanup/", "summary/")):
                assert shard.give(Timer(entity, due_at)).is_empty, f"{entity} fired and changed something"
        assert shard.job() == before
    assert after_the_end >= 3


def test_B10_after_cleanup_a_full_replay_shows_the_summary_and_nothing_else(shard: Shard) -> None:
    for _ in live(shard):
        pass
    left = newest(shard)
    assert not left.jobs
    assert list(left.summaries["a"]) == [1]
    standing: dict[str, Event] = {}
    for event in shard.log:
        if isinstance(event, Gone):
            standing.pop(event.entity, None)
        else:
            standing[event.entity] = event
    assert {entity for entity, event in standing.items() if event.job == "a"} == {"summary/a/1"}
    shard.wait(60_000)
    assert not newest(shard).summaries  # its time is over too


def test_B10_a_late_copy_of_a_command_after_the_end_is_known_as_long_as_others(shard: Shard) -> None:
    """Found by the simulation: cleanup was late, the history's time was over right after it, and the copy was answered
    a second time."""
    for step in live(shard):
        if step == "due":
            break
    shard.wait(45_000)  # nobody could remove what was staged
    assert shard.command("a", Cancel(), "late").to == "REFUSED"
    shard.report("a", -1, StagingRemoved(), pipeline=-1, worker="w1", incarnation=1)
    assert "a" not in shard.state.jobs
    shard.wait(20_000)  # longer than the history that was left when the job ended
    before = len(shard.log)
    shard.give(Command(id="late", job="a", by="me", action=Cancel()))
    assert [e for e in shard.log[before:] if e.entity.startswith("command/")] == []
