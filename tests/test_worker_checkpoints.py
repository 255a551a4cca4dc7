"""The worker's decisions, rule by rule: checkpoints, kept reports, publishing, the removal of staging."""

from __future__ import annotations

from msgspec.structs import replace

from events import records as r
from tests.worker_bench import (
    DEPLOY,
    REMOVE,
    STOP,
    WITHDRAWN,
    Bench,
    addressed,
    commit,
    empty,
    order,
    piece,
    published,
    said,
    staged,
    stored,
    trigger,
    who,
)
from workers import happenings as h
from workers.core import decide
from workers.happenings import Outcome
from workers.ledger import Phase

# Checkpoints ---------------------------------------------------------------------------------------------------------


def ack(checkpoint: int, *names: str) -> r.CheckpointAcked:
    return r.CheckpointAcked(
        checkpoint=checkpoint, position=b"p%d" % checkpoint, staged=tuple(map(piece, names)), rows=10 * checkpoint,
        bytes_read=100,
    )  # fmt: skip


def test_a_checkpoint_is_staged_once_and_acknowledged_as_often_as_asked() -> None:
    bench = Bench().running()
    assert bench.give(trigger(1)).effects == (h.StageCheckpoint(who(), 1),)
    assert bench.give(trigger(1)) == Outcome()
    assert said(bench.give(staged(1, "a"))) == [ack(1, "a")]
    again = bench.give(trigger(1))
    assert (said(again), again.effects) == ([ack(1, "a")], ())
    assert bench.give(staged(1, "a")).ignored


def test_output_of_an_aborted_checkpoint_is_acknowledged_with_the_next_until_one_completes() -> None:
    bench = Bench().running()
    bench.give(trigger(1), staged(1, "a"))
    assert said(bench.give(trigger(2), staged(2, "b"))) == [ack(2, "a", "b")]  # 1 was aborted
    assert said(bench.give(trigger(2))) == [ack(2, "a", "b")]
    assert said(bench.give(trigger(3, completed=2), staged(3, "c"))) == [ack(3, "c")]
    assert bench.give(trigger(2)).ignored.startswith("stale")


def test_output_staged_for_a_checkpoint_that_was_given_up_meanwhile_is_not_lost() -> None:
    bench = Bench().running()
    bench.give(trigger(1))
    assert bench.give(trigger(2)).effects == (h.StageCheckpoint(who(), 2),)
    assert said(bench.give(staged(1, "a"))) == []
    assert said(bench.give(staged(2, "b"))) == [ack(2, "a", "b")]


def test_a_late_duplicate_of_completed_output_is_not_published_twice() -> None:
    bench = Bench().running()
    bench.give(trigger(1), staged(1, "a"), trigger(2, completed=1))
    assert bench.give(staged(1, "a")).ignored
    assert said(bench.give(staged(2, "b"))) == [ack(2, "b")]


def test_a_checkpoint_that_could_not_be_staged_may_be_asked_for_again() -> None:
    bench = Bench().running()
    bench.give(trigger(1))
    failed = said(bench.give(h.StageFailed(who(), 1, "disk full", lasting=True)))
    assert failed == [r.CheckpointFailed(checkpoint=1, reason="disk full", lasting=True)]
    assert bench.give(h.StageFailed(who(), 1, "disk full")).ignored
    assert bench.give(trigger(1)).effects == (h.StageCheckpoint(who(), 1),)


def test_no_checkpoint_below_the_one_the_attempt_was_deployed_for() -> None:
    bench = Bench()
    bench.give(order(r.Deploy(specification="{}", checkpoint=4, next_checkpoint=6)))
    assert "STARTING" in bench.give(trigger(6)).ignored
    bench.give(h.Started(who()))
    assert bench.give(trigger(5)).ignored.startswith("stale")
    assert bench.give(trigger(6)).effects


def test_B1_a_ready_task_takes_part_in_checkpoints() -> None:
    bench = Bench().running()
    bench.give(h.Exhausted(who(), b"end"))
    assert bench.give(trigger(1)).effects == (h.StageCheckpoint(who(), 1),)
    assert said(bench.give(staged(1))) == [ack(1)]
    assert bench.held().phase is Phase.READY


def test_a_checkpoint_of_an_attempt_that_never_came_is_answered_with_its_loss() -> None:
    """Compaction may leave the newest order of a key only; or the worker lost its disk."""
    bench = Bench()
    assert [type(happening) for happening in said(bench.give(trigger(3)))] == [r.TaskFailed]
    assert said(bench.give(order(DEPLOY))) == [bench.held().report]  # and it stays so for this attempt
    bench = Bench().running()
    assert [type(effect) for effect in bench.give(trigger(3, at=who(2))).effects] == [h.StopTask]
    outcome = bench.give(h.Stopped(who()))
    assert [(report.attempt, type(report.happening)) for report in outcome.reports] == [
        (1, r.TaskStopped),
        (2, r.TaskFailed),
    ]


