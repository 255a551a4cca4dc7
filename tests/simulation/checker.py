"""Looks at the log from outside, after every step, and at the data: what must always hold, and what must hold at the
end. It knows the life-cycle tables and SCENARIOS.md, not the code that decides."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from coordinator.lifecycle import TERMINAL_JOB, allows
from coordinator.state import entity_of
from events.records import Checkpoint, Event, Job, Outcome, Savepoint, Specification, Summary
from tests.simulation.broker import Rotten
from tests.simulation.coordinators import Reading
from tests.simulation.data import sizes

if TYPE_CHECKING:
    from tests.simulation.world import World

OVERDUE_MS = 20_000  # no leader is ever missing for as long, whatever the clocks say


class Violation(AssertionError):
    """Something that must never be."""


class Checker:
    def __init__(self, world: World) -> None:
        self.world = world
        self.events = world.broker.partition("events")
        self.position = 0
        self.known: dict[str, Event] = {}
        self.left: set[str] = set()
        self.rows_at_end: dict[tuple[str, int], int] = {}
        self.reading = Reading()
        self.jobs: dict[str, Event] = {}
        self.outcomes: dict[str, Event] = {}
        self.forgotten: set[str] = set()  # commands whose outcome, or the summary that remembers them, has rotted
        self.ended: dict[tuple[str, int], str] = {}
        self.specifications: dict[tuple[str, int], str] = {}
        self.begins: dict[tuple[str, int], dict[tuple[int, int], int]] = {}  # where restored tasks begin
        self.elsewhere: set[tuple[str, int]] = set()  # restored at positions that the command names
        self.drained: set[tuple[str, int]] = set()
        self.newest_checkpoint: dict[tuple[str, int], int] = {}
        self.attempts: dict[tuple[str, int], int] = {}
        self.epoch = self.logic = 0
        self.begun = 0  # submissions and restorations that were accepted
        self.transitions = 0
        self.tracing = False
        self.looks: dict[str, Callable[[str, Event], None]] = {
            "job": self._look_at_job,
            "task": self._look_at_task,
            "checkpoint": self._look_at_checkpoint,
            "command": self._look_at_command,
            "savepoint": self._look_at_savepoint,
        }

    def must(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(what)

    def follow(self) -> None:
        if self.position < self.events.stable:
            self.read_on()
        if twice := self.world.data.twice:
            raise Violation(f"rows published more than once: {twice[:3]}")
        if self.world.steps % 40 == 0:
            self.overdue()
        if self.world.steps == self.world.replay_at:
            self.replay()

    def read_on(self) -> None:
        found, self.position = self.events.read(self.position)
        # What rotted before anybody had read it is looked at as it was.
        legible = [(at, key, value.was if isinstance(value, Rotten) else value) for at, key, value in found]
        for offset, key, value in legible:
            if value.epoch >= self.epoch:  # what a fenced leader wrote counts for nobody
                self.epoch = value.epoch
                self.look(offset, key, value if isinstance(value, Event) else None)
        self.reading.take(legible)
        if legible:
            self.compare_with_leader()
            self.always()

    def compare_with_leader(self) -> None:
        """What the leader knows is what a follower knows: nothing but the fold of the log."""
        owner = self.world.broker.producers.get("shard-0")
        for process in self.world.coordinators:
            leads = process.alive and owner is not None and process.leading == owner.epoch and not owner.open
            if leads and process.state.jobs != self.reading.state.jobs:
                raise Violation(f"{process.name} knows what the log does not")

    def replay(self) -> Reading:
        """The log as it is now, compacted as it is, from its first record: the state at this time."""
        again = Reading()
        again.take(record for record in self.events.read(0)[0] if record[0] < self.position)
        rotten = {entity_of(key).job for key in again.unreadable}
        for name in ("jobs", "summaries"):
            one, other = getattr(again.state, name), getattr(self.reading.state, name)
            differ = [job for job in {*one, *other} - rotten if one.get(job) != other.get(job)]
            self.must(not differ, f"a replay differs in {name} of {differ[:3]}")
        return again

    def overdue(self) -> None:
        """A deadline on the log is kept, whoever leads: late by a takeover or two, not more."""
        now = self.world.now
        for key, event in self.known.items():
            if event.due_at and now - event.due_at >= OVERDUE_MS:
                raise Violation(f"{key} was due {now - event.due_at} ms ago: {event.transition} {event.to}")

    def always(self) -> None:
        """No pipeline runs without its next step due: a checkpoint, or the end of the one in flight."""
        for name, job in self.reading.state.jobs.items():
            if job.event is None or job.event.to not in ("SCHEDULED", "RUNNING"):
                continue
            for number, pipeline in job.pipelines.items():
                if pipeline.event is None or pipeline.event.to != "RUNNING":
                    continue
                if not any(e and e.due_at for e in (pipeline.event, pipeline.pending, pipeline.checkpoint)):
                    raise Violation(f"{name}/{number} is RUNNING with no checkpoint due")

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
        was = before.to if before else ""
        if event.from_ != was:
            raise Violation(f"{key} at {offset} says it left {event.from_!r}, it was {was!r}")
        if not allows(entity.kind, event.transition, was):
            raise Violation(f"{key} at {offset}: {event.transition} from {was!r}")
        if event.logic < self.logic:
            raise Violation(f"{key} at {offset}: logic {event.logic} leads over {self.logic}")
        self.logic = event.logic
        self.known[key] = event
        if not self.stays(entity.kind, event):
            self.left.add(key)
        look_at = self.looks.get(entity.kind)
        if look_at is not None:
            look_at(key, event)

    def _look_at_job(self, key: str, event: Event) -> None:
        known = self.jobs.get(event.job)
        self.must(known is None or known.incarnation == event.incarnation, f"{key} changed its incarnation in life")
        self.jobs[event.job] = event
        mine = (event.job, event.incarnation)
        assert isinstance(event.state, Job)
        if event.transition in ("submitted", "restored"):
            self.begins.setdefault(mine, {})
            self.specifications[mine] = self._specification(event.job)
            self._restored_from(event, event.state)
        if event.to == "DRAINING":
            self.drained.add(mine)
        if event.to in TERMINAL_JOB:
            self.ended[mine] = event.to
            if not event.state.quarantined:
                self.rows_of(event)
                self.rows_at_end[mine] = self.world.data.published.get(mine, {}).__len__()

    def _specification(self, job: str) -> str:
        state = self.known[f"specification/{job}"].state
        assert isinstance(state, Specification)
        return state.body

    def _restored_from(self, event: Event, job: Job) -> None:
        """From its newest committed checkpoint a job goes on exactly where its rows end."""
        if not job.origin:
            return
        origin, _, elsewhere = job.origin.partition(", with ")
        before = origin.rsplit(" ", 1)[1]
        if elsewhere:
            self.elsewhere.add((event.job, event.incarnation))
        summary = self.known[f"summary/{event.job}/{before}"].state
        assert isinstance(summary, Summary)
        name = job.origin.split(" ")[1] if job.origin.startswith("savepoint") else ""
        points = next((s.points for s in summary.savepoints if s.name == name), summary.points)
        begins = {(p.pipeline, t): int(position) for p in points for t, position in enumerate(p.positions)}
        self.begins[event.job, event.incarnation] = begins
        if not name and not elsewhere:
            rows = self.world.data.rows_of((event.job, int(before)))
            for task, begin in begins.items():
                last = max(rows.get(task, {begin - 1}))
                self.must(last + 1 == begin, f"{event.job} {task} restored at {begin}, its rows end at {last}")

    def _look_at_task(self, key: str, event: Event) -> None:
        last = self.attempts.get((key, event.incarnation), 0)
        self.must(event.attempt >= last, f"{key}: attempt {event.attempt} after {last}")
        self.attempts[key, event.incarnation] = event.attempt

    def _look_at_checkpoint(self, key: str, event: Event) -> None:
        assert isinstance(event.state, Checkpoint)
        last = self.newest_checkpoint.get((key, event.incarnation), 0)
        fresh = event.transition in ("completed", "restored")
        self.must(event.state.id > last if fresh else event.state.id == last, f"{key}: {event.state.id} after {last}")
        self.newest_checkpoint[key, event.incarnation] = event.state.id
        mine = (event.job, event.incarnation)
        if event.transition == "restored" and mine in self.elsewhere:
            pipeline = int(entity_of(key).parts[1])
            self.begins[mine].update({(pipeline, ack.task): int(ack.position) for ack in event.state.acks})

    def _look_at_command(self, key: str, event: Event) -> None:
        name = entity_of(key).parts[1]
        twice = str(name) in self.outcomes and name not in self.forgotten
        self.must(not twice, f"a second outcome for command {name}")
        assert isinstance(event.state, Outcome)
        self.outcomes[str(name)] = event
        self.begun += event.to == "ACCEPTED" and event.state.action in ("Submit", "Restore")

    def _look_at_savepoint(self, key: str, event: Event) -> None:
        """It holds what was so when it was asked for, or later."""
        assert isinstance(event.state, Savepoint)
        for point in event.state.points if event.to == "KEPT" else ():
            pipeline = self.known.get(f"pipeline/{event.job}/{point.pipeline}")
            if pipeline is None and event.job in self.world.rotted:  # nobody knows whether it had ended by then
                continue
            still = pipeline is not None and pipeline.to in ("FINISHED", "SUSPENDED")
            after = event.state.after[point.pipeline]
            self.must(
                still or point.checkpoint > after, f"{key} holds checkpoint {point.checkpoint}, not after {after}"
            )

    def rows_of(self, job: Event) -> None:
        """Published is what the committed checkpoints say, from where the job began and without a gap: of a finished
        job, every row once."""
        mine = (job.job, job.incarnation)
        rows, begins = self.world.data.rows_of(mine), self.begins[mine]
        for task, total in sizes(self.specifications[mine]).items():
            begin, numbers = begins.get(task, 0), rows.get(task, set())
            end = begin + len(numbers)
            self.must(numbers == set(range(begin, end)), f"{job.job} task {task} has gaps in {sorted(numbers)}")
            committed = self._committed(job.job, task, begin)
            self.must(committed == end, f"{job.job} task {task} committed {committed} rows and published {end}")
            if job.to == "FINISHED" and total >= 0 and mine not in self.drained:
                self.must(end == total, f"{job.job} FINISHED with {end} of {total} rows of task {task}")

    def _committed(self, job: str, task: tuple[int, int], begin: int) -> int:
        event = self.known.get(f"checkpoint/{job}/{task[0]}")
        if event is None:
            return begin
        assert isinstance(event.state, Checkpoint)
        if event.to == "COMMITTED":
            return int(event.state.acks[task[1]].position)
        before = event.state.before
        return int(before[0].positions[task[1]]) if before else begin

    def is_quiet(self) -> bool:
        """Nothing is left on the log but what stays for a time of its own, and every command has its outcome."""
        return not self.left and all(command in self.outcomes for command in self.world.commands)

    @staticmethod
    def stays(kind: str, event: Event) -> bool:
        """Summaries stay for the history's time, and so do outcomes of commands for jobs that are not there."""
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
            held = [key for key in held if key.job not in world.rotted]
            self.must(not held, f"the ledger of {worker.name} still holds {held[:3]}")
        for job, rows in self.rows_at_end.items():
            now = len(world.data.published.get(job, ()))
            self.must(now == rows, f"{job} published {rows} rows before its end and {now - rows} after it")
        self.must(not any(world.data.staging.values()), f"left in staging: {list(world.data.staging)[:3]}")
        twice = [who for who, times in world.starts.items() if times > 1]
        self.must(not twice or bool(world.counts["disk lost"]), f"started twice: {twice[:3]}")
        again = self.replay()
        self.must(set(again.state.jobs) == {entity_of(k).job for k in self.known if k.startswith("command/")},
                  f"a replay brings back {set(again.state.jobs)}")  # fmt: skip
        self.must(len(self.ended) == self.begun, f"{self.begun} jobs were accepted, {len(self.ended)} have ended")
