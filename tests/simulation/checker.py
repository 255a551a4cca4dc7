"""Looks at the log from outside, after every step, and at the data: what must always hold, and what must hold at the
end. It knows the life-cycle tables and SCENARIOS.md, not the code that decides."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from coordinator.lifecycle import TERMINAL_JOB, allows
from coordinator.state import State, entity_of, fold
from events.records import Checkpoint, Event, Outcome, Specification, Submit

if TYPE_CHECKING:
    from tests.simulation.world import World


OVERDUE_MS = 15_000  # no leader is ever missing for as long


class Checker:
    def __init__(self, world: World) -> None:
        self.world = world
        self.position = 0
        self.known: dict[str, Event] = {}
        self.left: set[str] = set()
        self.rows_at_end: dict[tuple[str, int], int] = {}
        self.state = State(0)
        self.jobs: dict[str, Event] = {}
        self.outcomes: dict[str, Event] = {}
        self.ended: dict[tuple[str, int], str] = {}
        self.specifications: dict[tuple[str, int], str] = {}
        self.newest_checkpoint: dict[tuple[str, int], int] = {}
        self.attempts: dict[tuple[str, int], int] = {}
        self.epoch = 0
        self.transitions = 0
        self.tracing = False

    def must(self, holds: bool, what: str) -> None:
        if not holds:
            from tests.simulation.world import Violation

            raise Violation(what)

    def follow(self) -> None:
        found, self.position = self.world.broker.partition("events").read(self.position)
        for offset, key, event in found:
            self.look(offset, key, event)
            fold(self.state, entity_of(key), event)
        twice = self.world.data.twice
        self.must(not twice, f"rows published more than once: {twice[:3]}")
        if self.world.steps % 40 == 0:
            self.overdue()
        if found:
            self.compare_with_leader()
            self.always()

    def compare_with_leader(self) -> None:
        """What the leader knows is what a follower knows: nothing but the fold of the log."""
        owner = self.world.broker.producers.get("shard-0")
        for process in self.world.coordinators:
            if process.alive and owner is not None and process.leading == owner.epoch and not owner.open:
                self.must(process.state.jobs == self.state.jobs, f"{process.name} knows what the log does not")

    def overdue(self) -> None:
        """A deadline on the log is kept, whoever leads: late by a takeover or two, not more."""
        for key, event in self.known.items():
            late = self.world.now - event.due_at if event.due_at else 0
            self.must(late < OVERDUE_MS, f"{key} was due {late} ms ago: {event.transition} {event.to}")

    def always(self) -> None:
        """No pipeline runs without its next step due: a checkpoint, or the end of the one in flight."""
        for name, job in self.state.jobs.items():
            if job.event is None or job.event.to not in ("SCHEDULED", "RUNNING"):
                continue
            for number, pipeline in job.pipelines.items():
                dues = [e.due_at for e in (pipeline.event, pipeline.pending, pipeline.checkpoint) if e is not None]
                running = pipeline.event is not None and pipeline.event.to == "RUNNING"
                self.must(not running or any(dues), f"{name}/{number} is RUNNING with no checkpoint due")

    def trace(self, offset: int, key: str, event: Event | None) -> None:
        """A line a person can read: when, where, what, and why."""
        what = "deleted"
        if event is not None:
            why = f"{event.cause.topic}@{event.cause.offset}" if event.cause.kind == "INPUT" else event.cause.note
            said = getattr(event.state, "reason", "")
            what = f"{event.transition}: {event.from_ or '-'} → {event.to} (attempt {event.attempt}, {why}) {said}"
        sys.stdout.write(f"{self.world.now:>7} ms  {offset:>5}  epoch {self.epoch}  {key}  {what}\n")

    def look(self, offset: int, key: str, event: Event | None) -> None:
        entity = entity_of(key)
        before = self.known.get(key)
        if self.tracing:
            self.trace(offset, key, event)
        if event is None:
            self.must(before is not None, f"{key} deleted at {offset}, but it was not there")
            self.known.pop(key, None)
            self.left.discard(key)
            if entity.kind == "job":
                self.jobs.pop(entity.job)
            return
        self.transitions += entity.kind != "cursor"
        self.must(event.epoch >= self.epoch, f"{key} at {offset}: epoch {event.epoch} after {self.epoch}")
        self.epoch = event.epoch
        was = before.to if before else ""
        self.must(event.from_ == was, f"{key} at {offset} says it left {event.from_!r}, it was {was!r}")
        self.must(allows(entity.kind, event.transition, was), f"{key} at {offset}: {event.transition} from {was!r}")
        self.known[key] = event
        if not self.stays(key, event):
            self.left.add(key)
        getattr(self, f"_look_at_{entity.kind}", lambda *_: None)(key, event)

    def _look_at_job(self, key: str, event: Event) -> None:
        known = self.jobs.get(event.job)
        self.must(known is None or known.incarnation == event.incarnation, f"{key} changed its incarnation in life")
        self.jobs[event.job] = event
        if event.to in TERMINAL_JOB:
            self.ended[event.job, event.incarnation] = event.to
            self.rows_of(event)
            mine = (event.job, event.incarnation)
            self.rows_at_end[mine] = sum((name, inc) == mine for name, inc, *_ in self.world.data.published)

    def _look_at_specification(self, key: str, event: Event) -> None:
        assert isinstance(event.state, Specification)
        self.specifications[event.job, event.incarnation] = event.state.body

    def _look_at_task(self, key: str, event: Event) -> None:
        last = self.attempts.get((key, event.incarnation), 0)
        self.must(event.attempt >= last, f"{key}: attempt {event.attempt} after {last}")
        self.attempts[key, event.incarnation] = event.attempt

    def _look_at_checkpoint(self, key: str, event: Event) -> None:
        assert isinstance(event.state, Checkpoint)
        last = self.newest_checkpoint.get((key, event.incarnation), 0)
        fresh = event.transition == "completed"
        self.must(event.state.id > last if fresh else event.state.id == last, f"{key}: {event.state.id} after {last}")
        self.newest_checkpoint[key, event.incarnation] = event.state.id

    def _look_at_command(self, key: str, event: Event) -> None:
        name = entity_of(key).parts[1]
        self.must(str(name) not in self.outcomes, f"a second outcome for command {name}")
        assert isinstance(event.state, Outcome)
        self.outcomes[str(name)] = event

    def rows_of(self, job: Event) -> None:
        """A finished job has published every row once; any other a beginning of each source, without a gap."""
        source = json.loads(self.specifications[job.job, job.incarnation])["source"][0]
        total, tasks = source["options"]["rows"], source["parallelism"]
        rows: dict[int, set[int]] = {task: set() for task in range(tasks)}
        for name, incarnation, _, task, number in self.world.data.published:
            if (name, incarnation) == (job.job, job.incarnation):
                rows[task].add(number)
        for task, numbers in rows.items():
            self.must(numbers == set(range(len(numbers))), f"{job.job} task {task} has gaps in {sorted(numbers)}")
            drained = "Stop" in {type(c.action).__name__ for c in self.world.commands.values() if c.job == job.job}
            if job.to == "FINISHED" and total >= 0 and not drained:
                self.must(
                    len(numbers) == total, f"{job.job} FINISHED with {len(numbers)} of {total} rows of task {task}"
                )

    def is_quiet(self) -> bool:
        """Nothing is left on the log but what stays for a time of its own, and every command has its outcome."""
        return not self.left and all(command in self.outcomes for command in self.world.commands)

    @staticmethod
    def stays(key: str, event: Event) -> bool:
        """Summaries stay for the history's time, and so do outcomes of commands for jobs that are not there."""
        kind = key.split("/")[0]
        return kind in ("leader", "cursor", "worker", "summary") or (kind == "command" and event.incarnation == 0)

    def open(self) -> str:
        known = {key: self.known[key] for key in self.left}
        return str({key: (e.to, e.due_at, getattr(e.state, "reason", "")) for key, e in known.items()})[:3000]

    def finish(self) -> None:
        """When all is quiet: nothing is staged, no attempt was started twice, and any replay gives the same."""
        world = self.world
        for worker in world.workers:
            self.must(not worker.loops, f"{worker.name} still runs {list(worker.loops)[:3]}")
            held = [*worker.ledger.tasks, *worker.ledger.publications, *worker.ledger.removals]
            self.must(not held, f"the ledger of {worker.name} still holds {held[:3]}")
        for job, rows in self.rows_at_end.items():
            now = sum((name, incarnation) == job for name, incarnation, *_ in world.data.published)
            self.must(now == rows, f"{job} published {rows} rows before its end and {now - rows} after it")
        self.must(not any(world.data.staging.values()), f"left in staging: {list(world.data.staging)[:3]}")
        twice = [who for who, times in world.starts.items() if times > 1]
        self.must(not twice or bool(world.counts["disk lost"]), f"started twice: {twice[:3]}")
        again = State(0)
        found, _ = world.broker.partition("events").read(0)
        for _, key, event in found:
            fold(again, entity_of(key), event)
        self.must(set(again.jobs) == {entity_of(k).job for k in self.known if k.startswith("command/")},
                  f"a replay brings back {set(again.jobs)}")  # fmt: skip
        for command in world.commands.values():
            outcome = self.outcomes[command.id]
            self.must(outcome.to in ("ACCEPTED", "REFUSED"), f"{command.id} is {outcome.to}")
        submitted = sum(
            isinstance(c.action, Submit) and self.outcomes[c.id].to == "ACCEPTED" for c in world.commands.values()
        )
        self.must(len(self.ended) == submitted, f"{submitted} jobs were accepted, {len(self.ended)} have ended")
