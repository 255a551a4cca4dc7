"""The worker's decisions, rule by rule: deploying, fencing, stalls, leases, restarts, the heartbeat."""

from __future__ import annotations

import msgspec
import pytest

from events import records as r
from tests.worker_bench import (
    DEPLOY,
    REMOVE,
    SETTINGS,
    STOP,
    WITHDRAWN,
    Bench,
    commit,
    empty,
    order,
    said,
    staged,
    stored,
    trigger,
    who,
)
from workers import happenings as h
from workers.core import heartbeat, may_publish
from workers.happenings import Outcome
from workers.ledger import Phase

# Deploying -----------------------------------------------------------------------------------------------------------


def test_D1_deploy_of_an_active_attempt_is_answered_and_touches_nothing() -> None:
    bench = Bench()
    assert bench.give(order(DEPLOY)).effects == (h.StartTask(who(), DEPLOY),)
    again = bench.give(order(DEPLOY))
    assert (again.effects, again.reports) == ((), ())  # still starting: the answer comes when it has started
    assert said(bench.give(h.Started(who()))) == [r.TaskRunning(started_at=1000)]
    bench.now = 1200
    again = bench.give(order(DEPLOY))
    assert again == Outcome(reports=again.reports)
    assert said(again) == [r.TaskRunning(started_at=1000)]
    assert said(bench.give(h.Crashed(who(), "disk full"))) == [r.TaskFailed(reason="disk full")]  # as usual


def test_D1_deploy_of_a_ready_attempt_says_that_it_is_ready_too() -> None:
    bench = Bench().running()
    bench.give(h.Exhausted(who(), b"end"))
    assert said(bench.give(order(DEPLOY))) == [r.TaskRunning(started_at=1000), r.TaskReady(position=b"end")]


def test_D2_deploy_of_an_ended_attempt_repeats_its_end_and_runs_nothing() -> None:
    bench = Bench().running()
    end = bench.give(h.Crashed(who(), "no such table", lasting=True))
    assert said(end) == [r.TaskFailed(reason="no such table", lasting=True)]
    for _ in range(3):
        again = bench.give(order(DEPLOY))
        assert (again.effects, said(again)) == ((), said(end))
    higher = bench.give(order(DEPLOY, who(2)))
    assert higher.effects == (h.StartTask(who(2), DEPLOY),)
    assert bench.held().report is None
    assert said(bench.later(10_000)) == []  # the old end is settled


def test_D3_many_deploys_one_start() -> None:
    bench = Bench()
    bench.give(*[order(DEPLOY)] * 50)
    bench.give(h.Started(who()))
    bench.give(*[order(DEPLOY)] * 50)
    assert bench.effects == [h.StartTask(who(), DEPLOY)]
    assert [report.happening for report in bench.reports] == [r.TaskRunning(started_at=1000)] * 51


@pytest.mark.parametrize("deploy_first", [True, False])
def test_D4_end_and_deploy_in_either_order(deploy_first: bool) -> None:
    bench = Bench().running()
    race: list[h.Input] = [order(DEPLOY), h.Crashed(who(), "late")]
    bench.give(*(race if deploy_first else race[::-1]))
    assert bench.held().report == bench.reports[-1].happening == r.TaskFailed(reason="late")
    assert bench.ledger.active == 0
    assert len(bench.effects) == 1


def test_D6_a_lower_attempt_incarnation_or_epoch_is_refused() -> None:
    bench = Bench().running(who(3, incarnation=2))
    for stale in (order(DEPLOY, who(2, incarnation=2)), order(DEPLOY, who(9, incarnation=1))):
        outcome = bench.give(stale)
        assert (outcome.effects, outcome.changes) == ((), ())
        assert "stale" in said(outcome)[0].reason
        assert outcome.reports[0].attempt == stale.attempt
    bench.give(order(DEPLOY, who(3, incarnation=2), epoch=5))
    other = order(DEPLOY, who(1, task=1, incarnation=2), epoch=4)  # of the same job: its leader was deposed
    assert "epoch 4 is over" in said(bench.give(other))[0].reason
    for action in (STOP, r.TriggerCheckpoint(checkpoint=1), REMOVE, commit(1).action):
        outcome = bench.give(order(action, who(3, incarnation=2), epoch=4))
        assert outcome == Outcome(ignored="stale: epoch 4 is over, 5 has given orders")
    assert "stale" in bench.give(order(STOP, who(2, incarnation=2), epoch=5)).ignored
    assert "stale" in bench.give(trigger(1, at=who(2, incarnation=2))).ignored
    assert "stale" in bench.give(commit(1)).ignored
    assert bench.held().phase is Phase.RUNNING


