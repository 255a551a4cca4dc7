"""What can't be read, or can't be decided on, ends its own job with the reason, and nothing else: B5, R4."""

from __future__ import annotations

import pytest

from coordinator.core import activation
from coordinator.draft import Gone, Withdrawal
from coordinator.quarantine import Impossible, Unreadable
from coordinator.state import State, entity_of, fold
from events.keys import named
from events.records import (
    Cancel,
    CheckpointAcked,
    CheckpointCommitted,
    Command,
    Event,
    Job,
    Leader,
    Restore,
    StagingRemoved,
    Submit,
    TakeSavepoint,
    TaskProgress,
    TaskReady,
    TaskRunning,
)
from tests.shard import Shard, specification
from tests.test_coordinator_core import same_after_replay

ENV = {"checkpoint": {"interval_ms": 100, "timeout_ms": 1000}, "cleanup_delay_ms": 200, "history_ms": 100_000}


@pytest.fixture
def shard() -> Shard:
    """Two jobs. Of `a` there is everything: a mark, acknowledgements, a committed checkpoint and one in flight."""
    made = Shard()
    made.worker("w1")
    made.worker("w2")
    for job in ("a", "b"):
        made.submit(job, 2, **ENV)
        for task in range(2):
            made.report(job, task, TaskRunning())
    made.command("a", TakeSavepoint(name="s1"))
    acknowledge(made, 1)
    made.report("a", -1, CheckpointCommitted(checkpoint=1), worker="w1")
    made.report("a", 0, TaskReady())
    made.wait(100)
    made.report("a", 0, CheckpointAcked(checkpoint=2, position=b"2"))
    return made


def acknowledge(shard: Shard, checkpoint: int) -> None:
    for task in range(2):
        shard.report("a", task, CheckpointAcked(checkpoint=checkpoint, position=b"1"))


def replay(shard: Shard, *lost: str) -> None:
    """A new leader that can't read the newest records of these entities."""
    again = State(0)
    for event in shard.log:
        fold(again, entity_of(event.entity), event if isinstance(event, Event) else None)
    unreadable = []
    for text in lost:
        known = again.get(entity_of(text))
        assert known is not None, f"there is no {text}"
        unreadable.append(Unreadable(entity_of(text), known.incarnation, "bytes of no schema"))
        fold(again, entity_of(text), None)
    shard.state = again
    again.led_since = shard.now
    leader = Leader(coordinator="c", reason="test")
    shard.write(activation(again, again.epoch + 1, shard.now, leader, unreadable).decision())
    shard.worker("w1")
    shard.worker("w2")
    same_after_replay(shard)


def reason(shard: Shard, job: str = "a") -> str:
    event = shard.state.jobs[job].event
    assert event is not None
    assert isinstance(event.state, Job)
    return event.state.reason


def cleaned_up(shard: Shard, job: str = "a", incarnation: int = 1) -> bool:
    cleanup = shard.state.jobs[job].cleanups[incarnation]
    shard.wait(cleanup.due_at - shard.now)  # without a readable specification: by the defaults
    shard.report(job, -1, StagingRemoved(), pipeline=-1, worker="w1", incarnation=incarnation)
    same_after_replay(shard)
    return job not in shard.state.jobs


OF_THE_JOB = [
    "job/a", "specification/a", "pipeline/a/0", "task/a/0/0", "task/a/0/1", "ready/a/0/0", "ack/a/0/0", "pending/a/0",
    "checkpoint/a/0", "savepoint/a/s1",
]  # fmt: skip


@pytest.mark.parametrize("entity", OF_THE_JOB)
def test_B5_one_record_that_can_not_be_read_ends_its_job_and_no_other(shard: Shard, entity: str) -> None:
    replay(shard, entity)
    assert shard.job() == "FAILED"
    assert reason(shard) == f"quarantined: {entity} can't be read: bytes of no schema"
    assert shard.job("b") == "RUNNING"
    assert f"{entity} can't be read: bytes of no schema" in shard.notes
    gone = [e for e in shard.log if isinstance(e, Gone) and e.entity == entity]
    assert gone  # it is off the log, so that the next leader does not stumble over it
    replay(shard)
    assert shard.job() == "FAILED"
    assert cleaned_up(shard)
    left = [e for e in shard.log if isinstance(e, Event) and e.job == "a"]
    assert {e.entity for e in left} - {e.entity for e in shard.log if isinstance(e, Gone)} == {"summary/a/1"}


