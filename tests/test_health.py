"""What the state says of how jobs fare: checkpoints that do not come, tasks that stand still, work that is retried."""

from __future__ import annotations

from coordinator.health import JobHealth, health, overview
from events.records import (
    Cancel,
    CheckpointAcked,
    CheckpointCommitted,
    CheckpointFailed,
    Pause,
    Restore,
    Staged,
    StagingFailed,
    StagingRemoved,
    TaskReady,
    TaskRunning,
    TaskStalled,
)
from tests.shard import Shard

POLICY = {"interval_ms": 100, "timeout_ms": 500, "tolerated_failures": 100}


def run(shard: Shard, tasks: int = 2, **env: object) -> None:
    shard.submit("a", tasks, **{"checkpoint": POLICY, **env})
    for task in range(tasks):
        shard.report("a", task, TaskRunning())
    assert shard.job() == "RUNNING"


def ack(shard: Shard, checkpoint: int, *tasks: int) -> None:
    for task in tasks:
        staged = (Staged(name=f"{task}-{checkpoint}", rows=10, size=80),)
        shard.report("a", task, CheckpointAcked(checkpoint=checkpoint, position=b"1", staged=staged))


def look(shard: Shard) -> JobHealth:
    return health("a", shard.state.jobs["a"], shard.now)


def test_Z2_everything_about_checkpoints_is_there(shard: Shard) -> None:
    run(shard)
    shard.wait(100)
    shard.now += 30
    ack(shard, 1, 0)
    shard.now += 10
    (pipeline,) = look(shard).pipelines
    assert (pipeline.last, pipeline.last_at, pipeline.since_last_ms) == (0, 0, 140)
    assert (pipeline.pending, pipeline.pending_ms, pipeline.waits_for) == (1, 40, (1,))
    ack(shard, 1, 1)
    committed_at = shard.now = shard.now + 10
    shard.report("a", -1, CheckpointCommitted(checkpoint=1), worker="w1")
    shard.now += 25
    (pipeline,) = look(shard).pipelines
    assert (pipeline.last, pipeline.last_at, pipeline.since_last_ms) == (1, committed_at, 25)
    assert (pipeline.duration_ms, pipeline.rows, pipeline.size) == (50, 20, 160)
    assert (pipeline.pending, pipeline.pending_ms, pipeline.next_at) == (0, 0, committed_at + 100)
    assert look(shard).unhealthy == ""


def test_Z2_while_the_next_checkpoint_is_published_the_last_one_is_still_known(shard: Shard) -> None:
    run(shard)
    shard.wait(100)
    ack(shard, 1, 0, 1)
    shard.report("a", -1, CheckpointCommitted(checkpoint=1), worker="w1")
    shard.wait(100)
    triggered_at = shard.now
    ack(shard, 2, 0, 1)
    shard.now += 40
    (pipeline,) = look(shard).pipelines
    assert (pipeline.last, pipeline.last_at, pipeline.duration_ms) == (1, triggered_at, 40)


def test_Z2_without_a_checkpoint_for_too_long_a_running_job_is_unhealthy_and_says_why(shard: Shard) -> None:
    run(shard)
    shard.wait(800)  # three intervals and the timeout: exactly as long as it may
    assert look(shard).unhealthy == ""
    shard.wait(1)
    said = look(shard).unhealthy
    assert said.startswith("pipeline 0 has not committed a checkpoint for 0.8 s, longer than 3 intervals of 100 ms")
    assert said.endswith("checkpoint 2 waits for tasks 0, 1")
    shard.wait(399)
    assert look(shard).pipelines[0].failures == 2
    assert look(shard).unhealthy.endswith("checkpoint 2 was given up: it was not acknowledged in time")
    shard.wait(100)
    ack(shard, 3, 0, 1)
    assert look(shard).unhealthy.endswith("checkpoint 3 is not published after 1 tries: no answer yet")
    shard.report("a", -1, CheckpointCommitted(checkpoint=3), worker="w1")
    assert look(shard).unhealthy == ""


def test_Z2_a_job_that_does_not_run_is_not_blamed_for_its_checkpoints(shard: Shard) -> None:
    run(shard)
    shard.command("a", Pause())
    ack(shard, 1, 0, 1)
    shard.report("a", -1, CheckpointCommitted(checkpoint=1), worker="w1")
    assert shard.job() == "PAUSED"
    shard.wait(100_000)
    assert look(shard).unhealthy == ""
    assert look(shard).pipelines[0].since_last_ms == 100_000


