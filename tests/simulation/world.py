"""The world of a seed: virtual time, who takes the next step, what goes wrong, and what services ask for.

Every fault is struck by `strike`, which numbers them: a run with some of them left out is as repeatable as the whole.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from coordinator.draft import Gone
from coordinator.lifecycle import ACTIVE_TASK, TERMINAL_JOB
from coordinator.state import LOGIC, entity_of
from events.records import (
    Cancel,
    Command,
    CommandAction,
    Event,
    Pause,
    Repair,
    Restore,
    Resume,
    Stop,
    Submit,
    Summary,
    TakeSavepoint,
)
from tests.simulation.broker import COMMITTED, Broker, NoAnswer, Rotten, Stored
from tests.simulation.checker import Checker, Violation
from tests.simulation.coordinators import Coordinator, header_of
from tests.simulation.data import Data, is_endless
from tests.simulation.workers import Worker
from workers.happenings import Publish, Settings
from workers.ledger import Identity

STEP_MS, SLOW_STEP_MS, IDLE_STEP_MS = 32, 50, 100
BEGIN_MS = 100_000
FAULTS_FOR_MS = 16_000
END_AFTER_MS = 300_000
QUIET_MS = 4000
LEASE_MS = 3000
Process = Coordinator | Worker


class Died(Exception):
    """The process ends here."""


def all_of_them(_: int) -> bool:
    return True


class World:
    step_ms, idle_step_ms = STEP_MS, IDLE_STEP_MS
    lease_ms = LEASE_MS  # how long a worker may be silent before it is given up

    def __init__(self, seed: int, *, faults: bool = True, lets: Callable[[int], bool] = all_of_them) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.now = BEGIN_MS
        self.faulty, self.lets = faults, lets
        self.troubled = faults  # until the end of the faults
        self.struck: list[tuple[int, int, str]] = []  # what went wrong: its number, when, what
        self.strikes = 0
        self.swarm: dict[str, float] = {}
        self.broker, self.data = Broker(), Data()
        self.checker = Checker(self)
        self.counts: Counter[str] = Counter()
        self.steps = self.points = self.commits = 0
        self.beaten = 0
        self.starts: Counter[Identity] = Counter()
        self.refused: set[tuple[str, int, int, int]] = set()
        self.rotted: set[str] = set()  # jobs of which a record has rotted: who held an order for it may be forgotten
        rng = self.rng
        self.die_at = {rng.randint(1, 3000) for _ in range(rng.randint(0, 8))}
        self.lost_at = {rng.randint(1, 150) for _ in range(rng.randint(0, 5))}
        self.rots_at = BEGIN_MS + rng.randint(2000, FAULTS_FOR_MS) if rng.random() < 0.45 else 0
        self.leaky = rng.random() < 0.3
        self.replay_at = rng.randint(100, 640)
        self.most_skew = rng.choice([0, 0, 2000]) if faults else 0
        if faults:
            self.step_ms = rng.choice([STEP_MS, SLOW_STEP_MS])  # on a slow machine more meets in one
        self.cut_until: dict[str, int] = {}
        self.on_the_way: list[tuple[int, str, str, Any]] = []
        self.coordinators = self.make_coordinators()
        self.upgrades = self._upgrades()
        self.workers = self.make_workers()
        self.processes: list[Process] = [*self.coordinators, *self.workers]
        # Whoever begins a step, the others follow in the same order.
        self.turns = [self.processes[first:] + self.processes[:first] for first in range(len(self.processes))]
        self.down: list[tuple[int, Process]] = []
        self.commands: dict[str, Command] = {}
        self.plan = self._workload()

    def make_coordinators(self) -> list[Coordinator]:
        return [Coordinator(self, f"c{i}", i) for i in range(2)]

    def make_workers(self) -> list[Worker]:
        return [Worker(self, f"w{i}") for i in range(3)]

    def worker_settings(self, worker: str, instance: str) -> Settings:
        return Settings(
            worker=worker,
            instance=instance,
            slots=4,
            lease_ms=2000,
            stall_ms=4000,
            stop_patience_ms=1000,
            repeat_ms=200,
            repeat_cap_ms=2000,
        )

    def noted(self, who: Process, note: str, about: Any = None) -> None:
        """What a process ignored, and why: for whoever tells the story."""

    # What goes wrong ---------------------------------------------------------------------------------------------

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def strike(self, what: str) -> bool:
        """A fault, unless this run leaves it out."""
        self.strikes += 1
        if not self.lets(self.strikes):
            return False
        self.counts[what] += 1
        self.struck.append((self.strikes, self.now, what))
        return True

    def chance(self, what: str, probability: float) -> bool:
        """Some worlds have much more of a fault than others, and less of another: together they meet in more ways."""
        if not self.troubled:
            return False
        swarm = self.swarm.get(what)
        if swarm is None:
            swarm = self.swarm[what] = random.Random(f"{self.seed} {what}").choice((0.2, 1.0, 1.0, 6.0))
        return self.rng.random() < probability * swarm and self.strike(what)

    def skew(self) -> int:
        """How far the clock of a process that starts now is from the true time."""
        return self.rng.randint(-self.most_skew, self.most_skew) if self.most_skew else 0

    def point(self, process: Process, where: str, what: Any = None) -> None:
        """A place between two effects, right before or after `what`, where a process may die."""
        self.points += 1
        if self.broker.late:
            self.broker.arrive(self.points)
        if self.points in self.die_at and self.troubled:
            kind = type(process).__name__.lower()
            if self.strike(f"{kind} dies at {where}"):
                raise Died

    def commit(self, process: Coordinator, transactional_id: str, epoch: int) -> None:
        """The end of a transaction. Its answer may get lost: it has taken effect, or not, or will."""
        self.commits += 1
        if self.commits in self.lost_at and self.troubled and self.strike("commit without an answer"):
            fate = self.rng.random()
            if fate < 0.3:
                self.broker.commit(transactional_id, epoch)
            elif fate < 0.8:
                self.count("commit arrives late")
                self.broker.commit_late(transactional_id, epoch, self.points + self.rng.randint(1, 30))
            else:
                self.broker.time_out(transactional_id, epoch)
            raise NoAnswer
        self.point(process, "commit")
        self.broker.commit(transactional_id, epoch)
        self.point(process, "committed")

    def leak(self, events: tuple[Event | Gone, ...]) -> None:
        """Should the broker's fencing fail, what a fenced leader writes stands behind the newer one's election, and is
        void there. (Only where nothing is compacted: `min.compaction.lag.ms` is longer than any such leader lives.)"""
        if self.leaky and events[0].epoch < self.checker.epoch and self.strike("a fenced leader's records appear"):
            for event in events:
                self.broker.append("events", event.entity, event)

    def deliver(self, topic: str, key: str, value: Any) -> None:
        """A message to the broker: lost, late, or doubled by a retry that arrives whenever it likes."""
        if self.chance("message lost", 0.03):
            return
        if self.chance("message delayed", 0.02):
            self.on_the_way.append((self.now + self.rng.randint(50, 1500), topic, key, value))
            return
        self.broker.append(topic, key, value)
        if self.chance("message doubled", 0.04):
            self.on_the_way.append((self.now + self.rng.randint(0, 3000), topic, key, value))

    def is_refused(self, effect: Publish) -> bool:
        """Whether the sink refuses a checkpoint for good. It goes on doing so, but a try under way may get through."""
        identity = (effect.job, effect.incarnation, effect.pipeline, effect.checkpoint)
        if identity in self.refused:
            return self.rng.random() < 0.6
        # Most of all where another worker still has it in hand: it must not come through after it was given up.
        elsewhere = sum(effect.checkpoint == other.checkpoint and effect.job == other.job
                        for worker in self.workers for _, other in worker.publishing)  # fmt: skip
        if self.chance("sink refuses for good", 0.4 if elsewhere else 0.06):
            self.refused.add(identity)
        return identity in self.refused

    def arrive(self) -> None:
        for message in [m for m in self.on_the_way if m[0] <= self.now]:
            self.on_the_way.remove(message)
            self.broker.append(*message[1:])

    def is_cut(self, worker: Worker) -> bool:
        return self.cut_until.get(worker.name, 0) > self.now

    def trouble(self) -> None:
        """Once a step, at most one of each kind, so that most steps cost one look at the dice."""
        rng = self.rng
        dice = rng.random()
        if dice < 0.012:
            process = rng.choice(self.processes)
            if process.alive and self.strike(f"{type(process).__name__.lower()} sleeps"):
                process.asleep_until = self.now + rng.randint(100, 4000)
        elif dice < 0.022:
            worker = rng.choice(self.workers)
            if self.strike("worker cut off"):
                self.cut_until[worker.name] = self.now + rng.randint(500, 6000)
        elif dice < 0.037 and not self.leaky:
            retention = 10**9 if rng.random() < 0.7 else 30_000
            self.counts["records compacted"] += self.broker.partition("events").compact(self.now, retention, 20)
        elif 0.037 <= dice < 0.040 and self.strike("garbage on a topic"):
            self.broker.append(rng.choice(("commands", "reports")), "a", Rotten(None))
        if self.rots_at and self.now >= self.rots_at and not self.broker.producers["shard-0"].open:
            self.rots_at = 0
            self.rot()
        for at, process in [each for each in self.upgrades if each[0] <= self.now]:
            self.upgrades.remove((at, process))
            self.count("coordinator upgraded")
            process.logic = LOGIC
            if process.alive:
                self.kill(process)

    def rot(self) -> None:
        """One record of a job, of those that count, can't be read any more."""
        newest: dict[str, Stored] = {}
        epoch = 0
        for record in self.broker.partition("events").stored:
            if record.status == COMMITTED and (of := header_of(record.value).epoch) >= epoch:  # else it is void
                newest[record.key], epoch = record, of
        jobs = [r for r in newest.values() if isinstance(r.value, Event) and r.value.job and r.value.incarnation]
        if jobs and self.strike("a record rots"):
            kinds = sorted({entity_of(r.key).kind for r in jobs})
            kind = "task" if "task" in kinds and self.rng.random() < 0.7 else self.rng.choice(kinds)
            of_kind = [r for r in jobs if entity_of(r.key).kind == kind]
            running = [r for r in of_kind if kind == "task" and r.value.to in ACTIVE_TASK]  # which is worse
            record = self.rng.choice(running or of_kind)
            self.count(f"{kind} record rots")
            self.rotted.add(record.value.job)
            if kind == "command":
                self.checker.outcomes.pop(str(entity_of(record.key).parts[1]), None)  # nobody can read it
            elif isinstance(record.value.state, Summary):
                self.checker.forgotten |= set(record.value.state.commands)
            record.value = Rotten(record.value)
            leader = next((c for c in self.coordinators if c.alive and c.leading), None)
            if leader is not None and self.rng.random() < 0.8 and self.strike("the leader dies on it"):
                self.kill(leader)  # only who reads the log again stumbles over it

    def kill(self, process: Process) -> None:
        process.alive = False
        self.down.append((self.now + self.rng.randint(50, 3000), process))

    def revive(self) -> None:
        for at, process in [d for d in self.down if d[0] <= self.now]:
            self.down.remove((at, process))
            process.alive, process.asleep_until = True, 0
            if isinstance(process, Worker) and self.chance("disk lost", 0.2):
                process.lose_disk()
            try:
                process.start()
            except Died:
                self.kill(process)

    def _upgrades(self) -> list[tuple[int, Coordinator]]:
        """In some worlds both coordinators begin with older logic and are upgraded, one after the other."""
        if not self.faulty or self.rng.random() >= 0.2:
            return []
        at = BEGIN_MS + self.rng.randint(2500, 9500)
        for process in self.coordinators:
            process.logic = LOGIC - 1
            process.begin()
        first, second = self.rng.sample(self.coordinators, 2)
        return [(at, first), (at + self.rng.randint(800, 5500), second)]

    # What services ask for ---------------------------------------------------------------------------------------

    def _workload(self) -> list[tuple[int, str, CommandAction]]:
        rng, plan = self.rng, list[tuple[int, str, CommandAction]]()
        for name in ["a", "b", "c", "d", "e"][: rng.randint(2, 5)]:
            at = BEGIN_MS + rng.randint(0, 3000)
            for _ in range(rng.randint(1, 3)):
                body = self._specification(rng.random() < 0.3)
                plan.append((at, name, Submit(specification=body)))
                plan += [(at + after, name, action) for after, action in self._life(body, name)]
                at += rng.randint(1500, 6500)
        return sorted(plan, key=lambda p: p[0])

    def _life(self, body: str, name: str) -> list[tuple[int, CommandAction]]:
        """What is asked of a job while it runs, and after."""
        rng, asked = self.rng, list[tuple[int, CommandAction]]()
        if rng.random() < 0.3:
            asked += [(rng.randint(400, 4000), Pause()), (rng.randint(4500, 7500), Resume())]
        if rng.random() < 0.3:
            asked.append((rng.randint(200, 3500), TakeSavepoint(name="s1")))
        if rng.random() < 0.05:
            entity, to = rng.choice([(f"job/{name}", "FAILING"), (f"task/{name}/0/0", "FAILED")])
            asked.append((rng.randint(400, 5000), Repair(entity=entity, to=to, reason="it looked stuck")))
        if is_endless(body) or rng.random() < 0.2:
            last = rng.choice([Cancel(), Stop(), TakeSavepoint(name="s2", stop=True)])
            asked.append((rng.randint(800, 12_000), last))
        if rng.random() < 0.4:
            asked.append((rng.randint(2500, 13_000), Restore(savepoint=rng.choice(["", "", "s1", "s2"]))))
        return asked

    def _specification(self, endless: bool) -> str:
        """One source; or several in one pipeline, one of which may end long before the other; or several pipelines; or
        a table's optimizing process, whose tasks all end before anything is committed."""
        rng = self.rng
        shape = rng.choice(["one", "one", "several sources", "several pipelines", "optimize"])
        interval = 600_000 if shape == "optimize" and not endless else rng.choice([200, 500, 2000])
        env = {
            "checkpoint": {"interval_ms": interval, "timeout_ms": 2000, "tolerated_failures": 100},
            "restart": {"retries": rng.choice([0, 2, 50, 50]), "backoff_ms": 100, "max_backoff_ms": 1000},
            "commit": {"retries": rng.choice([2, 20]), "backoff_ms": 200, "max_backoff_ms": 1000},
            "deploy_timeout_ms": 1500,
            "cleanup_delay_ms": rng.choice([0, 500, 3000]),
            "history_ms": 20_000,
        }
        tasks = [rng.randint(1, 3)] if shape in ("one", "optimize") else [rng.randint(1, 2), rng.randint(1, 2)]
        source = [
            {"name": f"in{i}", "kind": "model", "parallelism": n, "options": {"rows": rng.randint(0, 250)}}
            for i, n in enumerate(tasks)
        ]
        if endless:
            source[-1]["options"] = {"rows": -1}
        names = [str(s["name"]) for s in source]
        groups = [[name] for name in names] if shape == "several pipelines" else [names]
        sink = [{"name": f"out{i}", "kind": "model", "from": group} for i, group in enumerate(groups)]
        return json.dumps({"env": env, "source": source, "sink": sink})

    def services(self) -> None:
        """Send what is due; send again what has no outcome yet: a client always gets to know it."""
        while self.plan and self.plan[0][0] <= self.now:
            _, job, action = self.plan.pop(0)
            self.send(Command(id=f"{job}-{len(self.commands)}", job=job, by="sim", time=self.now, action=action))
        if self.steps % 50 == 0:
            for command in self.commands.values():
                if command.id not in self.checker.outcomes:
                    self.deliver("commands", command.job, command)
        if self.now >= BEGIN_MS + FAULTS_FOR_MS and self.steps % 200 == 0:
            self.end_what_would_not_end()

    def send(self, command: Command) -> None:
        self.commands[command.id] = command
        self.deliver("commands", command.job, command)

    def end_what_would_not_end(self) -> None:
        """Streams and paused jobs are canceled; whatever is bounded must end by itself."""
        for name, job in self.checker.jobs.items():
            endless = is_endless(self.checker.specifications[name, job.incarnation])
            command = Command(id=f"{name}-last-{job.incarnation}", job=name, by="sim", action=Cancel())
            if job.to not in TERMINAL_JOB and (endless or job.to == "PAUSED") and command.id not in self.commands:
                self.send(command)

    def slice_rows(self) -> int:
        """How many rows a loop reads at once. (Not `randint`, which takes longer than the rest of a slice.)"""
        return int(6 * self.rng.random())

    # Time --------------------------------------------------------------------------------------------------------

    def started(self, who: Identity) -> None:
        self.starts[who] += 1

    def run(self) -> None:
        since = self.now
        while self.now - since < QUIET_MS:  # some more, for what is still on its way
            if not self.is_over():
                since = self.now
            self.step()
            if self.now > BEGIN_MS + END_AFTER_MS:
                raise Violation(f"stuck at {self.now}: {self.checker.open()}")
        self.checker.finish()

    def step(self) -> None:
        self.now += self.idle_step_ms
        for worker in self.workers:
            if worker.loops or worker.publishing or worker.removing:
                self.now += self.step_ms - self.idle_step_ms
                break
        self.broker.now = self.now
        self.troubled = self.faulty and self.now < BEGIN_MS + FAULTS_FOR_MS
        self.steps += 1
        if self.down:
            self.revive()
        if self.on_the_way:
            self.arrive()
        if self.troubled:
            self.trouble()
        self.services()
        for process in self.turns[int(self.rng.random() * len(self.turns))]:
            if process.alive and process.asleep_until <= self.now:
                try:
                    process.step()
                except Died:
                    self.kill(process)
        self.checker.follow()

    def is_over(self) -> bool:
        if self.now <= BEGIN_MS + FAULTS_FOR_MS or self.plan or self.down or self.on_the_way:
            return False
        if not self.checker.is_quiet() or any(worker.publishing or worker.removing for worker in self.workers):
            return False
        away = max([*self.cut_until.values(), *(process.asleep_until for process in self.processes)], default=0)
        return away <= self.now