def test_a_checkpoint_of_an_attempt_that_waits_is_none() -> None:
    bench = Bench().running()
    bench.give(order(DEPLOY, who(2)))
    assert bench.give(trigger(3, at=who(2))).ignored
    assert bench.give(h.Stopped(who())).effects == (h.StartTask(who(2), DEPLOY),)


# Reports that are kept -----------------------------------------------------------------------------------------------


def times_said(bench: Bench, ms: int) -> list[int]:
    """When something is said over the next `ms`, ticking every 10."""
    start = bench.now
    return [bench.now - start for _ in range(ms // 10) if bench.later(10).reports]


def test_O2_an_end_is_repeated_with_back_off_until_it_is_withdrawn() -> None:
    bench = Bench().running()
    bench.give(h.Crashed(who(), "boom"))
    assert times_said(bench, 2000) == [100, 300, 700, 1100, 1500, 1900]
    assert said(bench.give(trigger(1))) == said(bench.give(order(STOP))) == [r.TaskFailed(reason="boom")]
    bench.give(WITHDRAWN)
    assert times_said(bench, 2000) == []
    assert empty(bench.ledger)


def test_R3_ready_is_repeated_until_an_order_shows_that_it_is_known() -> None:
    bench = Bench().running()
    assert said(bench.give(h.Exhausted(who(), b"end"))) == [r.TaskReady(position=b"end")]
    assert bench.give(h.Exhausted(who(), b"end")).ignored
    assert times_said(bench, 700) == [100, 300, 700]
    bench.give(trigger(1), staged(1))  # a periodic checkpoint comes without the mark, too
    assert times_said(bench, 800) == [400, 800]
    bench.give(trigger(2, purpose="FINAL"))
    assert times_said(bench, 1000) == []


def test_a_stop_is_ordered_once_and_its_end_kept() -> None:
    bench = Bench().running()
    assert bench.give(order(STOP)).effects == (h.StopTask(who(), "cancelled"),)
    assert bench.give(order(STOP)).effects == ()
    assert bench.give(order(DEPLOY)).reports == ()  # its answer is its end
    assert said(bench.give(h.Crashed(who(), "interrupted"))) == [r.TaskStopped(reason="cancelled; interrupted")]
    assert said(bench.give(order(STOP))) == [bench.held().report]
    assert said(bench.give(order(STOP, who(task=1)))) == [r.TaskStopped(reason="cancelled")]  # never ran here


def test_a_ready_task_that_stops_is_ready_no_more() -> None:
    bench = Bench().running()
    bench.give(h.Exhausted(who(), b"end"), order(STOP))
    assert bench.give(order(DEPLOY)).reports == ()
    assert said(bench.give(h.Stopped(who()))) == [r.TaskStopped(reason="cancelled")]


def test_a_withdrawn_attempt_is_stopped_and_forgotten_when_it_has() -> None:
    bench = Bench().running()
    assert [type(effect) for effect in bench.give(WITHDRAWN).effects] == [h.StopTask]
    assert bench.give(WITHDRAWN).effects == ()
    assert bench.give(h.Stopped(who())).reports == ()
    assert empty(bench.ledger)
    assert bench.give(WITHDRAWN) == Outcome()


def test_a_withdrawn_attempt_that_is_asked_for_again_tells_its_end() -> None:
    bench = Bench().running()
    bench.give(WITHDRAWN, order(DEPLOY))
    assert [type(happening) for happening in said(bench.give(h.Stopped(who())))] == [r.TaskStopped]


# Publishing and staging ----------------------------------------------------------------------------------------------


def test_O4_a_checkpoint_is_published_once_and_reported_as_often_as_ordered() -> None:
    bench = Bench()  # no task of the pipeline runs here
    assert bench.give(commit(4)).effects == (h.Publish("job", 1, 0, 4, "{}", (piece("a"),), lease=1),)
    assert bench.give(commit(4)) == Outcome()
    done = [r.CheckpointCommitted(checkpoint=4, rows=5)]
    assert said(bench.give(published(4))) == done
    again = bench.give(commit(4, who(2, task=3), epoch=2))  # a new leader asks in the name of another task
    assert (again.effects, said(again)) == ((), done)
    assert (again.reports[0].task, again.reports[0].attempt) == (3, 2)
    assert said(bench.give(commit(3, epoch=2))) == [r.CheckpointCommitted(checkpoint=3)]
    assert bench.give(published(4)).ignored
    assert bench.give(commit(5, epoch=2)).effects


def test_O3_a_failed_publication_is_reported_and_may_be_ordered_again() -> None:
    bench = Bench()
    bench.give(commit(4))
    failed = said(bench.give(h.PublishFailed("job", 1, 0, 4, "lock")))
    assert failed == [r.CheckpointFailed(checkpoint=4, reason="lock")]
    assert [type(effect) for effect in bench.give(commit(4)).effects] == [h.Publish]


def test_a_newer_publication_does_not_lose_the_older_one() -> None:
    bench = Bench()
    bench.give(commit(4), commit(5))
    assert bench.give(commit(4)).ignored.startswith("stale")
    assert said(bench.give(published(4))) == [r.CheckpointCommitted(checkpoint=4, rows=5)]
    assert bench.give(commit(5)).effects == ()
    assert said(bench.give(published(5))) == [r.CheckpointCommitted(checkpoint=5, rows=5)]


def test_a_publication_is_forgotten_with_the_order_that_asked_for_it() -> None:
    bench = Bench()
    bench.give(commit(4), published(4), WITHDRAWN)
    assert empty(bench.ledger)
    bench.give(commit(5), WITHDRAWN)
    assert not empty(bench.ledger)  # not while it is under way
    assert said(bench.give(published(5)))
    assert empty(bench.ledger)


def test_what_is_ordered_again_after_its_withdrawal_is_remembered() -> None:
    bench = Bench()
    bench.give(commit(5), WITHDRAWN, commit(5), published(5))
    assert said(bench.give(commit(5))) == [r.CheckpointCommitted(checkpoint=5, rows=5)]
    bench.give(order(REMOVE), WITHDRAWN, order(REMOVE), h.StagingGone("job", 1, 2))
    assert said(bench.give(order(REMOVE))) == [r.StagingRemoved(removed=2)]


def test_a_publication_that_nobody_asked_for_counts_for_nothing() -> None:
    bench = Bench()
    bench.give(commit(4))
    assert bench.give(published(5)).ignored
    assert bench.give(commit(5)).effects


def test_T6_staging_is_removed_once_and_reported_as_often_as_ordered() -> None:
    bench = Bench().running()
    bench.give(h.Crashed(who(), "x"), commit(1), published(1))
    assert bench.give(order(REMOVE)).effects == (h.RemoveStaging("job", 1, "{}"),)
    assert (bench.ledger.tasks, bench.ledger.publications) == ({}, {})
    assert bench.give(order(REMOVE)) == Outcome()
    (stuck,) = bench.give(h.StagingStuck("job", 1, "locked")).reports
    assert stuck.happening == r.StagingFailed(reason="locked")
    assert bench.give(order(REMOVE)).effects == (h.RemoveStaging("job", 1, "{}"),)
    assert said(bench.give(h.StagingGone("job", 1, 3))) == [r.StagingRemoved(removed=3)]
    again = bench.give(order(REMOVE, epoch=2))
    assert (again.effects, said(again)) == ((), [r.StagingRemoved(removed=3)])
    assert bench.give(h.StagingGone("job", 1, 3)).ignored
    bench.give(WITHDRAWN)
    assert empty(bench.ledger)


def test_T3_the_removal_of_an_ended_incarnation_leaves_the_next_one_alone() -> None:
    bench = Bench().running(who(incarnation=2))
    assert bench.give(order(REMOVE, who(incarnation=1))).effects == (h.RemoveStaging("job", 1, "{}"),)
    bench.give(h.StagingGone("job", 1, 0))
    assert bench.held().phase is Phase.RUNNING
    assert "stale" in said(bench.give(order(DEPLOY, who(9, incarnation=1))))[0].reason


def test_staging_is_not_removed_under_what_still_works_there() -> None:
    bench = Bench().running()
    bench.give(commit(1, who(task=1)))
    first = bench.give(order(REMOVE))
    assert first.effects == (h.StopTask(who(), "its job has ended"),)
    bench.give(h.Stopped(who()))
    assert bench.give(order(REMOVE)).effects == ()
    bench.give(published(1))
    assert bench.give(order(REMOVE)).effects == (h.RemoveStaging("job", 1, "{}"),)
    assert "stale" in bench.give(commit(2)).ignored


def test_an_attempt_that_waits_is_called_off_by_the_removal_of_its_job() -> None:
    bench = Bench().running(who(incarnation=1))
    bench.give(order(DEPLOY, who(incarnation=2)))
    assert bench.give(order(REMOVE, who(incarnation=2))).effects == (h.RemoveStaging("job", 2, "{}"),)
    assert bench.give(h.Stopped(who(incarnation=1))).effects == ()
    assert bench.ledger.tasks == {}


def test_O3_an_order_from_before_it_was_given_up_is_not_followed_when_it_is_back() -> None:
    """Found by the simulation: it was given up, others were told and failed for good, and the job was over; then it
    came back and did what it had been told before all that."""
    bench = Bench().running()
    bench.later(10)
    told = addressed(commit(1), bench.ledger, bench.settings)
    bench.later(bench.settings.lease_ms + 1, reached=False)  # cut off: given up by now
    bench.later(1)  # and back
    assert "earlier process or lease" in bench.give(told).ignored
    assert not [effect for effect in bench.effects if isinstance(effect, h.Publish)]
    assert bench.give(commit(1)).effects  # told anew, it does
    bench.give(published(1))
    assert said(bench.give(told)) == [r.CheckpointCommitted(checkpoint=1, rows=5)]  # of what is done it still tells
    again = replace(bench.settings, instance="i2")
    assert "earlier process or lease" in decide(stored(bench.ledger), commit(2), bench.now, again).ignored
