"""The world of a seed: virtual time, who takes the next step, what goes wrong, and what services ask for."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

from coordinator.draft import Decision
from coordinator.lifecycle import TERMINAL_JOB
from events.records import Cancel, Command, CommandAction, Event, Pause, Resume, Stop, Submit, TakeSavepoint
from tests.simulation.broker import Broker, NoAnswer
from tests.simulation.checker import Checker
from tests.simulation.coordinators import Coordinator
from tests.simulation.data import Data
from tests.simulation.workers import Worker
from workers.ledger import Identity

STEP_MS = 25
FAULTS_UNTIL_MS = 20_000
END_BY_MS = 300_000
QUIET_STEPS = 150


class Died(Exception):
    """The process ends here."""


class Violation(AssertionError):
    """Something that must never be."""


class World:
    def __init__(self, seed: int, *, faults: bool = True) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.now = 0
        self.faulty = faults
        self.broker, self.data = Broker(), Data()
        self.checker = Checker(self)
        self.counts: Counter[str] = Counter()
        self.steps = self.points = 0
        self.beaten = -10_000
        self.starts: Counter[Identity] = Counter()
        self.die_at = {self.rng.randint(1, 3000) for _ in range(self.rng.randint(0, 8))} if faults else set()
        self.lost_at = {self.rng.randint(1, 300) for _ in range(self.rng.randint(0, 4))} if faults else set()
        self.commits = 0
        self.cut_until: dict[str, int] = {}
        self.on_the_way: list[tuple[int, str, str, Any]] = []
        self.coordinators = [Coordinator(self, f"c{i}", i) for i in range(2)]
        self.workers = [Worker(self, f"w{i}") for i in range(3)]
        self.processes: list[Coordinator | Worker] = [*self.coordinators, *self.workers]
        self.down: list[tuple[int, Coordinator | Worker]] = []
        self.commands: dict[str, Command] = {}
        self.plan = self._workload()

    # What goes wrong ---------------------------------------------------------------------------------------------

    @property
    def troubled(self) -> bool:
        return self.faulty and self.now < FAULTS_UNTIL_MS

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def chance(self, what: str, probability: float) -> bool:
        if self.troubled and self.rng.random() < probability:
            self.count(what)
            return True
        return False

    def point(self, process: Coordinator | Worker, where: str) -> None:
        """A place between two effects, where a process may die."""
        self.points += 1
        if self.troubled and self.points in self.die_at:
            self.count(f"{type(process).__name__.lower()} dies at {where}")
            raise Died

    def commit(self, process: Coordinator, transactional_id: str, epoch: int) -> None:
        """The end of a transaction, whose answer may get lost either way."""
        self.commits += 1
        if self.troubled and self.commits in self.lost_at:
            self.count("commit without an answer")
            if self.rng.random() < 0.5:
                self.broker.end(transactional_id, epoch, commit=True)
            raise NoAnswer
        self.point(process, "commit")
        self.broker.end(transactional_id, epoch, commit=True)
        self.point(process, "committed")

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

    def arrive(self) -> None:
        for message in [m for m in self.on_the_way if m[0] <= self.now]:
            self.on_the_way.remove(message)
            self.broker.append(*message[1:])

    def is_cut(self, worker: Worker) -> bool:
        return self.cut_until.get(worker.name, 0) > self.now

    def trouble(self) -> None:
        if not self.troubled:
            return
        for process in [*self.coordinators, *self.workers]:
            if process.alive and self.rng.random() < 0.002:
                self.count(f"{type(process).__name__.lower()} sleeps")
                process.asleep_until = self.now + self.rng.randint(100, 4000)
        for worker in self.workers:
            if self.rng.random() < 0.001:
                self.count("worker cut off")
                self.cut_until[worker.name] = self.now + self.rng.randint(500, 6000)
        if self.rng.random() < 0.01:
            retention = 10**9 if self.rng.random() < 0.7 else 30_000
            self.counts["records compacted"] += self.broker.partition("events").compact(self.now, retention, 20)

    def kill(self, process: Coordinator | Worker) -> None:
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

    # What services ask for ---------------------------------------------------------------------------------------

    def _workload(self) -> list[tuple[int, str, CommandAction]]:
        rng, plan = self.rng, list[tuple[int, str, CommandAction]]()
        for name in ["a", "b", "c", "d", "e"][: rng.randint(2, 5)]:
            at = rng.randint(0, 4000)
            for _ in range(rng.randint(1, 3)):
                endless = rng.random() < 0.3
                plan.append((at, name, Submit(specification=self._specification(endless))))
                if rng.random() < 0.3:
                    plan.append((at + rng.randint(500, 5000), name, Pause()))
                    plan.append((at + rng.randint(5500, 9000), name, Resume()))
                if endless or rng.random() < 0.2:
                    last = rng.choice([Cancel(), Stop(), TakeSavepoint(name="s", stop=True)])
                    plan.append((at + rng.randint(1000, 15_000), name, last))
                at += rng.randint(2000, 8000)
        return sorted(plan, key=lambda p: p[0])

    def _specification(self, endless: bool) -> str:
        rng = self.rng
        env = {
            "checkpoint": {"interval_ms": rng.choice([200, 500, 2000]), "timeout_ms": 2000, "tolerated_failures": 100},
            "restart": {"retries": rng.choice([0, 2, 50, 50]), "backoff_ms": 100, "max_backoff_ms": 1000},
            "commit": {"backoff_ms": 200, "max_backoff_ms": 1000},
            "deploy_timeout_ms": 1500,
            "cleanup_delay_ms": rng.choice([0, 500, 3000]),
            "history_ms": 20_000,
        }
        rows = -1 if endless else rng.randint(0, 250)
        source = [{"name": "in", "kind": "model", "parallelism": rng.randint(1, 3), "options": {"rows": rows}}]
        sink = [{"name": "out", "kind": "model", "from": ["in"]}]
        return json.dumps({"env": env, "source": source, "sink": sink})

    def services(self) -> None:
        """Send what is due; send again what has no outcome yet: a client always gets to know it."""
        while self.plan and self.plan[0][0] <= self.now:
            _, job, action = self.plan.pop(0)
            command = Command(id=f"{job}-{len(self.commands)}", job=job, by="sim", time=self.now, action=action)
            self.commands[command.id] = command
            self.deliver("commands", job, command)
        if self.steps % 50 == 0:
            for command in self.commands.values():
                if command.id not in self.checker.outcomes:
                    self.deliver("commands", command.job, command)
        if self.now >= FAULTS_UNTIL_MS and self.steps % 400 == 0:
            self.end_what_would_not_end()

    def end_what_would_not_end(self) -> None:
        """Streams and paused jobs are canceled; whatever is bounded must end by itself."""
        for name, job in self.checker.jobs.items():
            endless = '"rows": -1' in self.checker.specifications[name, job.incarnation]
            command = Command(id=f"{name}-last-{job.incarnation}", job=name, by="sim", action=Cancel())
            if job.to not in TERMINAL_JOB and (endless or job.to == "PAUSED") and command.id not in self.commands:
                self.commands[command.id] = command
                self.deliver("commands", name, command)

    # Time --------------------------------------------------------------------------------------------------------

    def started(self, who: Identity) -> None:
        self.starts[who] += 1

    def written(self, decision: Decision, cursor: Event) -> None:
        self.counts["transactions"] += 1

    def run(self) -> None:
        quiet = 0
        while quiet < QUIET_STEPS:  # some more, for what is still on its way
            quiet = quiet + 1 if self.is_over() else 0
            self.now += STEP_MS
            self.broker.now = self.now
            self.steps += 1
            self.revive()
            self.arrive()
            self.trouble()
            self.services()
            first = int(self.rng.random() * len(self.processes))
            for process in self.processes[first:] + self.processes[:first]:
                if process.alive and process.asleep_until <= self.now:
                    try:
                        process.step()
                    except Died:
                        self.kill(process)
            self.checker.follow()
            if self.now > END_BY_MS:
                raise Violation(f"stuck at {self.now}: {self.checker.open()}")
        self.checker.finish()

    def is_over(self) -> bool:
        if self.now <= FAULTS_UNTIL_MS or self.plan or self.down or self.on_the_way or not self.checker.is_quiet():
            return False
        away = max([*self.cut_until.values(), *(process.asleep_until for process in self.processes)], default=0)
        return away <= self.now
