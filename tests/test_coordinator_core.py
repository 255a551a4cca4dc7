"""The coordinator's core by stories: each drives the pure core the way services, workers and time do."""

from __future__ import annotations

from copy import deepcopy

import pytest

from coordinator.core import decide
from coordinator.draft import Gone
from coordinator.state import State, entity_of, fold
from events.records import (
    Cancel,
    Cause,
    Checkpoint,
    CheckpointAcked,
    CheckpointCommitted,
    CheckpointFailed,
    Command,
    CommitCheckpoint,
    Deploy,
    Event,
    Order,
    Outcome,
    Pause,
    RemoveStaging,
    Resume,
    Staged,
    StagingRemoved,
    Stop,
    Submit,
    TakeSavepoint,
    TaskFailed,
    TaskReady,
    TaskRefused,
    TaskRunning,
    TaskStalled,
    TaskStopped,
)
from tests.shard import LEASE_MS, Shard, specification


def run(shard: Shard, tasks: int = 2, **env: object) -> None:
    """A job whose tasks all run."""
    shard.submit("a", tasks, **env)
    for task in range(tasks):
        shard.report("a", task, TaskRunning())
    assert shard.job() == "RUNNING"
    shard.new_orders()


def ack(shard: Shard, task: int, checkpoint: int) -> None:
    piece = Staged(name=f"{task}-{checkpoint}", rows=1, size=1)
    shard.report("a", task, CheckpointAcked(checkpoint=checkpoint, position=b"%d" % checkpoint, staged=(piece,)))


def committed(shard: Shard, checkpoint: int) -> None:
    shard.report("a", -1, CheckpointCommitted(checkpoint=checkpoint), worker="w1")


def checkpoint(shard: Shard) -> Event:
    event = shard.state.jobs["a"].pipelines[0].checkpoint
    assert event is not None
    return event


def finish(shard: Shard, tasks: int = 2) -> None:
    for task in range(tasks):
        shard.report("a", task, TaskReady(position=b"end"))
    pending = shard.state.jobs["a"].pipelines[0].pending
    assert pending is not None
    assert isinstance(pending.state, Checkpoint)
    assert pending.state.purpose == "FINAL"
    for task in range(tasks):
        ack(shard, task, pending.state.id)
    committed(shard, pending.state.id)


def same_after_replay(shard: Shard) -> None:
    """The leader's memory is nothing but the fold of the log."""
    again = State(0)
    for event in shard.log:
        fold(again, entity_of(event.entity), event if isinstance(event, Event) else None)
    assert again.jobs == shard.state.jobs
    assert again.summaries == shard.state.summaries
    assert (again.tasks_on, again.waiting) == (shard.state.tasks_on, shard.state.waiting)
    assert (again.epoch, again.sequence, again.incarnations) == (
        shard.state.epoch, shard.state.sequence, shard.state.incarnations)  # fmt: skip


def test_a_bounded_job_from_its_submission_to_its_last_trace(shard: Shard) -> None:
    outcome = shard.submit("a", 2, cleanup_delay_ms=1000, history_ms=5000)
    assert outcome.to == "ACCEPTED"
    assert shard.job() == "SCHEDULED"
    deploys = [o for o in shard.new_orders() if isinstance(o, Order)]
    assert [type(o.action) for o in deploys] == [Deploy, Deploy]
    assert {o.worker for o in deploys} == {"w1", "w2"}  # spread evenly
    for task in range(2):
        shard.report("a", task, TaskRunning())
    assert (shard.job(), shard.tasks()) == ("RUNNING", ["RUNNING", "RUNNING"])
    finish(shard)
    assert (shard.job(), shard.tasks()) == ("FINISHED", ["FINISHED", "FINISHED"])
    assert shard.state.jobs["a"].cleanup is not None
    for task, worker in ((0, "w1"), (1, "w2")):
        shard.report("a", task, TaskStopped(), worker=worker)
    same_after_replay(shard)
    shard.wait(1000)
    assert shard.actions()[-1] == "RemoveStaging"
    shard.report("a", -1, StagingRemoved(), pipeline=-1, worker="w1")
    assert shard.job() == ""
    assert shard.state.jobs == {}
    assert [s.state.reason for s in shard.state.summaries["a"].values()] == ["FINISHED"]  # type: ignore[union-attr]
    shard.wait(6000)
    assert shard.state.summaries == {}
    same_after_replay(shard)
    left = {e.entity for e in shard.log} - {e.entity for e in shard.log if isinstance(e, Gone)}
    assert left == {"leader/0", "cursor/0"}  # B10: no trace


