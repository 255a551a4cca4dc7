"""The stage of the stories: the simulation's world without chance. What goes wrong is what the script says; besides, a
leader may be made to die at any of its boundaries, to see that the story ends as well."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coordinator.core import Input, decide
from coordinator.draft import Decision, Gone, take_over
from coordinator.rerun import Difference, rerun
from events.records import Cause, Event, Order, Report
from tests.scenarios.trace import Trace
from tests.simulation.broker import NoAnswer
from tests.simulation.checker import Violation
from tests.simulation.coordinators import ID, Coordinator
from tests.simulation.data import Loop
from tests.simulation.workers import Worker
from tests.simulation.world import BEGIN_MS, Died, Process, World
from workers import happenings as h
from workers.ledger import Identity

BACK_MS = 200  # how soon a killed process is there again
QUIET_STEPS = 4  # so long nothing may happen at the end
LONGEST_MS = 30_000
# Steps that a leader may be made to forget: the transitions, and the orders that go with them.
FORGETTABLE: dict[str, tuple[tuple[str, str] | str, ...]] = {
    "trigger": (("pending", "triggered"), ("pipeline", "checkpointed"), "TriggerCheckpoint"),
    "complete": (
        ("checkpoint", "completed"),
        ("pending", "completed"),
        ("checkpoint", "ordered"),
        "CommitCheckpoint",
    ),
    "commit": (("checkpoint", "ordered"), "CommitCheckpoint"),
}


class Unchanging(random.Random):
    """Chance that always says the same."""

    def random(self) -> float:
        return 0.0

    def randint(self, a: int, b: int) -> int:
        return b


@dataclass
class Fate:
    """What becomes of the next messages that it is about."""

    of: Callable[[Any], bool]
    what: str  # "lost", "late" or "again"
    ms: int = 0
    times: int = 1  # how many messages it is for
    copies: int = 1  # how often each comes, where it is an order


class StoryCoordinator(Coordinator):
    """One that may lack a step, and whose decisions are made again to see whether they come out the same."""

    world: Stage

    def decide(self, given: Input, now: int, cause: Cause) -> Decision:
        if self.world.crashes and not self.world.forgets:
            return super().decide(given, now, cause)
        decision = self.by_its_logic(decide(self.state, given, now, cause))
        if not self.world.crashes:
            found = rerun(self.state, given, now, cause, decision.events)
            self.world.differences += found
            for difference in found:
                self.world.say(self.name, f"decides otherwise than today's logic: {difference}")
        take_over(self.state, decision)
        return decision

    def take_over(self) -> None:
        self.beats.compact(self.world.now, 10**9, 0)  # heartbeats are on a compacted topic: the newest of each worker
        super().take_over()

    def by_its_logic(self, decision: Decision) -> Decision:
        return self.world.forget(super().by_its_logic(decision))


class StoryWorker(Worker):
    """One whose orders and tasks the script can interfere with."""

    world: Stage

    def start(self) -> None:
        self.late: list[tuple[int, h.Input]] = []
        self.began_from: dict[Identity, int] = {}
        self.writing_on: set[Identity] = set()
        super().start()

    def act(self, effect: h.Effect) -> None:
        self.world.say(self.name, effect)
        if isinstance(effect, h.StartTask):
            self.began_from[effect.who] = effect.deploy.checkpoint
        slowly = self.world.publish_ms.get(self.name, 0)
        if isinstance(effect, h.Publish) and slowly:
            self.publishing.append((self.now + slowly, effect))
        else:
            super().act(effect)

    def step(self) -> None:
        for at, order in [each for each in self.late if each[0] <= self.world.now]:
            self.late.remove((at, order))
            self.give(order)
        super().step()

    def publish(self) -> None:
        self.world.publisher = self.name
        super().publish()

    def follow_orders(self) -> None:
        found, position = self.orders.read(self.position)
        for offset, (worker, job, pipeline, task), order in found:
            if worker == self.name:
                self.hand_over(h.Withdrawn(job, pipeline, task) if order is None else order)
            self.position = offset + 1
        self.position = position

    def hand_over(self, order: h.Input) -> None:
        fate = self.world.fate_of(order)
        if fate is None:
            self.give(order)
        elif fate.what == "late":
            self.late.append((self.world.now + fate.ms, order))
        elif fate.what == "again":
            for _ in range(fate.copies):
                self.give(order)

    def work(self, loop: Loop) -> None:
        world, who = self.world, loop.who
        if world.stuck.get(who, 0) > world.now:
            return
        if loop.stopping and world.deaf.get(who, 0) > world.now:
            if who not in self.writing_on:
                world.say(
                    self.name, f"does not get {who.job}/{who.pipeline}/{who.task} to stop: it stages row after row"
                )
                self.writing_on.add(who)
            loop.read(5)
            world.data.stage(who, loop.take_unstaged())
            return
        oldest = world.dropped.get((who.job, who.pipeline, who.task), 0)
        if not loop.started and loop.position < oldest:
            del self.loops[who]
            here = f"checkpoint {self.began_from[who]} is at {loop.position}, the source begins at {oldest}"
            self.give(h.Crashed(who, f"the position can't be served: {here}", lasting=True))
            return
        super().work(loop)


class Stage(World):
    step_ms = idle_step_ms = 25
    lease_ms = 1200

    def __init__(self, workers: int = 2, slots: int = 4, crashes: tuple[int, ...] = ()) -> None:
        self.size, self.slots = workers, slots
        self.crashes = frozenset(crashes)
        self.boundaries = 0  # of the leader, passed so far
        self.fates: list[Fate] = []
        self.wills: Counter[str] = Counter()  # what goes wrong the next times
        self.stuck: dict[Identity, int] = {}
        self.deaf: dict[Identity, int] = {}
        self.dropped: dict[tuple[str, int, int], int] = {}
        self.forgets = ""
        self.refuses: set[str] = set()  # workers that the sink refuses for good
        self.next_commit = ""
        self.publish_ms: dict[str, int] = {}
        self.publisher = ""  # who is at it
        self.notes: list[str] = []
        self.differences: list[Difference] = []
        self.back_ms = 0  # how soon the one that dies next is there again, if not as all
        self.moment: tuple[Process, str, Any] | None = None  # who is in the midst of a step, where, and at what
        super().__init__(1, faults=False)
        self.rng = Unchanging()
        self.leaky, self.replay_at = False, 0
        self.trace = Trace(self.broker, BEGIN_MS)

    def make_coordinators(self) -> list[Coordinator]:
        return [StoryCoordinator(self, f"c{i}", i) for i in range(2)]

    def make_workers(self) -> list[Worker]:
        return [StoryWorker(self, f"w{i}") for i in range(self.size)]

    def slice_rows(self) -> int:
        return 5

    def worker_settings(self, worker: str, instance: str) -> h.Settings:
        return h.Settings(
            worker=worker,
            instance=instance,
            slots=self.slots,
            lease_ms=800,
            stall_ms=600,
            stop_patience_ms=400,
            repeat_ms=200,
            repeat_cap_ms=800,
        )

    def _workload(self) -> list[tuple[int, str, Any]]:
        return []

    def end_what_would_not_end(self) -> None:
        """The script ends it."""

    # What is told -------------------------------------------------------------------------------------------------

    def say(self, who: str, what: Any) -> None:
        self.trace.say(self.now, who, what)

    def noted(self, who: Process, note: str, about: Any = None) -> None:
        if isinstance(about, h.Tick | h.Progressed):
            return
        kind = type(about.action).__name__ if isinstance(about, Order) else type(about).__name__
        self.notes.append(note)
        self.say(who.name, f"ignores {kind}: {note}" if about is not None else f"notes: {note}")

    @property
    def leader(self) -> Coordinator | None:
        owner = self.broker.producers.get(ID)
        for process in self.coordinators:
            if process.alive and process.leading and owner is not None and process.leading == owner.epoch:
                return process
        return None

    def running(self, job: str, pipeline: int, task: int) -> list[tuple[Worker, Loop]]:
        """Where a task runs, newest attempt last."""
        key = (job, pipeline, task)
        found = [
            (worker, loop)
            for worker in self.workers
            for who, loop in worker.loops.items()
            if (who.job, who.pipeline, who.task) == key
        ]
        return sorted(found, key=lambda each: each[1].who)

    # What goes wrong ----------------------------------------------------------------------------------------------

    def chance(self, what: str, probability: float) -> bool:
        if not self.wills[what]:
            return False
        self.wills[what] -= 1
        self.say("**", what)
        return True

    def is_refused(self, effect: h.Publish) -> bool:
        return self.publisher in self.refuses

    def fate_of(self, message: Any) -> Fate | None:
        for fate in self.fates:
            if fate.of(message):
                fate.times -= 1
                if not fate.times:
                    self.fates.remove(fate)
                return fate
        return None

    def deliver(self, topic: str, key: str, value: Any) -> None:
        self.say(value.worker if isinstance(value, Report) else "ops", value)
        fate = self.fate_of(value)
        if fate is not None:
            self.say("**", {"lost": "it is lost", "late": f"it comes {fate.ms} ms late",
                            "again": f"it comes again {fate.ms} ms later"}[fate.what])  # fmt: skip
        if fate is not None and fate.what != "again":
            if fate.what == "late":
                self.on_the_way.append((self.now + fate.ms, topic, key, value))
            return
        cut = self.cut_until.get(value.worker, 0) if isinstance(value, Report) else 0
        if cut > self.now:  # it waits in the worker's client until there is a way
            self.on_the_way.append((cut, topic, key, value))
            return
        self.broker.append(topic, key, value)
        if fate is not None:
            self.on_the_way.append((self.now + fate.ms, topic, key, value))

    def forget(self, decision: Decision) -> Decision:
        """A leader that lacks a step, once, as if by a bug or a failure half-way."""
        lost = FORGETTABLE.get(self.forgets, ())

        def is_lost(event: Event | Gone) -> bool:
            return isinstance(event, Event) and (event.entity.split("/")[0], event.transition) in lost

        if not any(is_lost(event) for event in decision.events):
            return decision
        self.say("**", "the leader forgets to " + self.forgets)
        self.forgets = ""
        kept = tuple(event for event in decision.events if not is_lost(event))
        orders = tuple(o for o in decision.orders if not isinstance(o, Order) or type(o.action).__name__ not in lost)
        return Decision(kept, orders, decision.notes)

    def point(self, process: Process, where: str, what: Any = None) -> None:
        super().point(process, where, what)
        if isinstance(process, Coordinator):
            self.boundaries += 1
            if self.boundaries in self.crashes:
                self.say("**", f"{process.name} dies at {where} {getattr(what, 'entity', '')}")
                raise Died
        elif where == "published":
            self.say(process.name, f"has published checkpoint {what.checkpoint} of {what.job}/{what.pipeline}")
        self.moment = (process, where, what)
        try:
            self.as_it_happens()
        finally:
            self.moment = None

    def as_it_happens(self) -> None:
        """For a script that waits for a moment within a step."""

    def commit(self, process: Coordinator, transactional_id: str, epoch: int) -> None:
        fate, self.next_commit = self.next_commit, ""
        if fate:
            self.say("**", f"the commit of {process.name} gets no answer: it {fate}")
            if fate == "takes effect":
                self.broker.commit(transactional_id, epoch)
            elif fate == "takes effect late":
                self.broker.commit_late(transactional_id, epoch, self.points + 4)
            raise NoAnswer
        super().commit(process, transactional_id, epoch)
        self.trace.follow(self.now)

    def kill(self, process: Process) -> None:
        """The end of its connections tells the standbys at once; only silence costs the detection time."""
        if isinstance(process, Coordinator) and process.leading:
            self.beaten = 0
        process.alive = False
        self.say("**", f"{process.name} is killed")
        self.down.append((self.now + (self.back_ms or BACK_MS), process))
        self.back_ms = 0

    # Time ---------------------------------------------------------------------------------------------------------

    def is_idle(self) -> bool:
        """Nothing is left to happen by itself."""
        if self.down or self.on_the_way or not self.checker.is_quiet():
            return False
        away = max([*self.cut_until.values(), *(process.asleep_until for process in self.processes)], default=0)
        return away <= self.now

    def is_over(self) -> bool:
        return self.is_idle()

    def is_clean(self) -> bool:
        """Workers hear a moment later that nothing more is wanted of them."""
        return not any(w.loops or w.ledger.tasks or w.ledger.publications or w.ledger.removals for w in self.workers)

    def run(self) -> None:
        quiet = 0
        while quiet < QUIET_STEPS or not (self.is_clean() or quiet > 40 * QUIET_STEPS):
            quiet = quiet + 1 if self.is_over() else 0
            self.step()
            if self.now > BEGIN_MS + LONGEST_MS:
                raise Violation(f"stuck at {self.now - BEGIN_MS} ms: {self.checker.open()}")
        self.checker.finish()
