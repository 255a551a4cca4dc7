"""What holds of the worker's core over any sequence of orders and happenings."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import tests.strategies  # noqa: F401  (registers the profiles)
from events import records as r
from tests.worker_bench import DEPLOY, REMOVE, STOP, Bench, commit, empty, order, staged, stored, who
from workers import happenings as h
from workers.core import decide
from workers.ledger import Identity, TaskKey

VERSIONS = st.builds(who, st.integers(1, 3), st.integers(0, 2), st.integers(1, 2))
CHECKPOINTS = st.integers(1, 4)
ACTIONS = st.one_of(
    st.just(DEPLOY),
    st.just(DEPLOY),
    st.builds(lambda c, done: r.TriggerCheckpoint(checkpoint=c, completed=min(done, c - 1)), CHECKPOINTS, CHECKPOINTS),
    st.builds(lambda c: commit(c).action, CHECKPOINTS),
    st.just(STOP),
    st.just(REMOVE),
)
ANY_HAPPENING = st.one_of(
    st.builds(h.Started, VERSIONS),
    st.builds(h.Progressed, VERSIONS, st.just(1), st.just(1), st.integers(0, 5000)),
    st.builds(h.Exhausted, VERSIONS, st.just(b"end")),
    st.builds(lambda at, c: staged(c, f"{at}/{c}", at=at), VERSIONS, CHECKPOINTS),
    st.builds(h.StageFailed, VERSIONS, CHECKPOINTS, st.just("disk")),
    st.builds(h.Crashed, VERSIONS, st.just("boom")),
    st.builds(h.Stopped, VERSIONS),
    st.builds(lambda inc, c: h.Published("job", inc, 0, c, 1), st.integers(1, 2), CHECKPOINTS),
    st.builds(lambda inc, c: h.PublishFailed("job", inc, 0, c, "lock"), st.integers(1, 2), CHECKPOINTS),
    st.builds(lambda inc: h.StagingGone("job", inc, 1), st.integers(1, 2)),
    st.builds(lambda inc: h.StagingStuck("job", inc, "busy"), st.integers(1, 2)),
)
STEPS = st.lists(
    st.one_of(
        st.builds(order, ACTIONS, VERSIONS, st.integers(1, 2)),
        st.builds(order, ACTIONS, VERSIONS, st.integers(1, 2)),
        ANY_HAPPENING,
        st.builds(h.Withdrawn, st.just("job"), st.just(0), st.integers(0, 2)),
        st.sampled_from([h.Tick(), h.Reached(), h.Restarted()]),
        st.sampled_from(["answer", "answer", "later"]),
    ),
    max_size=80,
)


def version(at: Identity) -> tuple[int, int]:
    return (at.incarnation, at.attempt)


class World(Bench):
    """A worker among orders and happenings of any kind, with what must hold after each.

    One thing is granted: what a coordinator never does is not done. Having withdrawn a task's orders it deploys higher
    attempts only (and the caller keeps the offset of orders with the ledger, so none comes twice across that).
    """

    def __init__(self) -> None:
        super().__init__()
        self.started: list[Identity] = []
        self.alive: dict[Identity, int] = {}  # loops that have not ended, with the time they are given up
        self.highest: dict[int, tuple[int, int]] = {}  # the highest version ordered of a task
        self.floor: dict[int, tuple[int, int]] = {}  # versions up to this are over and done with
        self.ended_jobs: set[int] = set()
        self.unanswered: list[h.Effect] = []

    def step(self, it: Any) -> None:
        if it == "later":
            self.now += 150
            it = h.Tick()
        elif it == "answer":
            if not self.unanswered:
                return
            it = self.answer(self.unanswered.pop(0))
        if isinstance(it, r.Order) and not self.plausible(it):
            return
        if isinstance(it, h.Restarted):
            self.ledger = stored(self.ledger)
            self.alive.clear()
            self.unanswered.clear()
        if isinstance(it, h.Stopped | h.Crashed):
            self.alive.pop(it.who, None)
        if isinstance(it, h.Withdrawn):
            self.floor[it.task] = max(self.floor.get(it.task, (0, 0)), self.highest.get(it.task, (0, 0)))
        before = deepcopy(self.ledger)
        assert decide(self.ledger, it, self.now, self.settings) == decide(before, it, self.now, self.settings)
        assert self.ledger == before  # deciding changes nothing
        outcome = self.give(it)
        for effect in outcome.effects:
            self.perform(effect)
        for report in outcome.reports:
            assert (report.worker, report.time) == ("w1", self.now)
            if isinstance(report.happening, r.CheckpointAcked):
                names = [one.name for one in report.happening.staged]
                assert len(names) == len(set(names))
        self.check()

    def plausible(self, it: r.Order) -> bool:
        if isinstance(it.action, r.RemoveStaging):
            self.ended_jobs.add(it.incarnation)
        elif it.incarnation in self.ended_jobs:
            return isinstance(it.action, r.Deploy) and any(key.incarnation == it.incarnation for key in self.removals())
        at = (it.incarnation, it.attempt)
        if at <= self.floor.get(it.task, (0, 0)):
            return False
        self.highest[it.task] = max(self.highest.get(it.task, at), at)
        return True

    def removals(self) -> list[Any]:
        return list(self.ledger.removals)

    def perform(self, effect: h.Effect) -> None:
        if isinstance(effect, h.StartTask):
            at = effect.who
            assert at not in self.started, "an attempt starts once"
            rivals = [rival for rival in self.alive if rival.task == at.task and self.alive[rival] > self.now]
            assert not rivals, "the one before has ended or had its time"
            self.started.append(at)
            self.alive[at] = 2**62
        elif isinstance(effect, h.StopTask):
            self.alive[effect.who] = min(self.alive[effect.who], self.now + self.settings.stop_patience_ms)
        self.unanswered.append(effect)

    def answer(self, effect: h.Effect) -> h.Input:
        if isinstance(effect, h.StartTask):
            return h.Started(effect.who)
        if isinstance(effect, h.StopTask):
            return h.Stopped(effect.who)
        if isinstance(effect, h.StageCheckpoint):
            return staged(effect.checkpoint, f"{effect.who}/{effect.checkpoint}", at=effect.who)
        if isinstance(effect, h.Publish):
            return h.Published(effect.job, effect.incarnation, effect.pipeline, effect.checkpoint, 1)
        return h.StagingGone(effect.job, effect.incarnation, 1)

    def check(self) -> None:
        ledger = self.ledger
        assert ledger.active == sum(held.active for held in ledger.tasks.values()) <= self.settings.slots
        assert set(ledger.pulses) <= set(ledger.tasks)
        again = stored(ledger)  # the indexes are what the entries make of them
        assert (again.tasks, again.active) == (ledger.tasks, ledger.active)
        assert again.ordered_by == ledger.ordered_by
        assert {job: of.keys for job, of in again.jobs.items()} == {job: of.keys for job, of in ledger.jobs.items()}
        for at in self.started:
            self.check_not_lost(at)

    def check_not_lost(self, at: Identity) -> None:
        """A started attempt is active, or its end is kept, or somebody has settled it."""
        held = self.ledger.tasks.get(TaskKey(at.job, at.pipeline, at.task))
        settled = version(at) <= self.floor.get(at.task, (0, 0)) or at.incarnation in self.ended_jobs
        if held is None:
            assert settled, f"{at} is lost"
        elif held.who == at:
            assert held.active or isinstance(held.report, r.TaskFailed | r.TaskStopped)
        else:
            assert version(at) < held.version or settled

    def close(self) -> None:
        """All orders are withdrawn and all that was under way ends."""
        for task in range(3):
            self.step(h.Withdrawn("job", 0, task))
        while self.unanswered:
            self.step("answer")
        self.now += self.settings.stop_patience_ms
        self.step(h.Tick())
        assert empty(self.ledger)


@given(STEPS)
def test_whatever_comes_no_attempt_runs_twice_no_end_is_lost_and_nothing_stays(steps: list[Any]) -> None:
    world = World()
    for it in steps:
        world.step(it)
        if it != "later" and it != "answer" and not isinstance(it, h.Restarted):
            world.step(it)  # everything may come twice
    world.close()
