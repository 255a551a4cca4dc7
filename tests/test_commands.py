"""What services may ask for, and what they are refused: restore, savepoints, repair, command ids, bad specifications.
Every refusal is an outcome on the log that says why."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from coordinator.draft import Gone
from coordinator.repair import REPAIRS
from coordinator.words import MAX_TEXT
from events.records import (
    Cancel,
    Checkpoint,
    CheckpointAcked,
    CheckpointCommitted,
    CheckpointFailed,
    Command,
    CommandAction,
    CommitCheckpoint,
    Deploy,
    Event,
    Heartbeat,
    Job,
    Order,
    Outcome,
    Pause,
    RemoveStaging,
    Repair,
    Restore,
    Resume,
    Savepoint,
    Staged,
    StagingRemoved,
    Stop,
    Submit,
    Summary,
    TakeSavepoint,
    TaskFailed,
    TaskPosition,
    TaskReady,
    TaskRefused,
    TaskRunning,
    TaskStopped,
)
from tests.shard import LEASE_MS, Shard
from tests.test_coordinator_core import same_after_replay

ENV = {
    "checkpoint": {"interval_ms": 100, "timeout_ms": 1000},
    "commit": {"backoff_ms": 100, "retries": 3},
    "cleanup_delay_ms": 500,
    "history_ms": 5000,
}


def body(*pipelines: int, **env: Any) -> str:
    """A job with pipelines of so many tasks."""
    sources = [{"name": f"in{i}", "kind": "generator", "parallelism": n} for i, n in enumerate(pipelines)]
    sinks = [{"name": f"out{i}", "kind": "files", "from": [f"in{i}"]} for i in range(len(pipelines))]
    return json.dumps({"env": ENV | env, "source": sources, "sink": sinks})


def run(shard: Shard, *pipelines: int, job: str = "a", **env: Any) -> None:
    assert shard.command(job, Submit(specification=body(*(pipelines or (2,)), **env))).to == "ACCEPTED"
    start(shard, job)
    assert shard.job(job) == "RUNNING"
    shard.new_orders()


def start(shard: Shard, job: str = "a") -> None:
    for number, pipeline in shard.state.jobs[job].pipelines.items():
        for index, task in list(pipeline.tasks.items()):
            shard.report(job, index, TaskRunning(), pipeline=number, attempt=task.attempt, worker=worker(task))


def worker(task: Event) -> str:
    return task.state.worker  # type: ignore[union-attr]


def ack(shard: Shard, job: str = "a", pipeline: int = 0) -> int:
    """All tasks acknowledge the checkpoint in flight. Position and staging say which it is."""
    view = shard.state.jobs[job].pipelines[pipeline]
    assert view.pending is not None
    assert isinstance(view.pending.state, Checkpoint)
    number = view.pending.state.id
    for index, task in list(view.tasks.items()):
        staged = (Staged(name=f"{index}-{number}", rows=1, size=8),)
        said = CheckpointAcked(checkpoint=number, position=b"%d" % (100 * number + index), staged=staged)
        shard.report(job, index, said, pipeline=pipeline, attempt=task.attempt, worker=worker(task))
    return number


def committed(shard: Shard, number: int, job: str = "a", pipeline: int = 0) -> None:
    shard.report(job, -1, CheckpointCommitted(checkpoint=number), pipeline=pipeline, worker="w1")


def checkpoint(shard: Shard, job: str = "a", pipeline: int = 0) -> int:
    """The next one, from its time to its commit."""
    shard.wait(100)
    number = ack(shard, job, pipeline)
    committed(shard, number, job, pipeline)
    return number


def ask(shard: Shard, action: CommandAction, job: str = "a", by: str = "me") -> tuple[str, str]:
    outcome = shard.command(job, action, f"ask-{shard.offset}", by)
    assert isinstance(outcome.state, Outcome)
    assert outcome.state.reason
    same_after_replay(shard)
    return outcome.to, outcome.state.reason


def refusal(shard: Shard, action: CommandAction, job: str = "a", by: str = "me") -> str:
    """Why it is refused; nothing else is written."""
    before = len(shard.log)
    to, reason = ask(shard, action, job, by)
    assert to == "REFUSED"
    assert {e.entity.split("/")[0] for e in shard.log[before:]} == {"command", "cursor"}
    return reason


def deploys(shard: Shard) -> list[tuple[int, int, int, bytes]]:
    """Pipeline and task, and the checkpoint and position that it is to start from."""
    found = [o for o in shard.new_orders() if isinstance(o, Order)]
    return [(o.pipeline, o.task, o.action.checkpoint, o.action.position) for o in found if isinstance(o.action, Deploy)]


def clean_up(shard: Shard, incarnation: int) -> None:
    shard.report("a", -1, StagingRemoved(), pipeline=-1, worker="w1", incarnation=incarnation)


def incarnation(shard: Shard) -> int:
    event = shard.state.jobs["a"].event
    assert event is not None
    return event.incarnation


# Restore --------------------------------------------------------------------------------------------------------------


def test_T4_an_ended_job_is_restored_from_its_newest_committed_checkpoint(shard: Shard) -> None:
    run(shard)
    checkpoint(shard)
    newest = checkpoint(shard)
    shard.wait(100)
    ack(shard)  # completed, but not committed: given up with the job, or committed late
    committed(shard, newest + 1)
    shard.command("a", Cancel())
    to, reason = ask(shard, Restore())
    assert (to, reason) == ("ACCEPTED", "incarnation 2, from checkpoint 3 of incarnation 1")
    assert deploys(shard) == [(0, 0, 3, b"300"), (0, 1, 3, b"301")]
    start(shard)
    assert checkpoint(shard) == 4  # numbers go on where they were


def test_T4_a_job_is_restored_from_a_savepoint_older_than_its_newest_checkpoint(shard: Shard) -> None:
    run(shard)
    ask(shard, TakeSavepoint(name="s1"))
    committed(shard, ack(shard))
    checkpoint(shard)
    shard.command("a", Cancel())
    shard.new_orders()
    assert ask(shard, Restore(savepoint="s1")) == ("ACCEPTED", "incarnation 2, from savepoint s1 of incarnation 1")
    assert deploys(shard) == [(0, 0, 1, b"100"), (0, 1, 1, b"101")]
    event = shard.state.jobs["a"].event
    assert event is not None
    assert isinstance(event.state, Job)
    assert event.state.origin == "savepoint s1 of incarnation 1"


def test_T4_during_the_pending_cleanup_the_old_staging_is_still_removed(shard: Shard) -> None:
    run(shard)
    checkpoint(shard)
    shard.command("a", Cancel())
    old = shard.state.jobs["a"].cleanup
    assert old is not None
    ask(shard, Restore())
    start(shard)
    assert shard.state.jobs["a"].cleanups == {1: old}
    shard.new_orders()
    shard.wait(500)
    (removal,) = [o for o in shard.new_orders() if isinstance(o, Order) and isinstance(o.action, RemoveStaging)]
    assert removal.incarnation == 1
    assert isinstance(removal.action, RemoveStaging)
    assert json.loads(removal.action.specification)["source"]
    clean_up(shard, 1)
    assert shard.state.jobs["a"].cleanups == {}
    assert (shard.job(), incarnation(shard)) == ("RUNNING", 2)
    same_after_replay(shard)


def test_T4_after_the_cleanup_a_job_is_restored_from_its_summary(shard: Shard) -> None:
    run(shard)
    checkpoint(shard)
    shard.command("a", Cancel())
    shard.wait(500)
    clean_up(shard, 1)
    assert shard.state.jobs == {}
    shard.elect()
    shard.worker("w1")
    assert ask(shard, Restore()) == ("ACCEPTED", "incarnation 2, from checkpoint 1 of incarnation 1")
    assert deploys(shard) == [(0, 0, 1, b"100"), (0, 1, 1, b"101")]


def test_after_its_history_nothing_is_kept_to_restore_from(shard: Shard) -> None:
    run(shard)
    checkpoint(shard)
    shard.command("a", Cancel())
    shard.wait(500)
    clean_up(shard, 1)
    shard.wait(5000)
    assert "nothing is kept of a" in refusal(shard, Restore())
    assert "nothing is kept of ghost" in refusal(shard, Restore(), job="ghost")


def test_a_job_that_failed_while_publishing_is_restored_from_the_checkpoint_before(shard: Shard) -> None:
    run(shard)
    checkpoint(shard)
    shard.wait(100)
    number = ack(shard)
    while shard.job() != "FAILED":  # whoever is asked says so, until one may say the last word
        *_, order = [o for o in shard.new_orders() if isinstance(o, Order) and isinstance(o.action, CommitCheckpoint)]
        assert isinstance(order.action, CommitCheckpoint)
        tries, conclusive = order.action.tries, order.action.conclusive
        gone = CheckpointFailed(
            checkpoint=number, reason="table gone", lasting=True, tries=tries, conclusive=conclusive
        )
        shard.report("a", -1, gone, worker=order.worker)
        assert tries < 5
        shard.wait(100 << tries if shard.job() == "FAILING" else 0)
    shard.new_orders()
    assert ask(shard, Restore())[1] == "incarnation 2, from checkpoint 1 of incarnation 1"
    assert deploys(shard) == [(0, 0, 1, b"100"), (0, 1, 1, b"101")]


def test_a_changed_specification_may_be_given_but_of_the_same_shape(shard: Shard) -> None:
    run(shard)
    checkpoint(shard)
    shard.command("a", Cancel())
    assert refusal(shard, Restore(specification=body(3))) == (
        "what is kept has 2 tasks in pipeline 0, the specification 3: restore it with the parallelism it had"
    )
    assert refusal(shard, Restore(specification=body(2, 1))) == "what is kept has 1 pipelines, the specification 2"
    assert "sink is empty" in refusal(
        shard, Restore(specification='{"source": [{"name": "i", "kind": "k"}], "sink": []}')
    )
    assert shard.job() == "CANCELED"
    assert ask(shard, Restore(specification=body(2, cleanup_delay_ms=7)))[0] == "ACCEPTED"
    assert shard.state.jobs["a"].plan.env.cleanup_delay_ms == 7


def test_a_savepoint_of_another_job_is_refused(shard: Shard) -> None:
    run(shard)
    run(shard, job="b")
    ask(shard, TakeSavepoint(name="s1"))
    committed(shard, ack(shard))
    for job in ("a", "b"):
        shard.command(job, Cancel())
    assert refusal(shard, Restore(savepoint="s1"), job="b") == "b has no savepoint s1, nor any other"
    assert refusal(shard, Restore(savepoint="s2")) == "a has no savepoint s2; it has s1"


def test_Z3_to_start_elsewhere_is_said_explicitly(shard: Shard) -> None:
    run(shard)
    checkpoint(shard)
    shard.command("a", Cancel())
    shard.new_orders()
    other = TaskPosition(pipeline=0, task=1, position=b"900")
    for wrong in (replace(other, task=2), replace(other, pipeline=1), replace(other, task=-1)):
        assert "to start elsewhere" in refusal(shard, Restore(elsewhere=(wrong,)))
    said = ask(shard, Restore(elsewhere=(other,)))[1]
    assert said.endswith("from checkpoint 1 of incarnation 1, with positions that the command names")
    assert deploys(shard) == [(0, 0, 1, b"100"), (0, 1, 1, b"900")]


def test_what_has_not_ended_or_has_nothing_to_go_on_from_is_not_restored(shard: Shard) -> None:
    run(shard)
    assert refusal(shard, Restore()) == "a is RUNNING; only a job that has ended is restored"
    shard.command("a", Cancel())
    assert "a never committed a checkpoint" in refusal(shard, Restore())
    run(shard, job="b")
    shard.report("b", 0, TaskReady())
    shard.report("b", 1, TaskReady())
    committed(shard, ack(shard, "b"), "b")
    assert shard.job("b") == "FINISHED"
    assert "b has ended as FINISHED and has nothing left to go on with" in refusal(shard, Restore(), job="b")


def test_a_job_can_be_restored_again_and_again_from_what_each_incarnation_left(shard: Shard) -> None:
    run(shard)
    ask(shard, TakeSavepoint(name="s1"))
    committed(shard, ack(shard))
    shard.command("a", Cancel())
    ask(shard, Restore())
    start(shard)
    checkpoint(shard)
    shard.command("a", Cancel())
    assert ask(shard, Restore())[1] == "incarnation 3, from checkpoint 2 of incarnation 2"
    shard.command("a", Cancel())
    assert ask(shard, Restore(savepoint="s1"))[1] == "incarnation 4, from savepoint s1 of incarnation 1"


def test_B2_restored_and_ended_before_its_first_checkpoint_a_job_keeps_the_point_it_began_from(shard: Shard) -> None:
    run(shard)
    checkpoint(shard)
    shard.command("a", Cancel())
    ask(shard, Restore())
    start(shard)
    shard.command("a", Cancel())
    shard.new_orders()
    assert ask(shard, Restore())[1] == "incarnation 3, from checkpoint 1 of incarnation 2"
    assert deploys(shard) == [(0, 0, 1, b"100"), (0, 1, 1, b"101")]


# Savepoints -----------------------------------------------------------------------------------------------------------


def savepoint(shard: Shard, name: str = "s1", job: str = "a") -> tuple[str, Savepoint]:
    event = shard.state.jobs[job].savepoints[name]
    assert isinstance(event.state, Savepoint)
    return event.to, event.state


def test_a_savepoint_is_taken_at_once_and_the_job_goes_on(shard: Shard) -> None:
    run(shard)
    checkpoint(shard)
    assert ask(shard, TakeSavepoint(name="s1")) == ("ACCEPTED", "savepoint s1 is being taken")
    assert savepoint(shard)[0] == "TAKING"
    number = ack(shard)  # it does not wait for the interval
    assert savepoint(shard)[0] == "TAKING"
    committed(shard, number)
    to, kept = savepoint(shard)
    assert to == "KEPT"
    assert [(p.checkpoint, p.positions) for p in kept.points] == [(2, (b"200", b"201"))]
    assert shard.job() == "RUNNING"
    assert checkpoint(shard) == 3


def test_a_checkpoint_that_was_in_flight_before_does_not_count(shard: Shard) -> None:
    run(shard)
    shard.wait(100)
    ask(shard, TakeSavepoint(name="s1"))
    committed(shard, ack(shard))
    assert savepoint(shard)[0] == "TAKING"  # what it holds was so before it was asked for
    committed(shard, ack(shard))
    assert savepoint(shard)[1].points[0].checkpoint == 2


def test_a_name_is_used_once(shard: Shard) -> None:
    run(shard)
    ask(shard, TakeSavepoint(name="s1"))
    assert refusal(shard, TakeSavepoint(name="s1")) == "a has a savepoint s1 already"
    committed(shard, ack(shard))
    assert refusal(shard, TakeSavepoint(name="s1", stop=True)) == "a has a savepoint s1 already"


@pytest.mark.parametrize("name", ["", "x" * 1_000_000])
def test_a_savepoint_needs_a_name(shard: Shard, name: str) -> None:
    run(shard)
    assert refusal(shard, TakeSavepoint(name=name)).startswith("a savepoint needs a name")


def test_a_savepoint_over_several_pipelines_has_a_point_of_each(shard: Shard) -> None:
    run(shard, 1, 2)
    ask(shard, TakeSavepoint(name="s1"))
    committed(shard, ack(shard, pipeline=1), pipeline=1)
    assert savepoint(shard)[0] == "TAKING"
    shard.elect()
    shard.worker("w1")
    shard.worker("w2")
    committed(shard, ack(shard, pipeline=0), pipeline=0)
    to, kept = savepoint(shard)
    assert to == "KEPT"
    assert [(p.pipeline, p.positions) for p in kept.points] == [(0, (b"100",)), (1, (b"100", b"101"))]
    shard.command("a", Cancel())
    shard.new_orders()
    assert ask(shard, Restore(savepoint="s1"))[0] == "ACCEPTED"
    assert sorted(deploys(shard)) == [(0, 0, 1, b"100"), (1, 0, 1, b"100"), (1, 1, 1, b"101")]


def test_a_pipeline_that_has_finished_adds_the_point_it_ended_with(shard: Shard) -> None:
    run(shard, 1, 1)
    shard.report("a", 0, TaskReady())
    committed(shard, ack(shard))
    assert [p.event.to for p in shard.state.jobs["a"].pipelines.values() if p.event] == ["FINISHED", "RUNNING"]
    ask(shard, TakeSavepoint(name="s1"))
    committed(shard, ack(shard, pipeline=1), pipeline=1)
    assert savepoint(shard)[0] == "KEPT"


def test_a_paused_job_gives_a_savepoint_without_moving(shard: Shard) -> None:
    run(shard)
    ask(shard, Pause())
    committed(shard, ack(shard))
    assert shard.job() == "PAUSED"
    assert ask(shard, TakeSavepoint(name="s1"))[0] == "ACCEPTED"
    to, kept = savepoint(shard)
    assert (to, kept.points[0].checkpoint, shard.job()) == ("KEPT", 1, "PAUSED")
    assert ask(shard, TakeSavepoint(name="s2", stop=True))[0] == "ACCEPTED"
    assert (savepoint(shard, "s2")[0], shard.job()) == ("KEPT", "SAVEPOINTED")


def test_a_savepoint_that_was_not_taken_before_the_end_says_so(shard: Shard) -> None:
    run(shard)
    ask(shard, TakeSavepoint(name="s1"))
    shard.command("a", Cancel())
    to, missed = savepoint(shard)
    assert (to, missed.reason) == ("FAILED", "the job ended before it was taken")
    assert "nor any other" in refusal(shard, Restore(savepoint="s1"))
    assert refusal(shard, TakeSavepoint(name="s2")) == "a job that is CANCELED can't take a savepoint"


def test_a_task_that_fails_on_the_way_delays_the_savepoint_and_loses_nothing(shard: Shard) -> None:
    run(shard, restart={"retries": 3, "backoff_ms": 50})
    ask(shard, TakeSavepoint(name="s1", stop=True))
    shard.report("a", 1, TaskFailed(reason="boom"))
    assert shard.job() == "SAVEPOINTING"
    shard.wait(50)
    start(shard)
    committed(shard, ack(shard))
    assert (shard.job(), savepoint(shard)[0]) == ("SAVEPOINTED", "KEPT")


# Repair ---------------------------------------------------------------------------------------------------------------


def repaired(shard: Shard, entity: str, to: str) -> Event:
    """The event that the repair wrote: it says who and why."""
    before = len(shard.log)
    assert ask(shard, Repair(entity=entity, to=to, reason="it is stuck"), by="ann") == ("ACCEPTED", f"{entity} is {to}")
    (event,) = [e for e in shard.log[before:] if isinstance(e, Event) and e.transition in ("repaired", "dropped")]
    assert (event.entity, event.to) == (entity, to)
    assert event.cause.note == "repaired by ann: it is stuck"
    assert event.cause.topic
    return event


def test_B12_a_job_is_made_to_fail(shard: Shard) -> None:
    run(shard)
    repaired(shard, "job/a", "FAILING")
    assert (shard.job(), shard.tasks()) == ("FAILED", ["CANCELED", "CANCELED"])
    assert shard.actions() == ["StopTask", "StopTask"]
    assert shard.state.summaries["a"][1].state.reason == "FAILED: repaired by ann: it is stuck"  # type: ignore[union-attr]


def test_B12_a_task_is_fenced_and_started_anew(shard: Shard) -> None:
    run(shard, restart={"retries": 1, "backoff_ms": 50})
    repaired(shard, "task/a/0/1", "FAILED")
    assert shard.actions() == ["StopTask"]
    shard.wait(50)
    assert shard.tasks() == ["RUNNING", "DEPLOYING"]
    assert shard.state.jobs["a"].pipelines[0].tasks[1].attempt == 2


def test_B12_a_checkpoint_in_flight_is_given_up(shard: Shard) -> None:
    run(shard)
    shard.wait(100)
    repaired(shard, "pending/a/0", "ABORTED")
    assert shard.job() == "RUNNING"
    assert checkpoint(shard) == 2


def test_B12_a_checkpoint_is_said_to_be_published(shard: Shard) -> None:
    run(shard)
    shard.wait(100)
    ack(shard)
    repaired(shard, "checkpoint/a/0", "COMMITTED")
    assert checkpoint(shard) == 2


def test_B12_a_checkpoint_is_dropped_only_when_the_job_ends(shard: Shard) -> None:
    run(shard)
    checkpoint(shard)
    shard.wait(100)
    ack(shard)
    drop = Repair(entity="checkpoint/a/0", to="ABANDONED", reason="the table is gone")
    assert refusal(shard, drop) == "a still runs on top of checkpoint/a/0; end the job first"
    shard.command("a", Cancel())
    assert shard.job() == "CANCELLING"  # it waits for what is completed
    repaired(shard, "checkpoint/a/0", "ABANDONED")
    assert shard.job() == "CANCELED"
    shard.new_orders()
    assert ask(shard, Restore())[1].startswith("incarnation 2, from checkpoint 1 ")
    assert deploys(shard) == [(0, 0, 1, b"100"), (0, 1, 1, b"101")]


def test_B12_a_cleanup_is_said_to_be_done(shard: Shard) -> None:
    run(shard)
    shard.command("a", Cancel())
    before = len(shard.log)
    assert ask(shard, Repair(entity="cleanup/a/1", to="REMOVED", reason="by hand"), by="ann")[0] == "ACCEPTED"
    gone = [e.entity for e in shard.log[before:] if isinstance(e, Gone)]
    assert gone[-2:] == ["job/a", "cleanup/a/1"]
    assert shard.job() == ""
    assert shard.submit("a", 1).to == "ACCEPTED"


def test_B12_a_repair_says_who_and_why(shard: Shard) -> None:
    run(shard)
    fail = Repair(entity="job/a", to="FAILING", reason="it is stuck")
    assert refusal(shard, fail, by="") == "a repair says who makes it and why"
    assert refusal(shard, replace(fail, reason="")) == "a repair says who makes it and why"


@pytest.mark.parametrize(
    ("entity", "to", "says"),
    [
        ("job/b", "FAILING", "job/b does not belong to a"),
        ("job/a", "FINISHED", "a job can't be repaired to FINISHED. What can be: job to FAILING"),
        ("ready/a/0/0", "READY", "a ready can't be repaired to READY"),
        ("task/a/0/9", "FAILED", "task/a/0/9 is not there"),
        ("pending/a/0", "ABORTED", "pending/a/0 is not there"),
        ("cleanup/a/7", "REMOVED", "cleanup/a/7 is not there"),
        ("moon", "FULL", "What can be repaired: job to FAILING"),
        ("task/a/0/-1", "FAILED", "a number in a key is 0 or more"),
        ("x" * 3_900_000, "FAILED", "What can be repaired|characters"),
    ],
)
def test_B12_what_can_not_be_repaired_is_refused(shard: Shard, entity: str, to: str, says: str) -> None:
    run(shard)
    run(shard, job="b")
    reason = refusal(shard, Repair(entity=entity, to=to, reason="it is stuck"))
    assert any(part in reason for part in says.split("|"))
    assert len(reason) < MAX_TEXT + 100


def test_B12_what_is_in_another_state_is_left_alone(shard: Shard) -> None:
    run(shard)
    checkpoint(shard)
    for (kind, to), entity in zip(
        REPAIRS,
        ["job/a", "task/a/0/0", "pending/a/0", "checkpoint/a/0", "checkpoint/a/0", "cleanup/a/1"],
        strict=True,
    ):
        if kind in ("pending", "checkpoint"):
            assert "can't be repaired" in refusal(shard, Repair(entity=entity, to=to, reason="it is stuck"))
    shard.command("a", Cancel())
    for entity, to in (("job/a", "FAILING"), ("task/a/0/0", "FAILED"), ("pending/a/0", "ABORTED")):
        assert "can't be repaired" in refusal(shard, Repair(entity=entity, to=to, reason="it is stuck"))


# Command ids, and what is wrong from the start ------------------------------------------------------------------------


def of_jobs(shard: Shard) -> list[Event | Gone]:
    return [event for event in shard.log if not event.entity.startswith(("cursor", "leader"))]


def test_a_command_repeated_is_answered_once(shard: Shard) -> None:
    first = shard.command("a", Submit(specification=body(1)), "id")
    written = len([e for e in shard.log if not e.entity.startswith("cursor")])
    shard.elect()
    assert shard.command("a", Submit(specification=body(1)), "id") == first
    assert (
        len([e for e in shard.log if not e.entity.startswith(("cursor", "leader"))]) == written - 1
    )  # the first election


def test_the_same_id_with_other_content_is_refused_and_the_first_stands(shard: Shard) -> None:
    run(shard)
    stop = Command(id="id", job="a", by="me", action=Stop())
    shard.give(stop)
    shard.give(replace(stop, action=Cancel()))
    shard.give(replace(stop, action=Cancel()))
    shard.give(replace(stop, by="somebody else"))  # who asks is no part of what is asked
    outcomes = [e for name, e in shard.state.jobs["a"].commands.items() if name.endswith("id")]
    assert sorted(e.to for e in outcomes) == ["ACCEPTED", "REFUSED"]
    assert shard.job() == "DRAINING"


def test_a_late_copy_of_a_command_of_a_cleaned_up_job_does_nothing(shard: Shard) -> None:
    submit = Command(id="id", job="a", by="me", action=Submit(specification=body(1)))
    shard.give(submit)
    shard.command("a", Cancel())
    shard.wait(500)
    clean_up(shard, 1)
    assert shard.state.jobs == {}
    assert shard.give(submit).is_empty
    assert "a late copy of command id" in shard.notes[-1]


def test_a_command_without_a_usable_name_is_dropped_with_a_note(shard: Shard) -> None:
    """There is nowhere for its outcome to stand."""
    for command in (
        Command(id="", job="a", action=Cancel()),
        Command(id="id", job="", action=Cancel()),
        Command(id="id", job="x" * 1_000_000, action=Submit(specification=body(1))),
        Command(id="x" * 1_000_000, job="a", action=Submit(specification=body(1))),
    ):
        assert shard.give(command).is_empty
        assert "without a usable job or id is dropped" in shard.notes[-1]
        assert len(shard.notes[-1]) < MAX_TEXT + 100


IN, OUT = {"name": "in", "kind": "k"}, {"name": "out", "kind": "k", "from": ["in"]}
T, U = {"name": "t", "kind": "k", "from": ["u"]}, {"name": "u", "kind": "k", "from": ["t", "in"]}


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"colour": 1}, "unknown field `colour`"),
        ({"transform": [T, U]}, "t, u read from each other in a cycle"),
        ({"sink": []}, "sink is empty; a job writes to at least one"),
        ({"env": {"parallelism": 0}}, "env.parallelism is 0; it may be 1 to 10000"),
        ({"env": {"parallelism": 10_000_000}}, "env.parallelism is 10000000"),
        ({"source": [IN | {"name": "x" * 1_000_000}]}, "must have 1 to 512 bytes"),
        ({"env": {"checkpoint": {"interval_ms": -1}}}, "env.checkpoint.interval_ms is -1; it may be 1 to"),
        ({"source": [IN | {"options": {"deep": "["}}]}, ""),
    ],
)
def test_a_bad_specification_is_refused_with_the_reason(shard: Shard, parts: dict[str, Any], says: str) -> None:
    text = json.dumps({"source": [IN], "sink": [OUT]} | parts)
    if not says:  # what no parser likes
        text, says = text.replace('"["', "[" * 100_000 + "]" * 100_000), "nested too deeply"
    assert says in refusal(shard, Submit(specification=text))
    assert shard.job() == ""


def test_a_long_chain_of_steps_is_cut_into_pipelines_in_no_time(shard: Shard) -> None:
    """It took 17 s of the leader's only thread: every one of many inputs walked the whole chain."""
    chain = [{"name": f"t{i}", "kind": "k", "from": [f"t{i - 1}" if i else "in"]} for i in range(900)]
    sink = OUT | {"from": ["in"] * 100_000 + ["t899"]}
    text = json.dumps({"source": [IN], "transform": chain, "sink": [sink]}, separators=(",", ":"))
    assert ask(shard, Submit(specification=text))[0] == "ACCEPTED"
    assert shard.tasks() == ["DEPLOYING"]