def test_checkpoints_follow_each_other_and_ids_only_grow(shard: Shard) -> None:
    run(shard, checkpoint={"interval_ms": 100})
    for number in (1, 2, 3):
        shard.wait(100)
        assert shard.actions() == ["TriggerCheckpoint", "TriggerCheckpoint"]
        ack(shard, 0, number)
        assert checkpoint_id(shard) == number - 1
        ack(shard, 1, number)
        assert (checkpoint(shard).to, checkpoint_id(shard)) == ("COMPLETED", number)
        assert shard.actions() == ["CommitCheckpoint"]
        committed(shard, number)
        assert checkpoint(shard).to == "COMMITTED"
        assert shard.actions() == ["withdrawn"]
    same_after_replay(shard)


def checkpoint_id(shard: Shard) -> int:
    event = shard.state.jobs["a"].pipelines[0].checkpoint
    return event.state.id if event and isinstance(event.state, Checkpoint) else 0


def test_R1_a_strict_subset_of_marks_survives_the_leader(shard: Shard) -> None:
    run(shard, tasks=3)
    shard.report("a", 0, TaskReady())
    assert shard.tasks() == ["READY_TO_CLOSE", "RUNNING", "RUNNING"]
    shard.elect()
    shard.worker("w1")
    shard.worker("w2")
    assert len(shard.state.jobs["a"].pipelines[0].ready) == 1
    shard.wait(10_000)  # a normal checkpoint goes on, the marked task takes part
    for task in range(3):
        ack(shard, task, 1)
    committed(shard, 1)
    assert shard.job() == "RUNNING"
    finish(shard, 3)
    assert shard.job() == "FINISHED"


@pytest.mark.parametrize("moment", ["all marked", "pending", "completed"])
def test_R2_the_last_steps_go_on_under_the_next_leader(shard: Shard, moment: str) -> None:
    run(shard)
    shard.report("a", 0, TaskReady())
    shard.report("a", 1, TaskReady())
    if moment == "all marked":  # as if the leader had died before it triggered: the mark is the last thing on the log
        last = next(
            i for i, e in enumerate(shard.log) if e.entity == "task/a/0/1" and getattr(e, "to", "") == "READY_TO_CLOSE"
        )
        del shard.log[last + 1 :]
    ack(shard, 0, 1) if moment == "pending" else None
    if moment == "completed":
        ack(shard, 0, 1)
        ack(shard, 1, 1)
        assert checkpoint(shard).to == "COMPLETED"
    shard.new_orders()
    shard.elect()
    shard.worker("w1")
    shard.worker("w2")
    if moment != "completed":
        assert "TriggerCheckpoint" in shard.actions() or moment == "pending"
        ack(shard, 0, 1)
        ack(shard, 1, 1)
    committed(shard, 1)
    assert shard.job() == "FINISHED"


def test_R5_a_mark_goes_with_its_attempt(shard: Shard) -> None:
    run(shard)
    shard.report("a", 0, TaskReady())
    shard.report("a", 0, TaskFailed(reason="out of memory"))
    assert shard.state.jobs["a"].pipelines[0].ready == {}
    shard.wait(2000)
    assert shard.state.jobs["a"].pipelines[0].tasks[0].attempt == 2
    shard.report("a", 0, TaskReady(), attempt=1)
    assert shard.state.jobs["a"].pipelines[0].ready == {}