@pytest.mark.parametrize("entity", OF_THE_JOB)
def test_B5_whatever_is_lost_while_a_checkpoint_is_being_published(shard: Shard, entity: str) -> None:
    """Found by odd inputs: the word that it is published stopped the shard when the pipeline could not be read."""
    acknowledge(shard, 2)
    assert shard.state.jobs["a"].pipelines[0].checkpoint is not None
    replay(shard, entity)
    if entity != "checkpoint/a/0":
        assert shard.job() == "FAILING"  # completing was the decision: it is still to be published
        shard.report("a", -1, CheckpointCommitted(checkpoint=2), worker="w1", incarnation=1)
    assert shard.job() == "FAILED"
    assert cleaned_up(shard)


def test_R7_what_runs_unknown_to_all_is_stopped_before_staging_is_removed(shard: Shard) -> None:
    """Found by the simulation: the record that said who runs the task was lost, staging was removed at once, and the
    attempt staged once more."""
    replay(shard, "task/a/0/0")
    runs = TaskProgress(job="a", incarnation=1, pipeline=0, task=0, attempt=1)
    cleanup = shard.state.jobs["a"].cleanups[1]
    assert cleanup.due_at == shard.now + shard.state.lease_ms + 1, "until then whoever runs it is heard or has stopped"
    shard.new_orders()
    shard.worker("w2", tasks=(runs,))
    assert Withdrawal("w2", "a", 0, 0) in shard.new_orders()
    shard.wait(cleanup.due_at - shard.now)
    held_up = shard.state.jobs["a"].cleanups[1]
    assert "RemoveStaging" not in shard.actions()
    assert (held_up.to, held_up.state.reason) == ("REMOVING", "an attempt of it still runs on w2")  # type: ignore[union-attr]
    shard.worker("w2")
    shard.wait(held_up.due_at - shard.now)
    assert "RemoveStaging" in shard.actions()
    shard.report("a", -1, StagingRemoved(), pipeline=-1, worker="w1", incarnation=1)
    assert "a" not in shard.state.jobs


def test_R7_a_new_leader_hears_everybody_before_it_removes_what_somebody_may_still_stage(shard: Shard) -> None:
    replay(shard, "task/a/0/0")
    ended, lease_ms = shard.now, shard.state.lease_ms
    shard.wait(lease_ms - 1)
    replay(shard)
    shard.wait(2)
    cleanup = shard.state.jobs["a"].cleanups[1]
    assert "some worker may still run it" in cleanup.state.reason  # type: ignore[union-attr]
    assert cleanup.due_at == ended + lease_ms - 1 + lease_ms + 1
    assert cleaned_up(shard)


def test_R4_a_mark_that_can_not_be_read_is_not_taken_for_none(shard: Shard) -> None:
    replay(shard, "ready/a/0/0")
    assert shard.job() == "FAILED"
    assert "ready/a/0/0 can't be read" in reason(shard)


def test_B5_several_records_of_several_jobs(shard: Shard) -> None:
    replay(shard, "task/a/0/0", "task/a/0/1", "pipeline/a/0", "job/b")
    assert (shard.job("a"), shard.job("b")) == ("FAILED", "FAILED")
    assert "job/b can't be read" in reason(shard, "b")
    assert cleaned_up(shard)


def test_B5_of_a_job_that_has_ended_the_end_stands(shard: Shard) -> None:
    shard.command("a", Cancel(reason="enough"))
    replay(shard, "task/a/0/0")
    assert (shard.job(), reason(shard)) == ("CANCELED", "enough")
    assert cleaned_up(shard)


def test_B5_a_job_on_its_way_to_an_end_is_not_restored_from_what_can_not_be_read(shard: Shard) -> None:
    """Found by the simulation: canceled while its last checkpoint was being published, it forgot where it was."""
    acknowledge(shard, 2)
    shard.command("a", Cancel(reason="enough"))
    assert shard.job() == "CANCELLING"
    replay(shard, "checkpoint/a/0")
    assert shard.job() == "FAILED"
    assert reason(shard) == "enough; quarantined: checkpoint/a/0 can't be read: bytes of no schema"
    assert shard.command("a", Restore()).to == "REFUSED"