def test_what_a_job_can_not_do_now_is_refused(shard: Shard) -> None:
    for action in (Cancel(), Stop(), Pause(), Resume(), TakeSavepoint(name="s1")):
        assert refusal(shard, action) == "there is no job a"
    run(shard)
    assert refusal(shard, Resume()) == "a job that is RUNNING can't be resumed"
    ask(shard, Stop())
    assert refusal(shard, Pause()) == "a job that is DRAINING can't be pausing"


def test_an_outcome_without_a_job_goes_after_a_day(shard: Shard) -> None:
    refusal(shard, Cancel(), job="ghost")
    shard.wait(86_400_000)
    assert shard.state.jobs == {}


# Reports and heartbeats from nowhere ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"job": "nobody"},
        {"worker": "w9"},
        {"attempt": 9},
        {"attempt": -1},
        {"task": 9},
        {"pipeline": 9},
        {"pipeline": -7},
        {"incarnation": 99},
    ],
    ids=str,
)
def test_a_report_of_what_nobody_knows_changes_nothing(shard: Shard, given: dict[str, Any]) -> None:
    run(shard)
    before = of_jobs(shard)
    fields: dict[str, Any] = {"job": "a", "task": 0} | given
    for happening in (TaskRunning(), TaskReady(), TaskFailed(reason="x"), TaskStopped(), TaskRefused(reason="no room")):
        shard.report(happening=happening, **fields)
        assert shard.notes[-1].startswith("late ")
    assert of_jobs(shard) == before
    same_after_replay(shard)