def test_B3_a_checkpoint_that_is_not_acknowledged_is_aborted_and_the_next_is_due(shard: Shard) -> None:
    run(shard, checkpoint={"interval_ms": 100, "timeout_ms": 500, "tolerated_failures": 1})
    shard.wait(100)
    ack(shard, 0, 1)
    shard.wait(500)
    pending = shard.state.jobs["a"].pipelines[0].pending
    assert pending is not None
    assert pending.to == "ABORTED"
    shard.wait(100)
    assert shard.state.jobs["a"].pipelines[0].pending.state.id == 2  # type: ignore[union-attr]
    shard.wait(500)
    assert shard.job() == "FAILED"  # twice in a row is more than is tolerated


def test_O3_a_commit_that_fails_is_tried_again_with_back_off_and_what_lasts_fails_the_job(shard: Shard) -> None:
    run(shard, checkpoint={"interval_ms": 100}, commit={"backoff_ms": 100, "retries": 2})
    shard.wait(100)
    ack(shard, 0, 1)
    ack(shard, 1, 1)
    shard.report("a", -1, CheckpointFailed(checkpoint=1, reason="lock"), worker="w1")
    assert checkpoint(shard).state.reason == "lock"  # type: ignore[union-attr]
    shard.new_orders()
    shard.wait(200)
    assert "CommitCheckpoint" in shard.actions()
    shard.report("a", -1, CheckpointFailed(checkpoint=1, reason="table gone", lasting=True), worker="w1")
    assert shard.job() == "FAILING"
    committed(shard, 1)  # whoever published it after all
    assert shard.job() == "FAILED"


def test_T7_without_retries_a_lost_worker_fails_the_job_and_leaves_nothing(shard: Shard) -> None:
    run(shard, restart={"retries": 0}, cleanup_delay_ms=10)
    shard.now += LEASE_MS - 1
    shard.worker("w2")
    shard.sweep()
    assert shard.job() == "RUNNING"
    shard.now += 10
    shard.sweep()
    assert shard.job() == "FAILED"
    assert "worker w1 is lost" in shard.state.jobs["a"].event.state.reason  # type: ignore[union-attr]
    shard.elect()
    assert shard.job() == "FAILED"  # Z1: never restored
    shard.worker("w2")
    shard.wait(10)
    shard.report("a", -1, StagingRemoved(), pipeline=-1, worker="w2")
    assert shard.state.jobs == {}


def test_a_new_leader_gives_every_worker_its_full_time(shard: Shard) -> None:
    run(shard)
    shard.now += 10 * LEASE_MS
    shard.elect()
    shard.sweep()
    assert shard.job() == "RUNNING"
    shard.now += LEASE_MS + 1
    shard.sweep()
    assert shard.tasks() == ["CREATED", "CREATED"]


def test_a_refused_task_is_placed_elsewhere_and_waits_visibly_where_there_is_no_room() -> None:
    shard = Shard()
    shard.worker("w1", slots=1)
    shard.submit("a", 2)
    assert shard.tasks() == ["DEPLOYING", "CREATED"]
    assert shard.state.jobs["a"].pipelines[0].tasks[1].state.reason == "it waits for room on a worker"  # type: ignore[union-attr]
    assert shard.job() == "CREATED"
    shard.worker("w2", slots=3)
    assert shard.tasks() == ["DEPLOYING", "DEPLOYING"]
    shard.report("a", 0, TaskRefused(reason="no room"))
    assert shard.state.jobs["a"].pipelines[0].tasks[0].state.worker == "w2"  # type: ignore[union-attr]


def test_D7_a_stalled_task_is_fenced_and_deployed_again(shard: Shard) -> None:
    run(shard)
    shard.report("a", 0, TaskStalled(progressed_at=1, reason="in read"))
    assert any(getattr(e, "transition", "") == "stalled" for e in shard.log)
    assert "StopTask" in shard.actions()
    shard.wait(1000)
    assert shard.state.jobs["a"].pipelines[0].tasks[0].attempt == 2
    assert shard.actions() == ["Deploy"]


