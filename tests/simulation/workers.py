"""A worker process of the simulation: the production core with a ledger on a disk that survives, and task loops that
do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from events.records import TaskFailed
from tests.simulation.checker import Violation
from tests.simulation.data import Loop
from workers import happenings as h
from workers.core import decide, heartbeat, may_publish
from workers.ledger import Identity, Ledger, apply

if TYPE_CHECKING:
    from tests.simulation.world import World

HEARTBEAT_MS = 300


class Worker:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.alive = True
        self.asleep_until = 0
        self.ledger = Ledger()  # the disk
        self.position = 0  # on orders; kept with the ledger
        self.instances = 0
        self.orders = world.broker.partition("orders")
        self.start()

    def start(self) -> None:
        self.instances += 1
        self.skew = self.world.skew()
        self.loops: dict[Identity, Loop] = {}
        self.publishing: list[tuple[int, h.Publish]] = []
        self.removing: list[h.RemoveStaging] = []
        self.beaten = -HEARTBEAT_MS
        self.asked = 0  # when the beat was sent that is not answered yet
        self.settings = self.world.worker_settings(self.name, f"{self.name}-{self.instances}")
        self.give(h.Restarted())

    def lose_disk(self) -> None:
        self.ledger, self.position = Ledger(), len(self.orders.stored)

    @property
    def now(self) -> int:
        return self.world.now + self.skew

    def give(self, it: h.Input) -> None:
        """Decide, make the change durable, then act, then report: with a chance to die in between."""
        outcome = decide(self.ledger, it, self.now, self.settings)
        if outcome is h.NOTHING:
            return
        apply(self.ledger, outcome.changes)
        if outcome.ignored:
            self.world.noted(self, outcome.ignored, it)
        for effect in outcome.effects:
            self.world.point(self, "effect")
            self.act(effect)
        for report in outcome.reports:
            self.world.point(self, "report")
            if isinstance(report.happening, TaskFailed):
                who = Identity(report.job, report.incarnation, report.pipeline, report.task, report.attempt)
                loop = self.loops.get(who)
                if loop is not None and not loop.stopping:
                    raise Violation(f"{self.name} says that a running attempt failed: {report.happening}")
            self.world.deliver("reports", report.job, report)

    def act(self, effect: h.Effect) -> None:
        if isinstance(effect, h.StartTask):
            self.world.started(effect.who)
            self.loops[effect.who] = Loop.start(effect)
        elif isinstance(effect, h.StopTask):
            if effect.who in self.loops:
                self.loops[effect.who].stopping = effect.reason
        elif isinstance(effect, h.StageCheckpoint):
            if effect.who in self.loops:
                self.loops[effect.who].stage = effect.checkpoint
        elif isinstance(effect, h.Publish):
            world = self.world
            long = world.rng.randint(100, 6000) if world.chance("publishing takes long", 0.25) else 0
            if long and world.chance("worker cut off in publishing", 0.25):
                world.cut_until[self.name] = world.now + long
                long += 500
            self.publishing.append((self.now + long, effect))
        else:
            self.removing.append(effect)

    def step(self) -> None:
        world = self.world
        orders, beats = self.position < self.orders.stable, world.now - self.beaten >= HEARTBEAT_MS
        if (orders or beats or self.asked) and not world.is_cut(self):
            if self.asked:  # answered by now; whoever slept or was cut off hears it late
                lease, asked, self.asked = self.ledger.lease, self.asked, 0
                self.give(h.Reached(asked))
                beats = beats or self.ledger.lease != lease
            if orders:
                self.follow_orders()
            if beats:
                self.beaten, self.asked = world.now, self.now
                world.broker.append("workers", self.name, heartbeat(self.ledger, self.now, self.settings))
        if world.steps % 4 == 0:
            self.give(h.Tick())
        if self.loops:
            for loop in list(self.loops.values()):
                self.work(loop)
        if self.publishing:
            self.publish()
        if self.removing:
            effect = self.removing.pop(0)
            if world.chance("staging stuck", 0.05):
                self.give(h.StagingStuck(effect.job, effect.incarnation, "permission denied"))
            else:
                removed = world.data.remove(effect.job, effect.incarnation)
                self.give(h.StagingGone(effect.job, effect.incarnation, removed))

    def follow_orders(self) -> None:
        found, position = self.orders.read(self.position)
        for offset, (worker, job, pipeline, task), order in found:
            if worker == self.name:
                self.give(h.Withdrawn(job, pipeline, task) if order is None else order)
            self.position = offset + 1
        self.position = position

    def work(self, loop: Loop) -> None:
        """One slice of a task's loop."""
        world, who = self.world, loop.who
        if loop.stopping:
            del self.loops[who]
            self.give(h.Stopped(who, loop.stopping))
            return
        if not loop.started:
            loop.started = True
            self.give(h.Started(who))
        if world.chance("task crash", 0.003):
            del self.loops[who]
            self.give(h.Crashed(who, "boom"))
            return
        if loop.stage:
            checkpoint, loop.stage = loop.stage, 0
            pieces = world.data.stage(who, loop.take_unstaged())
            self.give(h.Staged(who, checkpoint, b"%d" % loop.position, pieces, loop.position, 8 * loop.position))
            return
        if not loop.exhausted:
            if world.chance("stall", 0.0015):
                return
            loop.read(world.slice_rows())
        if world.steps % 4 == 0:
            self.give(h.Progressed(who, loop.position, 8 * loop.position, self.now))
        if loop.position == loop.total and not loop.exhausted:
            loop.exhausted = True
            self.give(h.Exhausted(who, b"%d" % loop.position))

    def publish(self) -> None:
        for at, effect in [each for each in self.publishing if each[0] <= self.now][:1]:
            self.publishing.remove((at, effect))
            who = (effect.job, effect.incarnation, effect.pipeline, effect.checkpoint)
            if not may_publish(self.ledger, effect.lease, self.now, self.settings):
                self.give(h.PublishFailed(*who, "the lease is lost"))
                continue
            if self.world.chance("sink refuses", 0.1):
                self.give(h.PublishFailed(*who, "database lock"))
                continue
            if effect.job in self.world.rotted and self.world.data.missing(effect):
                # Nobody could read any more who was told to publish what, and it was removed under its hands.
                self.give(h.PublishFailed(*who, "staged output is gone", True, effect.tries, effect.conclusive))
                continue
            if not self.world.data.is_published(effect) and self.world.is_refused(effect):
                self.give(h.PublishFailed(*who, "commit conflict", True, effect.tries, effect.conclusive))
                continue
            rows = self.world.data.publish(effect)
            self.world.point(self, "published", effect)
            self.give(h.Published(*who, rows))