def test_D6_a_higher_attempt_fences_and_stops_the_old_one_first() -> None:
    bench = Bench(msgspec.structs.replace(SETTINGS, slots=1)).running()
    outcome = bench.give(order(DEPLOY, who(2)))
    assert [type(effect) for effect in outcome.effects] == [h.StopTask]
    assert "fenced by attempt 2" in outcome.effects[0].reason  # type: ignore[union-attr]
    assert bench.give(order(DEPLOY, who(2))).effects == ()  # nothing new
    assert "stale" in said(bench.give(order(DEPLOY, who(0))))[0].reason
    stopped = bench.give(h.Stopped(who()))
    assert stopped.effects == (h.StartTask(who(2), DEPLOY),)
    assert [(report.attempt, type(report.happening)) for report in stopped.reports] == [(1, r.TaskStopped)]
    assert said(bench.give(h.Started(who(2)))) == [r.TaskRunning(started_at=1000)]
    assert bench.ledger.active == 1


def test_D6_a_still_higher_attempt_takes_the_place_of_the_one_that_waits() -> None:
    bench = Bench().running()
    bench.give(order(DEPLOY, who(2)), order(DEPLOY, who(3)))
    assert "stale" in said(bench.give(order(DEPLOY, who(2))))[0].reason
    bench.give(order(DEPLOY, who(1, incarnation=2)))
    assert bench.give(h.Stopped(who())).effects == (h.StartTask(who(1, incarnation=2), DEPLOY),)


def test_D6_an_attempt_that_does_not_stop_is_given_up_in_time() -> None:
    bench = Bench().running()
    bench.give(order(DEPLOY, who(2)))
    assert bench.later(299).effects == ()
    outcome = bench.later(1)
    assert outcome.effects == (h.StartTask(who(2), DEPLOY),)
    assert "given up" in said(outcome)[0].reason
    assert bench.give(h.Stopped(who())).ignored  # at last: too late to matter
    assert bench.held().who == who(2)


def test_D6_a_waiting_attempt_that_is_stopped_never_starts_and_its_end_is_told() -> None:
    bench = Bench().running()
    bench.give(order(DEPLOY, who(2)), order(STOP, who(2)))
    outcome = bench.give(order(DEPLOY, who(2)), h.Stopped(who()))
    assert outcome.effects == ()
    assert [report.attempt for report in outcome.reports] == [1, 2]
    assert bench.held().report == r.TaskStopped(reason="cancelled")
    assert bench.held().who == who(2)


def test_D6_a_higher_attempt_starts_even_if_the_old_one_was_being_forgotten() -> None:
    bench = Bench().running()
    bench.give(WITHDRAWN, order(DEPLOY, who(2)))
    assert bench.give(h.Stopped(who())).effects == (h.StartTask(who(2), DEPLOY),)


def test_D6_a_withdrawal_calls_off_the_attempt_that_waits() -> None:
    bench = Bench().running()
    bench.give(order(DEPLOY, who(2)), WITHDRAWN, order(DEPLOY, who(1)))
    assert bench.give(h.Stopped(who())).effects == ()


def test_D6_the_highest_epoch_of_a_job_counts_whichever_task_it_came_for() -> None:
    bench = Bench().running(who(task=0), who(task=1))
    bench.give(order(DEPLOY, who(task=0), epoch=5), h.Exhausted(who(task=1), b""))
    assert "epoch 4 is over" in bench.give(order(STOP, who(task=1), epoch=4)).ignored
    bench.give(order(DEPLOY, who(2), epoch=5), order(DEPLOY, who(2), epoch=7))
    assert "epoch 6 is over" in bench.give(order(STOP, who(2), epoch=6)).ignored


