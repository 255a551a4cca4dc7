"""What people are shown of the state: jobs, pipelines, tasks, checkpoints, workers, shards; and as JSON."""

from __future__ import annotations

import msgspec

from coordinator.cluster_viewing import shard_view, worker_views
from coordinator.lines import FRESH_MS, Lines
from coordinator.viewing import checkpoint_views, ended_view, job_detail, job_view, task_views
from coordinator.views import JobView, Progress
from events.records import (
    Cancel,
    CheckpointAcked,
    CheckpointCommitted,
    Staged,
    StagingRemoved,
    TaskFailed,
    TaskReady,
    TaskRunning,
    TaskStalled,
)
from tests.shard import LEASE_MS, Shard

POLICY = {"interval_ms": 100, "timeout_ms": 500, "tolerated_failures": 100}


def run(shard: Shard, tasks: int = 2, **env: object) -> None:
    shard.submit("a", tasks, **{"checkpoint": POLICY, **env})
    for task in range(tasks):
        shard.report("a", task, TaskRunning())


def ack(shard: Shard, checkpoint: int, *tasks: int) -> None:
    for task in tasks:
        staged = (Staged(name=f"{task}-{checkpoint}", rows=10, size=80),)
        said = CheckpointAcked(checkpoint=checkpoint, position=b"1", staged=staged, rows=10 * checkpoint, bytes_read=99)
        shard.report("a", task, said)


def commit(shard: Shard, checkpoint: int) -> None:
    shard.report("a", -1, CheckpointCommitted(checkpoint=checkpoint), worker="w1")


def look(shard: Shard) -> JobView:
    found = job_view(shard.state, "a", shard.now)
    assert found is not None
    return found


def finish(shard: Shard) -> None:
    for task in (0, 1):
        shard.report("a", task, TaskReady())
    ack(shard, 1, 0, 1)
    commit(shard, 1)
    assert shard.job() == "FINISHED"


def test_Z2_a_job_says_its_last_checkpoint_and_how_long_ago_it_was(shard: Shard) -> None:
    run(shard)
    shard.wait(100)
    shard.now += 30
    assert look(shard).pending_checkpoint_age_ms == 30
    assert look(shard).last_checkpoint_time is None
    assert look(shard).seconds_since_last_checkpoint == 0.13
    ack(shard, 1, 0, 1)
    commit(shard, 1)
    at = shard.now
    shard.now += 20
    job = look(shard)
    assert (job.last_checkpoint_id, job.last_checkpoint_time, job.seconds_since_last_checkpoint) == (1, at, 0.02)
    assert (job.last_checkpoint_size, job.last_checkpoint_duration_ms) == (160, 30)
    assert (job.rows, job.bytes_read, job.rows_published) == (20, 198, 20)
    assert (job.state, job.health, job.mode, job.tasks) == ("RUNNING", "HEALTHY", "BATCH", {"RUNNING": 2})


def test_Z2_a_line_that_is_kept_says_what_one_made_anew_would(shard: Shard) -> None:
    lines = Lines()

    def kept(*, unhealthy: bool = False) -> JobView | None:
        return lines.get("a", 1, shard.now, unhealthy=unhealthy)

    run(shard)
    shard.wait(100)
    for wait_ms in (0, 7, 120):
        lines.put(look(shard), shard.now)
        shard.now += wait_ms
        assert kept() == look(shard)
    ack(shard, 1, 0, 1)
    lines.put(look(shard), shard.now)
    shard.now += 2000
    assert look(shard).health == "UNHEALTHY"
    assert kept(unhealthy=True) is None  # time alone has made it so
    lines.put(look(shard), shard.now)
    shard.now += FRESH_MS
    assert kept() is None
    assert lines.get("a", 2, shard.now, unhealthy=False) is None
    lines.put(look(shard), shard.now)
    lines.drop("a")
    assert kept() is None


def test_as_json_names_are_camel_case(shard: Shard) -> None:
    run(shard)
    said = msgspec.json.decode(msgspec.json.encode(look(shard)))
    assert {"lastCheckpointTime", "secondsSinceLastCheckpoint", "rowsPerSecond", "isEnded"} <= set(said)
    assert msgspec.json.decode(msgspec.json.encode(look(shard)), type=JobView) == look(shard)


def test_rows_published_add_up_over_checkpoints_and_stay_in_the_summary(shard: Shard) -> None:
    run(shard)
    for number in (1, 2):
        shard.wait(100)
        ack(shard, number, 0, 1)
        assert look(shard).rows_published == 20 * (number - 1)
        commit(shard, number)
        assert look(shard).rows_published == 20 * number
    shard.command("a", Cancel())
    (event,) = shard.state.summaries["a"].values()
    assert ended_view(shard.state, event).rows_published == 40