def test_D7_a_stalled_task_is_shown(shard: Shard) -> None:
    run(shard, restart_stalled=False)
    shard.report("a", 1, TaskStalled(progressed_at=7, reason="reading"))
    (task,) = look(shard).stalled
    assert (task.pipeline, task.task, task.attempt, task.worker) == (0, 1, 1, "w2")
    assert task.reason == "no progress since 7: reading"
    assert look(shard).unhealthy == "task 0/1 is stalled: no progress since 7: reading"
    shard.report("a", 1, TaskReady())
    assert look(shard).stalled == ()


def test_D7_a_stalled_task_that_takes_part_in_a_checkpoint_has_recovered(shard: Shard) -> None:
    run(shard, restart_stalled=False)
    shard.report("a", 1, TaskStalled(progressed_at=7, reason="reading"))
    shard.wait(100)
    ack(shard, 1, 0)
    assert look(shard).stalled != ()
    ack(shard, 1, 1)
    assert (look(shard).stalled, look(shard).unhealthy) == ((), "")
    assert shard.tasks() == ["RUNNING", "RUNNING"]


def test_a_task_that_waits_for_room_is_shown() -> None:
    shard = Shard()
    shard.worker("w1", slots=1)
    shard.submit("a", 2)
    (task,) = look(shard).waiting
    assert (task.task, task.reason) == (1, "it waits for room on a worker")
    shard.worker("w2")
    assert look(shard).waiting == ()


def test_B4_commits_and_cleanups_that_are_retried_are_shown_with_tries_and_the_last_error(shard: Shard) -> None:
    run(shard, cleanup_delay_ms=10, commit={"backoff_ms": 100, "max_backoff_ms": 1000, "retries": 20})
    shard.wait(100)
    ack(shard, 1, 0, 1)
    assert look(shard).retrying == ()  # the first try is no retry
    shard.report("a", -1, CheckpointFailed(checkpoint=1, reason="lock"), worker="w1")
    (retry,) = look(shard).retrying
    assert (retry.entity, retry.what, retry.tries, retry.error) == ("checkpoint/a/0", "commit", 1, "lock")
    assert retry.next_at == shard.now + 100
    shard.wait(300)
    assert look(shard).retrying[0].tries == 3
    shard.report("a", -1, CheckpointCommitted(checkpoint=1), worker="w1")
    assert look(shard).retrying == ()
    shard.command("a", Cancel())
    shard.wait(10)
    shard.report("a", -1, StagingFailed(reason="permission denied"), pipeline=-1, worker="w1")
    (retry,) = overview(shard.state, shard.now).retrying
    assert (retry.what, retry.tries, retry.error) == ("cleanup", 1, "permission denied")
    shard.wait(2000)
    (retry,) = overview(shard.state, shard.now).retrying
    assert retry.tries == 2


def test_T5_an_ended_job_is_listed_as_ended_and_in_the_history_never_as_running(shard: Shard) -> None:
    run(shard, cleanup_delay_ms=50)
    assert [job.job for job in overview(shard.state, shard.now).running] == ["a"]
    shard.command("a", Cancel(reason="enough"))
    seen = overview(shard.state, shard.now)
    assert seen.running == ()
    (ended,) = seen.ended
    assert (ended.job, ended.state, ended.reason, ended.free_at) == ("a", "CANCELED", "enough", shard.now + 50)
    assert [past.summary.reason for past in seen.history] == ["CANCELED: enough"]
    shard.wait(50)
    shard.report("a", -1, StagingRemoved(), pipeline=-1, worker="w1")
    seen = overview(shard.state, shard.now)
    assert (seen.running, seen.ended) == ((), ())
    assert [past.job for past in seen.history] == ["a"]


def test_a_restored_job_runs_and_its_predecessor_is_history(shard: Shard) -> None:
    run(shard, cleanup_delay_ms=50)
    shard.wait(100)
    ack(shard, 1, 0, 1)
    shard.report("a", -1, CheckpointCommitted(checkpoint=1), worker="w1")
    shard.command("a", Cancel())
    assert shard.command("a", Restore()).to == "ACCEPTED"
    seen = overview(shard.state, shard.now)
    assert [(job.job, job.incarnation) for job in seen.running] == [("a", 2)]
    assert seen.ended == ()
    assert [past.incarnation for past in seen.history] == [1]
    (pipeline,) = seen.running[0].pipelines
    assert (pipeline.last, pipeline.last_at) == (1, 0)


def test_what_is_left_of_a_quarantined_job_can_be_looked_at(shard: Shard) -> None:
    run(shard)
    shard.state.jobs["a"].pipelines[0].event = None
    assert look(shard).pipelines[0].state == ""