def test_a_stall_that_is_reported_after_the_end_of_the_source_means_nothing(shard: Shard) -> None:
    """Found by seed 7757 of the simulation: the late report stopped the shard."""
    run(shard)
    shard.report("a", 0, TaskReady())
    shard.report("a", 0, TaskStalled(progressed_at=1))
    assert shard.tasks() == ["READY_TO_CLOSE", "RUNNING"]
    assert "late TaskStalled" in shard.notes[-1]


def test_B2_a_restarted_task_starts_from_the_newest_completed_checkpoint(shard: Shard) -> None:
    run(shard, checkpoint={"interval_ms": 100})
    shard.wait(100)
    ack(shard, 0, 1)
    ack(shard, 1, 1)
    committed(shard, 1)
    shard.new_orders()
    shard.report("a", 1, TaskFailed(reason="boom"))
    shard.elect()
    shard.worker("w1")
    shard.worker("w2")
    shard.wait(1000)
    (deploy,) = [o for o in shard.new_orders() if isinstance(o, Order) and isinstance(o.action, Deploy)]
    assert isinstance(deploy.action, Deploy)
    assert (deploy.task, deploy.attempt, deploy.action.checkpoint, deploy.action.position) == (1, 2, 1, b"1")


def test_cancel_savepoint_drain_pause_and_resume(shard: Shard) -> None:
    run(shard)
    assert shard.command("a", Pause()).to == "ACCEPTED"
    ack(shard, 0, 1)
    ack(shard, 1, 1)
    committed(shard, 1)
    assert (shard.job(), shard.tasks()) == ("PAUSED", ["SUSPENDED", "SUSPENDED"])
    assert shard.command("a", Resume()).to == "ACCEPTED"
    for task in range(2):
        shard.report("a", task, TaskRunning())
    assert shard.job() == "RUNNING"
    assert shard.command("a", TakeSavepoint(name="before upgrade", stop=True)).to == "ACCEPTED"
    ack(shard, 0, 2)
    ack(shard, 1, 2)
    committed(shard, 2)
    assert shard.job() == "SAVEPOINTED"
    assert [s.to for s in shard.state.jobs["a"].savepoints.values()] == ["KEPT"]
    refused = shard.command("a", Cancel())
    assert refused.to == "REFUSED"
    assert refused.state.reason == "a job that is SAVEPOINTED can't be cancelling"  # type: ignore[union-attr]


def test_a_drained_streaming_job_finishes(shard: Shard) -> None:
    run(shard, mode="STREAMING")
    shard.command("a", Stop())
    ack(shard, 0, 1)
    ack(shard, 1, 1)
    committed(shard, 1)
    assert shard.job() == "FINISHED"


def test_a_command_has_one_outcome(shard: Shard) -> None:
    first = shard.command("a", Submit(specification=specification(1)), "id-1")
    assert shard.command("a", Submit(specification=specification(1)), "id-1") == first
    shard.command("a", Submit(specification=specification(2)), "id-1")
    shard.command("a", Submit(specification=specification(2)), "id-1")
    assert shard.state.jobs["a"].commands["id-1"] == first
    (other,) = [event for name, event in shard.state.jobs["a"].commands.items() if name != "id-1"]
    assert other.to == "REFUSED"
    assert "the id id-1 was used by me for another command (Submit)" in other.state.reason  # type: ignore[union-attr]
    again = shard.command("a", Submit(specification=specification(1)), "id-2")
    assert again.to == "REFUSED"
    assert isinstance(again.state, Outcome)
    assert "is there already" in again.state.reason


def test_T4_an_id_is_not_free_until_its_cleanup(shard: Shard) -> None:
    run(shard, cleanup_delay_ms=1000)
    shard.command("a", Cancel())
    assert shard.job() == "CANCELED"
    refused = shard.submit("a", 1)
    assert refused.to == "REFUSED"
    assert f"free again at {shard.now + 1000}" in refused.state.reason  # type: ignore[union-attr]


