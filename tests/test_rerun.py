"""Deciding again what was decided: the same where nothing has changed, the difference field by field where it has."""

from __future__ import annotations

from copy import deepcopy

from msgspec.structs import replace

from coordinator.core import Input, Timer, decide
from coordinator.draft import Gone, take_over
from coordinator.rerun import rerun
from events.records import (
    Cancel,
    Cause,
    Command,
    Event,
    Report,
    Submit,
    TaskFailed,
    TaskRunning,
)
from tests.shard import Shard, specification

CAUSE = Cause(kind="INPUT", topic="reports", partition=0, offset=7)


def a_shard() -> Shard:
    shard = Shard()
    shard.worker("w1")
    shard.submit("a", 2, restart={"retries": 3, "backoff_ms": 100})
    return shard


def a_report(happening: TaskRunning | TaskFailed) -> Report:
    return Report(incarnation=1, job="a", pipeline=0, task=0, attempt=1, worker="w1", time=0, happening=happening)


def test_B11_the_same_logic_decides_the_same() -> None:
    shard = a_shard()
    inputs: list[Input] = [
        a_report(TaskRunning()),
        a_report(TaskFailed(reason="boom")),
        Command(id="x", job="a", action=Cancel()),
        Command(id="y", job="b", action=Submit(specification=specification(3))),
        Timer("cleanup/a/1", shard.now + 60_000),
    ]
    for given in inputs:
        before = deepcopy(shard.state)
        recorded = decide(shard.state, given, shard.now, CAUSE)
        take_over(shard.state, recorded)
        assert rerun(before, given, shard.now, CAUSE, recorded.events) == ()


def test_B11_a_difference_is_shown_field_by_field() -> None:
    shard = a_shard()
    given = a_report(TaskFailed(reason="boom"))
    recorded = list(decide(shard.state, given, shard.now, CAUSE).events)
    at = next(i for i, e in enumerate(recorded) if isinstance(e, Event) and e.transition == "retried")
    retried = recorded[at]
    assert isinstance(retried, Event)
    recorded[at] = replace(retried, due_at=retried.due_at + 5, state=replace(retried.state, worker="w9"), logic=0)
    found = rerun(shard.state, given, shard.now, CAUSE, recorded)
    assert [tuple(one) for one in found] == [
        ("task/a/0/0", "due_at", retried.due_at + 5, retried.due_at),
        ("task/a/0/0", "state.worker", "w9", ""),
    ]
    assert str(found[1]) == "task/a/0/0 state.worker: recorded 'w9', now ''"


def test_B11_events_that_only_one_side_has_are_named() -> None:
    shard = a_shard()
    given = Command(id="x", job="a", action=Cancel())
    recorded = [e for e in decide(shard.state, given, shard.now, CAUSE).events if not e.entity.startswith("cleanup")]
    recorded.append(Gone("ready/a/0/0", shard.state.epoch, 1))
    assert [tuple(one) for one in rerun(shard.state, given, shard.now, CAUSE, recorded)] == [
        ("ready/a/0/0", "transition", "deleted", None),
        ("cleanup/a/1", "transition", None, "promised"),
    ]


def test_B11_what_can_no_longer_be_decided_is_a_difference_too() -> None:
    shard = a_shard()
    given = a_report(TaskFailed(reason="boom"))
    recorded = decide(shard.state, given, shard.now, CAUSE).events
    shard.state.jobs["a"].event = replace(shard.state.jobs["a"].event, to="PAUSED")  # type: ignore[type-var]
    (found,) = rerun(shard.state, given, shard.now, CAUSE, recorded)
    assert found.field == "decision"
    assert "IllegalTransition" in found.computed


def test_deciding_again_leaves_the_state_alone() -> None:
    shard = a_shard()
    before = deepcopy(shard.state)
    rerun(shard.state, Command(id="x", job="a", action=Cancel()), shard.now, CAUSE, ())
    assert shard.state.jobs == before.jobs