def test_T5_an_ended_job_is_shown_as_ended_before_and_after_its_cleanup(shard: Shard) -> None:
    run(shard, cleanup_delay_ms=1000)
    finish(shard)
    job = look(shard)
    assert (job.state, job.is_ended, job.health, job.free_at) == ("FINISHED", True, "ENDED", shard.now + 1000)
    assert job.seconds_since_last_checkpoint is None
    shard.wait(1000)
    shard.report("a", -1, StagingRemoved(), pipeline=-1, worker="w1")
    assert job_view(shard.state, "a", shard.now) is None
    detail = job_detail(shard.state, "a", shard.now)
    assert detail is not None
    assert detail.summary is not None
    assert (detail.job.state, detail.job.is_ended, detail.job.rows_published) == ("FINISHED", True, 20)
    assert (detail.summary.checkpoints, detail.summary.can_be_restored, detail.tasks) == (1, False, ())
    assert job_detail(shard.state, "b", shard.now) is None
    assert job_detail(shard.state, "a", shard.now, incarnation=7) is None


def test_a_detail_has_everything_of_the_job(shard: Shard) -> None:
    run(shard)
    shard.wait(100)
    ack(shard, 1, 0)
    detail = job_detail(shard.state, "a", shard.now)
    assert detail is not None
    (pipeline,) = detail.pipelines
    assert pipeline.pending is not None
    assert (pipeline.pending.acked, pipeline.pending.tasks, pipeline.pending.waits_for) == (1, 2, (1,))
    assert [(step.role, step.tasks) for step in detail.graph] == [("source", (0, 1)), ("sink", ())]
    assert [(command.action, command.state, command.by) for command in detail.commands] == [
        ("Submit", "ACCEPTED", "me")
    ]
    assert [(task.source, task.worker, task.rows) for task in detail.tasks] == [("in0", "w1", 10), ("in0", "w2", 0)]
    assert [(one.id, one.state) for one in checkpoint_views(shard.state, "a", shard.now)] == [(1, "TRIGGERED")]


def test_D7_a_stalled_task_is_shown_and_makes_the_job_unhealthy(shard: Shard) -> None:
    run(shard, restart_stalled=False)
    shard.report("a", 1, TaskStalled(progressed_at=shard.now - 700, reason="reading"))
    tasks = list(task_views(shard.state, "a"))
    assert [task.is_stalled for task in tasks] == [False, True]
    assert tasks[1].reason == "no progress for 700 ms: reading"
    assert look(shard).health == "UNHEALTHY"
    assert "stalled" in look(shard).health_reason


def test_a_job_that_waits_says_for_what(shard: Shard) -> None:
    run(shard, restart={"backoff_ms": 1000})
    shard.report("a", 1, TaskFailed(reason="the disk is full"))
    assert look(shard).health == "WAITING"
    assert look(shard).health_reason == "1 task waits to be started again: restarts: the disk is full"
    shard.submit("b", 20)
    other = job_view(shard.state, "b", shard.now)
    assert other is not None
    assert (other.health, other.health_reason) == ("WAITING", "13 tasks wait for room on a worker")


def test_progress_of_another_attempt_is_not_shown(shard: Shard) -> None:
    run(shard)
    now = {("a", 0, 0): Progress(1, 1, 500, 5000, shard.now, 25.0), ("a", 0, 1): Progress(1, 9, 500, 5000, 0, 25.0)}
    tasks = list(task_views(shard.state, "a", now))
    assert [(task.rows, task.rows_per_second) for task in tasks] == [(500, 25.0), (0, 0.0)]
    job = job_view(shard.state, "a", shard.now, now)
    assert job is not None
    assert (job.rows, job.rows_per_second) == (500, 25.0)


def test_workers_and_shards_are_shown(shard: Shard) -> None:
    run(shard)
    seen = worker_views([shard.state], shard.state.heard, shard.now, LEASE_MS)
    assert [(w.id, w.state, w.used, w.slots, w.tasks) for w in seen] == [
        ("w1", "HEARD", 1, 4, ("a/0/0",)),
        ("w2", "HEARD", 1, 4, ("a/0/1",)),
    ]
    shard.now += LEASE_MS + 1
    assert {w.state for w in worker_views([shard.state], shard.state.heard, shard.now, LEASE_MS)} == {"SILENT"}
    shard.sweep()
    assert {w.state for w in worker_views([shard.state], {}, shard.now, LEASE_MS)} == {"LOST"}
    view = shard_view(shard.state, next_offset=7)
    assert (view.leader, view.epoch, view.state, view.jobs, view.next_offset) == ("c", 1, "LEADING", 1, 7)