def test_T3_the_same_id_again_is_a_new_incarnation(shard: Shard) -> None:
    run(shard, cleanup_delay_ms=10)
    shard.command("a", Cancel())
    old = shard.state.jobs["a"].event.incarnation  # type: ignore[union-attr]
    shard.wait(10)
    shard.report("a", -1, StagingRemoved(), pipeline=-1, worker="w1")
    shard.submit("a", 1)
    new = shard.state.jobs["a"].event.incarnation  # type: ignore[union-attr]
    assert new > old
    before = len(shard.log)
    shard.report("a", -1, StagingRemoved(), pipeline=-1, worker="w1", incarnation=old)
    shard.report("a", 0, TaskFailed(reason="late"), incarnation=old)
    assert len([e for e in shard.log[before:] if not e.entity.startswith("cursor")]) == 0
    assert shard.job() == "SCHEDULED"


def test_T1_late_reports_are_no_ops_that_say_so(shard: Shard) -> None:
    run(shard)
    shard.command("a", Cancel())
    before = list(shard.log)
    for happening in (TaskRunning(), TaskReady(), TaskFailed(reason="x"), CheckpointCommitted(checkpoint=9)):
        shard.report("a", 0, happening)
        shard.report("nobody", 0, happening, worker="w1")
    assert [e for e in shard.log[len(before) :] if not e.entity.startswith("cursor")] == []
    assert len([n for n in shard.notes if n.startswith("late")]) == 8


def test_O5_a_sweep_over_healthy_jobs_decides_nothing(shard: Shard) -> None:
    run(shard)
    assert shard.sweep().is_empty


def test_O1_a_step_that_was_not_taken_is_taken_by_the_sweep(shard: Shard) -> None:
    """All tasks marked, and the step after it lost, as if by a bug: the sweep finds it."""
    run(shard)
    pipeline = shard.state.jobs["a"].pipelines[0]
    for task in list(pipeline.tasks.values()):
        ready = Event(**{f: getattr(task, f) for f in task.__struct_fields__} | {"to": "READY_TO_CLOSE"})  # type: ignore[arg-type]
        fold(shard.state, entity_of(task.entity), ready)
        shard.log.append(ready)
    shard.sweep()
    assert pipeline.pending is not None
    assert pipeline.pending.state.purpose == "FINAL"  # type: ignore[union-attr]


def test_deciding_changes_nothing(shard: Shard) -> None:
    run(shard)
    before = deepcopy(shard.state)
    submit = Command(id="y", job="b", action=Submit(specification=specification(5)))
    for command in (Command(id="x", job="a", action=Cancel()), submit):
        assert not decide(shard.state, command, shard.now, Cause(kind="TIMER")).is_empty
    for name in ("jobs", "tasks_on", "waiting", "workers", "sequence", "epoch", "incarnations", "summaries"):
        assert getattr(shard.state, name) == getattr(before, name), name


def test_what_a_job_has_staged_is_published_and_removed_where_its_labels_are(shard: Shard) -> None:
    """w1 and w2, of the fixture, have none."""
    shard.worker("w9", labels={"disk": "here"})
    run(shard, 1, cleanup_delay_ms=10, labels={"disk": "here"}, checkpoint={"interval_ms": 100})
    shard.wait(100)
    ack(shard, 0, 1)
    assert checkpoint(shard).to == "COMPLETED"
    shard.now += LEASE_MS + 1
    for other in ("w1", "w2"):
        shard.worker(other)
    shard.sweep()
    assert shard.tasks() == ["CREATED"]  # it waits for such a worker
    shard.wait(60_000)
    shard.command("a", Cancel())
    shard.worker("w9", labels={"disk": "here"})
    shard.wait(2000)
    committed(shard, 1)
    shard.wait(10_000)
    orders = [order for order in shard.new_orders() if isinstance(order, Order)]
    assert {type(order.action) for order in orders} >= {CommitCheckpoint, RemoveStaging}
    assert {order.worker for order in orders} == {"w9"}