def test_no_room_is_refused_and_leaves_no_trace() -> None:
    bench = Bench().running(who(task=0), who(task=1))
    outcome = bench.give(order(DEPLOY, who(task=2)))
    assert said(outcome) == [r.TaskRefused(reason="no room: 2 of 2 slots are taken")]
    assert (outcome.effects, outcome.changes) == ((), ())
    bench.give(h.Crashed(who(task=0), "gone"))
    assert bench.give(order(DEPLOY, who(task=2))).effects


def test_a_draining_worker_takes_nothing_new() -> None:
    bench = Bench(msgspec.structs.replace(SETTINGS, draining=True))
    assert said(bench.give(order(DEPLOY))) == [r.TaskRefused(reason="no room: the worker is draining")]


def test_an_order_for_another_worker_is_none_of_ours() -> None:
    assert Bench().give(order(DEPLOY, worker="w2")) == Outcome(ignored="it is for worker w2")


# Stalls, fences, leases, restarts ------------------------------------------------------------------------------------


def test_D7_a_stall_is_reported_once_and_again_after_progress() -> None:
    bench = Bench().running()
    assert said(bench.later(500)) == []
    assert said(bench.later(1)) == [r.TaskStalled(progressed_at=1000, reason="reading")]
    assert said(bench.give(order(DEPLOY))) == [r.TaskRunning(started_at=1000)]
    assert said(bench.later(600)) == []
    bench.give(h.Progressed(who(), 5, 50, bench.now))
    assert said(bench.later(400)) == []
    bench.give(trigger(1))
    assert said(bench.later(101)) == [r.TaskStalled(progressed_at=2101, reason="staging checkpoint 1")]


def test_D7_answering_deploys_does_not_hide_a_stall() -> None:
    bench = Bench().running()
    for _ in range(5):
        bench.now += 100
        bench.give(h.Reached(), order(DEPLOY))
    assert [type(happening) for happening in said(bench.later(1))] == [r.TaskStalled]


def test_D7_a_ready_task_does_not_stall() -> None:
    bench = Bench().running()
    bench.give(h.Exhausted(who(), b"end"), trigger(1, purpose="FINAL"))
    assert said(bench.later(10_000)) == []


def test_D9_after_a_restart_all_that_was_active_is_reported_lost_at_once() -> None:
    bench = Bench().running(who(task=0))
    bench.give(order(DEPLOY, who(task=1)), commit(7), order(REMOVE, who(job="old")))
    bench.ledger = stored(bench.ledger)
    outcome = bench.give(h.Restarted())
    assert said(outcome) == [r.TaskFailed(reason="the worker restarted")] * 2
    assert {report.task for report in outcome.reports} == {0, 1}
    assert bench.ledger.active == 0
    assert said(bench.later(100))  # kept, and repeated
    assert said(bench.give(order(DEPLOY))) == [r.TaskFailed(reason="the worker restarted")]
    # What was under way is done again when ordered again.
    assert [type(effect) for effect in bench.give(commit(7)).effects] == [h.Publish]
    assert bench.give(order(REMOVE, who(job="old"))).effects == (h.RemoveStaging("old", 1, "{}"),)


def test_D9_a_restart_sends_kept_ends_again_and_starts_what_waited() -> None:
    bench = Bench().running(who(task=0), who(task=1))
    bench.give(h.Crashed(who(task=0), "bad"), order(DEPLOY, who(2, task=1)))
    bench.ledger = stored(bench.ledger)
    outcome = bench.give(h.Restarted())
    assert [(report.task, report.attempt) for report in outcome.reports] == [(0, 1), (1, 1)]
    assert outcome.effects == (h.StartTask(who(2, task=1), DEPLOY),)


def test_D9_withdrawn_things_do_not_come_back_with_a_restart() -> None:
    bench = Bench().running()
    bench.give(commit(1), order(REMOVE, who(job="old")), WITHDRAWN, h.Withdrawn("old", 0, 0))
    assert bench.held().withdrawn
    bench.ledger = stored(bench.ledger)
    outcome = bench.give(h.Restarted())
    assert (outcome.reports, outcome.effects) == ((), ())
    assert empty(bench.ledger)


