"""Judges the events of a shard, record by record and boundary by boundary."""

from __future__ import annotations

from collections import defaultdict
from urllib.parse import quote

from events import records as r
from events.codec import Codec
from tests.oracle.facts import Attempt, Facts, Finding, Inputs, Pipe, decoded, parts_of
from tests.oracle.log import Record
from tests.oracle.rules import (
    ACTIVE,
    ALWAYS_THERE,
    GOING,
    IN_FLIGHT,
    MAY_FOLLOW,
    NEW_ATTEMPT_FROM,
    OF_JOB,
    SAID_BY,
    SAYS_RUNNING,
    TERMINAL,
)


class ShardOracle:
    """Goes through the events of one shard, record by record and boundary by boundary."""

    def __init__(
        self, shard: int, codec: Codec, inputs: Inputs, facts: Facts, planted: frozenset[tuple[str, int, int]]
    ) -> None:
        self.shard, self.codec, self.inputs, self.facts, self.planted = shard, codec, inputs, facts, planted
        self.findings: list[Finding] = []
        self.known: dict[str, r.Event] = {}
        self.keys_of: defaultdict[str, set[str]] = defaultdict(set)
        self.epoch = self.sequence = self.logic = self.incarnations = 0
        self.leader: tuple[str, str] = ("", "")
        self.resigned = False
        self.positions: dict[str, int] = {}
        self.used: dict[Pipe, int] = {}  # the highest checkpoint id so far
        self.attempts: dict[tuple[str, int], int] = {}
        self.spoiled: set[str] = set()  # entities whose last record nobody can read
        self.at = Record("events", shard, -1, None, None)
        self._begin()

    def _begin(self) -> None:
        """A new transaction."""
        self.written: list[r.Event] = []
        self.deleted: list[tuple[str, r.Event]] = []
        self.touched: dict[str, None] = {}
        self.open = False

    def find(self, rule: str, what: str) -> None:
        self.findings.append(Finding(rule, f"events/{self.shard}@{self.at.offset}", what))

    def must(self, holds: object, rule: str, what: str) -> None:
        if not holds:
            self.find(rule, what)

    def end(self) -> None:
        """The log is at its end."""
        if self.open:
            self.find("boundary", "the log ends without a cursor")

    # Record by record ----------------------------------------------------------------------------------------------

    def take(self, record: Record) -> None:
        if (record.topic, record.partition, record.offset) in self.planted:
            self._take_planted(record)
            return
        self._check_offset(record)
        self.at, self.open = record, True
        if record.key is None:
            self.find("key", "a record without a key")
            return
        key = record.key.decode(errors="replace")
        if record.value is None:
            self._take_tombstone(key, record)
        elif (event := decoded(self.codec, record, r.Event)) is None:
            self.find("readable", f"{key} can't be read")
        else:
            self._take_event(key, event)
        if key == f"cursor/{self.shard}":
            self._boundary()
            self._begin()

    def _take_planted(self, record: Record) -> None:
        """What a test wrote there itself: whoever leads knows that entity by heart, whoever is elected next can not."""
        key = (record.key or b"").decode(errors="replace")
        self.facts.lost_words.add(parts_of(key)[1][0])
        self.spoiled.add(key)

    def _forget_spoiled(self) -> None:
        for key in self.spoiled:
            self.known.pop(key, None)
            self.keys_of[parts_of(key)[1][0]].discard(key)
        self.spoiled.clear()

    def _check_offset(self, record: Record) -> None:
        """Within a transaction offsets follow each other; after its last record stands its marker."""
        before = self.at.offset
        gap = range(before + 1, record.offset)
        others = sum(("events", self.shard, offset) in self.planted for offset in gap)
        if before < 0:
            return
        if self.open:  # a planted record brings a marker of its own
            whole = len(gap) == 2 * others
            self.must(whole, "boundary", f"the transaction before it ended without a cursor, at {before}")
        else:
            self.must(len(gap) > 0, "boundary", f"the transaction went on after its cursor at {before}")

    def _take_tombstone(self, key: str, record: Record) -> None:
        said = dict(record.headers)
        kind, parts = parts_of(key)
        event = self.known.pop(key, None)
        self.spoiled.discard(key)
        self.must(kind not in ALWAYS_THERE, "deletion", f"{key} is deleted")
        self.must(
            int(said.get("epoch", b"-1")) == self.epoch, "epoch", f"{key} is deleted in epoch {said.get('epoch')!r}"
        )
        if event is None:
            self.must(parts[0] in self.facts.lost_words, "deletion", f"{key} is deleted and was not there")
            return
        incarnation = int(said.get("incarnation", b"-1"))
        self.must(incarnation == event.incarnation, "T3", f"{key} of {event.incarnation} is deleted for {incarnation}")
        self.deleted.append((key, event))
        if kind in MAY_FOLLOW and kind not in ("worker", *ALWAYS_THERE):
            self.touched[event.job] = None
            self.keys_of[event.job].discard(key)
            getattr(self, f"_gone_{kind}", lambda *_: None)(key, event)

    def _take_event(self, key: str, event: r.Event) -> None:
        kind, parts = parts_of(key)
        before = self.known.get(key)
        self.must(event.entity == key, "key", f"{key} holds {event.entity}")
        if not self._check_reign(kind, key, event):
            return
        self.must(event.sequence == self.sequence + 1, "sequence", f"{key}: {event.sequence} after {self.sequence}")
        self.must(event.logic >= self.logic, "logic", f"{key}: logic {event.logic} after {self.logic}")
        self.sequence, self.logic = event.sequence, event.logic
        was = before.to if before else ""
        self.must(event.from_ == was, "from", f"{key} says it left {event.from_!r}, it was {was!r}")
        legal = MAY_FOLLOW.get(kind, {}).get(was, set())
        self.must(event.to in legal, "transition", f"{key} went from {was!r} to {event.to!r} ({event.transition})")
        if event.cause.kind == "TIMER" and event.cause.note == key and before is not None:
            self.must(event.time >= before.due_at, "T2", f"{key}: due at {before.due_at}, done at {event.time}")
        self.known[key] = event
        self.spoiled.discard(key)
        self.written.append(event)
        if kind not in ("worker", *ALWAYS_THERE):
            self._of_job(kind, key, parts, event, before)
        getattr(self, f"_at_{kind}", lambda *_: None)(key, event, before)

    def _check_reign(self, kind: str, key: str, event: r.Event) -> bool:
        """Whether the record counts: it is of the reign that was elected last, or elects the next."""
        elects = kind == "leader" and event.transition == "elected"
        if event.epoch < self.epoch:
            self.find("epoch", f"{key}: epoch {event.epoch} after {self.epoch}")
            return False
        if elects:
            self.must(event.epoch == self.epoch + 1, "epoch", f"epoch {event.epoch} was elected after {self.epoch}")
            self.must(not self.written, "epoch", "an election in the middle of a transaction")
            self.epoch, self.resigned = event.epoch, False
            self._forget_spoiled()
        else:
            self.must(event.epoch == self.epoch, "epoch", f"{key}: epoch {event.epoch} without an election")
            own = kind == "cursor" or event.transition == "resigned"
            self.must(own or not self.resigned, "epoch", f"{key} was written by a leader that had resigned")
        return True

    def _of_job(self, kind: str, key: str, parts: tuple[str, ...], event: r.Event, before: r.Event | None) -> None:
        self.must(event.job == parts[0], "key", f"{key} belongs to job {event.job!r}")
        self.touched[event.job] = None
        self.keys_of[event.job].add(key)
        job = self._job(event.job)
        if before is not None:
            self.must(event.incarnation == before.incarnation, "incarnation", f"{key} changed its incarnation in life")
        own = kind in OF_JOB | {"ready", "ack"} and kind != "specification"
        if own and job is not None:
            same = event.incarnation == job.incarnation
            self.must(same, "incarnation", f"{key} is of {event.incarnation}, its job of {job.incarnation}")

    # What is known -------------------------------------------------------------------------------------------------

    def _job(self, job: str) -> r.Event | None:
        return self._get("job", job)

    def _get(self, kind: str, job: str, *numbers: int) -> r.Event | None:
        return self.known.get("/".join((kind, quote(job, safe=""), *map(str, numbers))))

    def _all(self, kind: str, job: str, *numbers: int) -> dict[int, r.Event]:
        """Those of a kind, by their last number."""
        wanted = "/".join((kind, quote(job, safe=""), *map(str, numbers)))
        split = [(key, *key.rpartition("/")[::2]) for key in self.keys_of[job]]
        return {int(last): self.known[key] for key, first, last in split if first == wanted}

    def _pipe(self, event: r.Event) -> Pipe:
        return Pipe(event.job, event.incarnation, int(parts_of(event.entity)[1][1]))

    def _attempt(self, event: r.Event) -> Attempt:
        return Attempt(*self._pipe(event), int(parts_of(event.entity)[1][2]), event.attempt)

    def _task_of(self, event: r.Event) -> r.Event | None:
        pipe = self._pipe(event)
        return self._get("task", event.job, pipe.pipeline, int(parts_of(event.entity)[1][2]))

    # Kind by kind --------------------------------------------------------------------------------------------------

    def _at_job(self, key: str, event: r.Event, before: r.Event | None) -> None:
        self.facts.jobs[event.job] = self.facts.last[event.job, event.incarnation] = event
        if event.to == "DRAINING":
            self.facts.drained.add((event.job, event.incarnation))
        if before is not None:
            return
        if event.to == "CREATED":
            command = self.inputs.command(event)
            asked = (
                command is not None and command.job == event.job and isinstance(command.action, r.Submit | r.Restore)
            )
            self.must(asked, "Z1", f"{key} was created by {event.cause.kind} {event.cause.topic} {event.cause.note}")
            fresh = event.incarnation > self.incarnations
            self.must(fresh, "incarnation", f"{key}: incarnation {event.incarnation} after {self.incarnations}")
            self.incarnations = max(self.incarnations, event.incarnation)
        else:
            self.must(
                event.job in self.facts.lost_words, "transition", f"{key} was quarantined and nothing was unreadable"
            )

    def _gone_job(self, key: str, event: r.Event) -> None:
        self.must(event.to in TERMINAL, "deletion", f"{key} is deleted while it is {event.to}")
        self.facts.jobs.pop(event.job, None)
        allowed = ("cleanup/", "summary/")
        left = sorted(k for k in self.keys_of[event.job] if not k.startswith(allowed))
        left = [k for k in left if self.known[k].incarnation]  # outcomes of commands for a job that was not there stay
        self.must(not left, "B10", f"{key} is deleted before {left[:5]}")

    def _at_specification(self, key: str, event: r.Event, before: r.Event | None) -> None:
        assert isinstance(event.state, r.Specification)
        self.facts.specifications[event.job, event.incarnation] = event.state.body

    def _at_pipeline(self, key: str, event: r.Event, before: r.Event | None) -> None:
        assert isinstance(event.state, r.Pipeline)
        if before is not None and isinstance(before.state, r.Pipeline):
            grows = event.state.next_checkpoint >= before.state.next_checkpoint
            self.must(grows, "R6", f"{key}: the next checkpoint went back to {event.state.next_checkpoint}")
        used = self.used.get(self._pipe(event), 0)
        self.must(event.state.next_checkpoint > used, "R6", f"{key}: checkpoint {used} is to be used again")

    def _at_task(self, key: str, event: r.Event, before: r.Event | None) -> None:
        assert isinstance(event.state, r.Task)
        last = before.attempt if before else 0
        fresh = event.to == "CREATED" and (before is None or before.to in NEW_ATTEMPT_FROM)
        self.must(
            event.attempt == last + fresh, "attempt", f"{key}: attempt {event.attempt} after {last}, {event.transition}"
        )
        highest = self.attempts.get((key, event.incarnation), 0)
        self.must(event.attempt >= highest, "attempt", f"{key}: attempt {event.attempt} after {highest}")
        self.attempts[key, event.incarnation] = max(highest, event.attempt)
        who = self._attempt(event)
        if event.to == "DEPLOYING" and event.from_ == "CREATED":
            self.facts.placed[who] = (event.state.worker, *self._begins(who))
        if event.to == "RUNNING" and event.from_ == "DEPLOYING":
            self.facts.ran[who] = event.state.worker
            self._must_be_said(key, event, SAYS_RUNNING)

    def _begins(self, who: Attempt) -> tuple[int, bytes]:
        """The newest completed checkpoint, and the task's position in it."""
        event = self._get("checkpoint", who.job, who.pipeline)
        if event is None or not isinstance(event.state, r.Checkpoint):
            return 0, b""
        return event.state.id, next((ack.position for ack in event.state.acks if ack.task == who.task), b"")

    def _must_be_said(self, key: str, event: r.Event, kinds: frozenset[str]) -> None:
        """A worker has said so, of this very attempt."""
        report = self.inputs.report(event)
        if report is None:
            self.find(
                "cause", f"{key} became {event.to} by {event.cause.kind} {event.cause.topic}@{event.cause.offset}"
            )
            return
        said = Attempt(report.job, report.incarnation, report.pipeline, report.task, report.attempt)
        right = said == self._attempt(event) and type(report.happening).__name__ in kinds
        self.must(right, "cause", f"{key} became {event.to} by {type(report.happening).__name__} of {said}")

    def _at_ready(self, key: str, event: r.Event, before: r.Event | None) -> None:
        task = self._task_of(event)
        mine = task is not None and task.attempt == event.attempt
        self.must(mine, "R5", f"{key} is of attempt {event.attempt}, the task's is {task.attempt if task else None}")
        self._must_be_said(key, event, SAID_BY["ready", "READY"])

    def _at_ack(self, key: str, event: r.Event, before: r.Event | None) -> None:
        assert isinstance(event.state, r.Ack)
        pending = self._get("pending", event.job, self._pipe(event).pipeline)
        asked = is_in(pending, "TRIGGERED") and id_of(pending) == event.state.checkpoint
        self.must(asked, "R6", f"{key} acknowledges {event.state.checkpoint}, which is not in flight")
        task = self._task_of(event)
        mine = task is not None and task.attempt == event.attempt
        self.must(mine, "R5", f"{key} is of attempt {event.attempt}, the task's is {task.attempt if task else None}")
        self._must_be_said(key, event, SAID_BY["ack", "ACKED"])

    def _at_pending(self, key: str, event: r.Event, before: r.Event | None) -> None:
        pipe, number = self._pipe(event), id_of(event)
        used = self.used.get(pipe, 0)
        if event.to != "TRIGGERED":
            self.must(id_of(before) == number, "R6", f"{key}: {number} was not in flight")
            return
        self.must(number > used, "R6", f"{key}: checkpoint {number} after {used}")
        self.used[pipe] = max(used, number)
        free = not is_in(self._get("checkpoint", event.job, pipe.pipeline), "COMPLETED")
        self.must(free, "in flight", f"{key}: {number} is triggered while the one before is not committed")

    def _at_checkpoint(self, key: str, event: r.Event, before: r.Event | None) -> None:
        assert isinstance(event.state, r.Checkpoint)
        pipe, known, facts = self._pipe(event), event.state, self.facts
        if event.to == "COMPLETED" and event.from_ != "COMPLETED":
            self._completes(key, event, known)
        elif event.from_ == "":
            self.used[pipe] = max(self.used.get(pipe, 0), known.id)
        else:
            was = before.state if before else None
            same = isinstance(was, r.Checkpoint) and (was.id, was.acks) == (known.id, known.acks)
            self.must(same, "R6", f"{key}: {event.transition} is of another checkpoint, {known.id}")
        rows = {ack.task: _number(ack.position) for ack in known.acks}
        if event.to in ("COMPLETED", "COMMITTED"):
            facts.completed[pipe] = rows
            facts.named[pipe, known.id] = {piece.name for ack in known.acks for piece in ack.staged}
        if event.to == "COMMITTED":
            facts.committed[pipe] = rows
        elif event.to == "ABANDONED":
            facts.completed[pipe] = facts.committed.get(pipe, {})
        if event.transition == "committed":
            self._must_be_published(key, event, known.id)

    def _must_be_published(self, key: str, event: r.Event, number: int) -> None:
        report = self.inputs.report(event)
        said = report.happening if report else None
        right = report is not None and isinstance(said, r.CheckpointCommitted) and said.checkpoint == number
        right = right and self._pipe(event) == (report.job, report.incarnation, report.pipeline)  # type: ignore[union-attr]
        self.must(right, "cause", f"{key}: nobody has said that {number} is published")

    def _completes(self, key: str, event: r.Event, known: r.Checkpoint) -> None:
        """It is the one in flight, and every task's current attempt has acknowledged it, on the log."""
        pipe = self._pipe(event)
        pending = self._get("pending", event.job, pipe.pipeline)
        flies = is_in(pending, "TRIGGERED") and id_of(pending) == known.id
        self.must(flies, "R6", f"{key}: {known.id} is completed and was not in flight")
        acks = {ack.task: ack for ack in known.acks}
        for number, task in self._all("task", event.job, pipe.pipeline).items():
            stood = self._get("ack", event.job, pipe.pipeline, number)
            right = stood is not None and stood.attempt == task.attempt and stood.state == acks.get(number)
            self.must(right, "ack", f"{key}: {known.id} is completed without the word of task {number}")

    def _at_cleanup(self, key: str, event: r.Event, before: r.Event | None) -> None:
        assert isinstance(event.state, r.Cleanup)
        owner = int(parts_of(key)[1][1])
        self.must(event.state.owner == owner == event.incarnation, "T3", f"{key} is owned by {event.state.owner}")
        self.must(event.due_at or event.to == "REMOVED", "T2", f"{key} is {event.to} and never due")

    def _gone_cleanup(self, key: str, event: r.Event) -> None:
        job = self._job(event.job)
        left = job is not None and job.incarnation == event.incarnation
        self.must(not left, "B10", f"{key} is gone and its job is still there")
        self.must(event.to in ("REMOVING", "REMOVED"), "T6", f"{key} is gone and was only {event.to}")
        self.facts.cleaned.add((event.job, event.incarnation))

    def _at_command(self, key: str, event: r.Event, before: r.Event | None) -> None:
        name = parts_of(key)[1][1]
        self.facts.outcomes[event.job, name] += 1
        command = self.inputs.command(event)
        right = command is not None and command.job == event.job
        right = right and (command.id == name or name.endswith(f" {command.id[:100]}"))  # type: ignore[union-attr]
        self.must(right, "cause", f"{key} answers no command at {event.cause.topic}@{event.cause.offset}")

    def _at_leader(self, key: str, event: r.Event, before: r.Event | None) -> None:
        assert isinstance(event.state, r.Leader)
        now = (event.state.coordinator, event.state.instance)
        if event.to == "LEADING":
            self.leader = now
        else:
            self.must(now == self.leader, "epoch", f"{now} resigned from the reign of {self.leader}")
            self.resigned = True

    def _at_cursor(self, key: str, event: r.Event, before: r.Event | None) -> None:
        assert isinstance(event.state, r.Cursor)
        known = event.state
        self.must(known.incarnations >= self.incarnations, "cursor", f"incarnations went back to {known.incarnations}")
        self.incarnations = max(self.incarnations, known.incarnations)
        now = {position.topic: position.offset for position in known.positions}
        for topic, offset in self.positions.items():
            self.must(now.get(topic, 0) >= offset, "cursor", f"{topic} went back from {offset} to {now.get(topic, 0)}")
        for event in self.written:
            if (cause := event.cause).kind == "INPUT":
                low, high = self.positions.get(cause.topic, 0), now.get(cause.topic, 0)
                inside = cause.partition == self.shard and low <= cause.offset < high
                by = f"{cause.topic}/{cause.partition}@{cause.offset}"
                self.must(inside, "cursor", f"{event.entity} is caused by {by}, consumed were {low} to {high}")
        self.positions = now

    # Boundary by boundary ------------------------------------------------------------------------------------------

    def _boundary(self) -> None:
        gone = {event.job for key, event in self.deleted if key.startswith("job/")}
        for key, event in self.deleted:
            kind = key.partition("/")[0]
            alone = kind in OF_JOB and event.job not in gone and event.job not in self.facts.lost_words
            self.must(not alone, "deletion", f"{key} is deleted without its job")
        for job in self.touched:
            self._check_job(job)

    def _check_job(self, job: str) -> None:
        event = self._job(job)
        if event is None:
            self._check_gone(job)
        elif event.to in TERMINAL:
            self._check_ended(job, event)
        else:
            for number, pipeline in self._all("pipeline", job).items():
                self._check_pipeline(job, event, number, pipeline)

    def _check_gone(self, job: str) -> None:
        """Nothing is left of it but summaries, and cleanups and outcomes that are not its own."""
        if job in self.facts.lost_words:
            return
        gone = {event.incarnation for key, event in self.deleted if key.startswith("job/") and event.job == job}
        for key in sorted(self.keys_of[job]):
            kind, event = key.partition("/")[0], self.known[key]
            stays = kind == "summary" or (kind == "command" and not event.incarnation)
            stays = stays or (kind == "cleanup" and event.incarnation not in gone)
            self.must(stays, "B10", f"{key} is left of {job}, which is gone")

    def _check_ended(self, job: str, event: r.Event) -> None:
        name, mine = f"job/{job}", event.incarnation
        cleanup, summary = self._all("cleanup", job).get(mine), self._all("summary", job).get(mine)
        self.must(cleanup is not None, "T2", f"{name} is {event.to} and no cleanup is promised")
        self.must(summary is not None, "T5", f"{name} is {event.to} and has no summary")
        for key in self.keys_of[job]:
            kind, one = key.partition("/")[0], self.known[key]
            goes_on = (kind, one.to) in IN_FLIGHT
            goes_on = goes_on or (kind == "task" and one.to in ACTIVE) or (kind == "pipeline" and one.to in GOING)
            self.must(not goes_on, "Z1", f"{name} is {event.to} and {key} is {one.to}")

    def _check_pipeline(self, job: str, event: r.Event, number: int, pipeline: r.Event) -> None:
        key, tasks = f"pipeline/{job}/{number}", self._all("task", job, number)
        flies = [
            one
            for one in (self._get("pending", job, number), self._get("checkpoint", job, number))
            if one is not None and (one.entity.split("/")[0], one.to) in IN_FLIGHT
        ]
        self.must(len(flies) < 2, "in flight", f"{key} has two checkpoints in flight")
        self._check_marks(job, number, tasks)
        if event.to in ("FAILING", "CANCELLING"):
            return
        for one in (*flies, *(task for task in tasks.values() if task.to == "DEPLOYING")):
            self.must(one.due_at, "Z4", f"{one.entity} is {one.to} and nothing is due")
        if pipeline.to != "RUNNING":
            apart = event.to == "RUNNING" and pipeline.to != "FINISHED"
            self.must(not apart, "Z2", f"job/{job} is RUNNING, {key} is {pipeline.to}")
            return
        idle = [index for index, task in tasks.items() if task.to not in ("RUNNING", "READY_TO_CLOSE")]
        self.must(not idle, "Z2", f"{key} is RUNNING, its tasks {idle[:5]} are not")
        due = pipeline.due_at or any(one.due_at for one in flies)
        self.must(due, "Z4", f"{key} is RUNNING and nothing is due")
        ready = bool(tasks) and all(task.to == "READY_TO_CLOSE" for task in tasks.values())
        self.must(not ready or flies, "R2", f"{key}: all tasks are ready and nothing follows")

    def _check_marks(self, job: str, number: int, tasks: dict[int, r.Event]) -> None:
        marks = self._all("ready", job, number)
        for index, mark in marks.items():
            task = tasks.get(index)
            right = task is not None and (task.incarnation, task.attempt) == (mark.incarnation, mark.attempt)
            self.must(right, "R5", f"{mark.entity} is of attempt {mark.attempt}, the task's is {task and task.attempt}")
        for index, task in tasks.items():
            self.must(task.to != "READY_TO_CLOSE" or index in marks, "R3", f"{task.entity} is ready without a mark")


def is_in(event: r.Event | None, state: str) -> bool:
    return event is not None and event.to == state


def id_of(event: r.Event | None) -> int:
    """The number of a checkpoint; 0 where there is none."""
    return event.state.id if event is not None and isinstance(event.state, r.Checkpoint) else 0


def _number(position: bytes) -> int:
    return int(position) if position.isdigit() else 0