def test_B5_a_promise_of_cleanup_that_can_not_be_read_is_made_again(shard: Shard) -> None:
    shard.command("a", Cancel())
    replay(shard, "cleanup/a/1")
    assert shard.state.jobs["a"].cleanup is not None
    assert cleaned_up(shard)


def test_B5_the_promise_of_an_earlier_incarnation_is_made_again_and_the_restored_job_goes_on(shard: Shard) -> None:
    """Found by the simulation: what the canceled one had staged stayed for ever, and the restored one was failed."""
    shard.command("a", Cancel())
    shard.command("a", Restore())
    replay(shard, "cleanup/a/1")
    assert shard.job() not in ("FAILED", "FAILING")
    assert sorted(shard.state.jobs["a"].cleanups) == [1]
    assert not cleaned_up(shard)  # the job stands
    assert shard.state.jobs["a"].cleanups == {}
    assert shard.job() not in ("FAILED", "FAILING")


def test_B5_a_summary_or_a_verdict_that_can_not_be_read_is_let_go(shard: Shard) -> None:
    shard.command("a", Cancel())
    assert cleaned_up(shard)
    replay(shard, "summary/a/1")
    assert "a" not in shard.state.summaries
    assert shard.job("b") == "RUNNING"


def test_B5_an_outcome_of_which_nothing_else_is_known_is_let_go(shard: Shard) -> None:
    shard.command("ghost", Cancel(), "id")
    replay(shard, "command/ghost/id")
    assert "ghost" not in shard.state.jobs
    assert "nothing else is known of ghost" in shard.notes


def test_B5_a_job_that_can_not_be_decided_on_is_quarantined(shard: Shard) -> None:
    shard.give(Impossible("a", "the state of a calls for steps without end"))
    assert shard.job() == "FAILED"
    assert reason(shard) == "quarantined: the state of a calls for steps without end"
    assert shard.job("b") == "RUNNING"
    shard.give(Impossible("nobody", "who is that?"))
    assert "nothing else is known of nobody" in shard.notes[-1]


def test_a_quarantined_job_is_not_restored_from_what_nobody_knows(shard: Shard) -> None:
    """What it published last is not known; a savepoint is another matter, and so is a new start."""
    replay(shard, "task/a/0/0")
    refused = shard.command("a", Restore())
    assert refused.to == "REFUSED"
    assert "has nothing left to go on with" in refused.state.reason  # type: ignore[union-attr]
    assert shard.command("a", Restore(savepoint="s1")).to == "ACCEPTED"


def test_the_id_of_a_quarantined_job_is_free_after_its_cleanup(shard: Shard) -> None:
    replay(shard, "specification/a")
    assert cleaned_up(shard)
    assert shard.submit("a", 1, **ENV).to == "ACCEPTED"
    event = shard.state.jobs["a"].event
    assert event is not None
    assert event.incarnation == 3


def test_what_is_left_of_an_earlier_incarnation_is_its_own_affair(shard: Shard) -> None:
    shard.command("a", Cancel())
    shard.command("a", Restore())
    replay(shard, "task/a/0/0")
    assert shard.job() == "FAILED"
    event = shard.state.jobs["a"].event
    assert event is not None
    assert event.incarnation == 3
    assert sorted(shard.state.jobs["a"].cleanups) == [1, 3]


def test_an_unreadable_record_found_while_leading_is_an_input_like_others(shard: Shard) -> None:
    shard.give(Unreadable(named("pending", "a", 0), 1, "bytes of no schema"))
    assert shard.job() == "FAILED"
    same_after_replay(shard)


@pytest.mark.parametrize("lost", ["command/a/first", "summary/a/1"])
def test_a_late_copy_is_known_though_what_remembers_commands_was_lost(shard: Shard, lost: str) -> None:
    """What is remembered of an ended job's commands only grows: one lost and one refused since is not none."""
    shard.command("a", Cancel(), "first")
    replay(shard, lost)
    again = Command(id="second", job="a", by="me", action=Submit(specification=specification(1)))
    shard.give(again)
    assert shard.state.jobs["a"].commands["second"].to == "REFUSED"
    shard.wait(500)
    shard.report("a", -1, StagingRemoved(), pipeline=-1, worker="w1")
    assert "a" not in shard.state.jobs
    assert shard.give(again).is_empty
    assert "a late copy of command second" in shard.notes[-1]