def test_D10_a_fenced_attempt_is_not_listened_to() -> None:
    bench = Bench().running()
    bench.give(trigger(1), order(DEPLOY, who(2)))
    for it in (staged(1, "x"), h.Progressed(who(), 9, 9, 1), h.Exhausted(who(), b""), h.StageFailed(who(), 1, "no")):
        assert bench.give(it) == Outcome(ignored="it is fenced or stopping")
    bench.give(h.Stopped(who()), h.Started(who(2)))
    for it in (staged(1, "x"), h.Crashed(who(), "late"), h.Stopped(who()), h.Started(who())):
        assert bench.give(it) == Outcome(ignored="it is not the active attempt")


def test_B7_a_worker_that_cannot_reach_kafka_stops_its_tasks() -> None:
    bench = Bench().running(who(task=0), who(task=1))
    bench.give(h.Exhausted(who(task=1), b"end"))
    assert bench.later(1000, reached=False).effects == ()
    outcome = bench.later(1, reached=False)
    assert outcome.effects == tuple(
        h.StopTask(who(task=task), "lease lost: Kafka was not reached for 1001 ms") for task in (0, 1)
    )
    assert bench.later(1, reached=False).effects == ()  # told once
    assert "lease lost" in said(bench.give(h.Stopped(who(task=0))))[0].reason
    assert "lease lost" in said(bench.later(400, reached=False))[-1].reason  # the other did not stop in time
    bench.give(h.Reached())
    assert bench.give(order(DEPLOY, who(2))).effects == (h.StartTask(who(2), DEPLOY),)
    assert bench.later(900).effects == ()


def test_B7_a_late_answer_does_not_mend_a_lease_and_counts_from_when_it_was_asked_for() -> None:
    bench = Bench().running()
    bench.now = 1000 + bench.settings.lease_ms + 500
    bench.give(h.Reached(sent_at=1100))  # sent in time, and delivered too late
    assert (bench.ledger.reached_at, bench.ledger.lease) == (1100, 1)  # the next has not begun
    assert not may_publish(bench.ledger, 1, bench.now, bench.settings)
    assert not may_publish(bench.ledger, 2, bench.now, bench.settings)
    assert bench.give(h.Tick()).effects == (
        h.StopTask(who(), f"lease lost: Kafka was not reached for {bench.now - 1100} ms"),
    )
    bench.give(h.Reached(sent_at=bench.now - 10), h.Reached(sent_at=1200))
    assert (bench.ledger.reached_at, bench.ledger.lease) == (bench.now - 10, 2)
    assert not may_publish(bench.ledger, 1, bench.now, bench.settings)
    assert may_publish(bench.ledger, 2, bench.now, bench.settings)


# The heartbeat and the stored form -----------------------------------------------------------------------------------


def test_the_heartbeat_says_what_runs_and_how_far_it_is() -> None:
    bench = Bench().running(who(task=0), who(task=1))
    bench.give(h.Progressed(who(task=0), 7, 70, 1500), h.Crashed(who(task=1), "x"))
    beat = heartbeat(bench.ledger, 2000, bench.settings)
    assert (beat.worker, beat.instance, beat.slots, beat.time) == ("w1", "i1", 2, 2000)
    assert beat.tasks == (
        r.TaskProgress(
            incarnation=1, job="job", pipeline=0, task=0, attempt=1, rows=7, bytes_read=70, progressed_at=1500
        ),
    )


def test_every_report_says_whom_it_is_about_and_by_whom() -> None:
    bench = Bench()
    bench.now = 1234
    report = bench.give(order(DEPLOY, who(2, task=3, incarnation=4)), h.Started(who(2, task=3, incarnation=4))).reports
    assert report == (
        r.Report(
            job="job", incarnation=4, pipeline=0, task=3, attempt=2, worker="w1", time=1234,
            happening=r.TaskRunning(started_at=1234),
        ),
    )  # fmt: skip