def test_a_report_with_an_unusable_name_is_not_even_answered(shard: Shard) -> None:
    """An order key of a megabyte would be a record that no broker takes."""
    shard.new_orders()
    shard.report("x" * 1_000_000, 0, TaskStopped(), worker="w1")
    shard.report("nobody", 0, TaskStopped(), worker="")
    assert shard.new_orders() == []
    shard.report("nobody", 0, TaskStopped(), worker="w1")
    assert shard.actions() == ["withdrawn"]


def test_a_worker_without_a_usable_name_is_given_nothing(shard: Shard) -> None:
    """It was given tasks, and the sweep that found it silent stopped the shard."""
    for name in ("", "x" * 513):
        shard.worker(name, slots=100)
        assert "without a usable name" in shard.notes[-1]
    run(shard)
    assert {worker(task) for task in shard.state.jobs["a"].pipelines[0].tasks.values()} == {"w1", "w2"}
    shard.now += 2 * LEASE_MS
    shard.sweep()
    odd = Heartbeat(worker="w1", instance="", time=-1, slots=-5, labels={"": ""})
    shard.give(odd)
    same_after_replay(shard)


def test_endless_reasons_are_cut(shard: Shard) -> None:
    """A report may be as large as a record; what is made of it stands in several, next to other things."""
    run(shard, restart={"retries": 1, "backoff_ms": 50})
    shard.report("a", 0, TaskFailed(reason="y" * 3_900_000))
    shard.wait(50)
    shard.command("a", Cancel(reason="z" * 3_900_000), by="x" * 3_900_000)
    assert shard.job() == "CANCELED"
    said = [getattr(e.state, "reason", "") for e in shard.log if isinstance(e, Event)]
    assert max(len(reason) for reason in said) < MAX_TEXT + 200
    assert any(reason.endswith("… (3,900,000 characters)") for reason in said)
    summary = shard.state.summaries["a"][1].state
    assert isinstance(summary, Summary)
    assert len(summary.reason) < MAX_TEXT + 200
