"""The whole log of a shard against the life-cycle tables and what must always hold. It is a second opinion: it reads
what is written and knows the tables and SCENARIOS.md, not the code that decides.

Compaction leaves gaps; events are numbered, so a gap is seen, and nothing is said about what it may have held. Given
records in whole transactions; pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from coordinator.draft import Gone
from coordinator.lifecycle import TABLES, TERMINAL_JOB, allows, reach
from coordinator.phrases import duration
from coordinator.state import JobView, State, entity_of, fold
from coordinator.views import View
from events.codec import Codec, Header
from events.errors import Place, UnreadableKey, UnreadableRecord
from events.keys import Entity, named
from events.records import Checkpoint, Cursor, Event
from events.table import Raw, admits, header_of

OVERDUE_MS = 60_000  # so late a deadline is kept by whoever leads, after however many takeovers


class Finding(View, frozen=True):
    """Something that should not be, and where."""

    shard: int
    offset: int
    key: str
    # "violation": the log is wrong. "void": a reign that was over wrote on, which counts for nobody. "overdue": a
    # deadline that nobody keeps. "difference": today's logic would have decided otherwise.
    kind: str
    what: str
    field: str = ""
    recorded: str = ""
    computed: str = ""


class Verifier:
    """Give it every transaction of a shard, in order; then ask `finish`."""

    def __init__(self, shard: int, shards: int, codec: Codec) -> None:
        self.shard, self._codec = shard, codec
        self.state = State(shard, shards=shards)
        self.findings: list[Finding] = []
        self.records = self.transactions = self.gaps = 0
        self._epoch = self._sequence = self._logic = 0
        self._gap_at = -1  # where the last gap was: what is known from before it may have changed within it
        self._known_at: dict[str, int] = {}
        self._offset = -1
        self._doubtful: list[tuple[int, str]] = []  # deleted without having been there, unless there is a gap

    def add(self, records: Sequence[Raw]) -> list[tuple[int, Event | Gone]]:
        """A whole transaction. Returns its events as far as they count, with their offsets."""
        self.transactions += 1
        found = [each for record in records for each in self._look(record)]
        after_event = -1  # the offset up to which records follow each other without a gap, from an event on
        for offset, event in found:
            self._offset = offset
            self._check_number(event, follows=offset == after_event)
            after_event = offset + 1 if isinstance(event, Event) or offset == after_event else -1
            self._check(event)
            entity = entity_of(event.entity)
            if isinstance(event, Event):
                self._known_at[event.entity] = offset
                fold(self.state, entity, event)
            else:
                fold(self.state, entity, None)
        self._check_boundary([event for _, event in found])
        return found

    def finish(self, now: int) -> list[Finding]:
        """What can only be said at the end."""
        late: list[tuple[int, str]] = []
        for due_at, text in self.state.due(now - OVERDUE_MS, 100):
            late.append((due_at, text))
        for due_at, text in late[:20]:
            event = self.state.get(entity_of(text))
            what = f"it was due {duration(now - due_at)} ago and nobody has looked at it: is there a coordinator?"
            self._say(self._known_at.get(text, -1), text, what + (f" It is {event.to}." if event else ""), "overdue")
        return self.findings

    def _say(self, offset: int, key: str, what: str, kind: str = "violation") -> None:
        self.findings.append(Finding(shard=self.shard, offset=offset, key=key, kind=kind, what=what))

    def _look(self, record: Raw) -> Iterator[tuple[int, Event | Gone]]:
        """Decode, and leave out what does not count, with a finding."""
        self.records += 1
        key = repr(record.key)
        try:
            entity = entity_of((record.key or b"").decode())
            key = entity.text
            header = header_of(record, self._codec)
        except (UnreadableKey, UnicodeDecodeError, ValueError) as error:
            self._say(record.offset, key, f"it can't be read: {error}")
            return
        known = self.state.get(entity)
        before = header_of_event(known) if known else None
        if header.epoch < self._epoch:
            self._say(record.offset, key, f"it is of epoch {header.epoch}, after epoch {self._epoch} began", "void")
            return
        if not admits(header, self._epoch, before):
            self._say(record.offset, key, "it is of an older incarnation or attempt than the record before it")
            return
        if record.value is None:
            yield record.offset, Gone(entity.text, header.epoch, header.incarnation)
            return
        try:
            event = self._codec.decode(record.value, Event, Place("events", self.shard, record.offset))
        except UnreadableRecord as error:
            self._say(record.offset, key, f"it can't be read: {error.reason}")
            return
        if event.entity != key:
            self._say(record.offset, key, f"it says that it is about {event.entity}")
            return
        yield record.offset, event

    def _check_number(self, event: Event | Gone, *, follows: bool) -> None:
        """Events are numbered without a gap. Where one is missing right between two records, it was never written;
        where records are missing, too, compaction took them."""
        if isinstance(event, Gone):
            if not self._sequence:  # a log begins with an election
                self._gap()
            return
        if event.sequence <= self._sequence:
            what = f"its number is {event.sequence}, after {self._sequence}: numbers only grow"
            self._say(self._offset, event.entity, what)
        elif event.sequence > self._sequence + 1 and follows:
            missing = f"{self._sequence + 1}" + (f" to {event.sequence - 1}" * (event.sequence > self._sequence + 2))
            self._say(self._offset, event.entity, f"before it, {missing} was decided and is not on the log")
        elif event.sequence > self._sequence + 1:
            self._gap()
        for offset, key in self._doubtful if self._gap_at < 0 else ():
            self._say(offset, key, "it is deleted, and was not there")
        self._doubtful.clear()  # what had been there may be among what compaction took
        self._sequence = max(self._sequence, event.sequence)

    def _gap(self) -> None:
        self.gaps += 1
        self._gap_at = self._offset

    # Record by record ------------------------------------------------------------------------------------------------

    def _check(self, event: Event | Gone) -> None:
        entity = entity_of(event.entity)
        known = self.state.get(entity)
        if isinstance(event, Gone):
            self._check_epoch(event.epoch, entity, "")
            if known is None and self._gap_at < 0:
                self._doubtful.append((self._offset, event.entity))
            return
        self._check_epoch(event.epoch, entity, event.transition)
        self._check_transition(entity, known, event)
        self._check_growth(entity, known, event)

    def _check_epoch(self, epoch: int, entity: Entity, transition: str) -> None:
        if epoch > self._epoch:
            if entity.kind != "leader" and self._gap_at < 0:
                what = f"epoch {epoch} begins with it ({transition or 'deleted'}), and not with an election"
                self._say(self._offset, entity.text, what)
            self._epoch = epoch

    def _check_transition(self, entity: Entity, known: Event | None, event: Event) -> None:
        was = known.to if known else ""
        unsure = self._gap_at >= 0 and self._known_at.get(event.entity, -1) < self._gap_at
        if event.from_ != was and not unsure:
            what = f"it says that it left {event.from_ or 'nothing'}, but it was {was or 'not there'}"
            self._say(self._offset, event.entity, what)
        if event.transition not in TABLES[entity.kind] or not allows(entity.kind, event.transition, event.from_):
            what = f"{event.transition!r} is not legal from {event.from_ or 'nothing'}"
            self._say(self._offset, event.entity, what)
        elif reach(entity.kind, event.transition, event.from_) != event.to:
            what = f"{event.transition!r} from {event.from_ or 'nothing'} does not lead to {event.to}"
            self._say(self._offset, event.entity, what)
        if event.job != entity.job:
            self._say(self._offset, event.entity, f"it says that it belongs to {event.job or 'no job'}")

    def _check_growth(self, entity: Entity, known: Event | None, event: Event) -> None:
        """What only grows."""
        if event.logic < self._logic:
            what = f"it was decided by logic {event.logic}, after logic {self._logic} had written"
            self._say(self._offset, event.entity, what)
        self._logic = max(self._logic, event.logic)
        same = known is not None and known.incarnation == event.incarnation
        if known is None or not same:
            return
        if isinstance(event.state, Checkpoint) and isinstance(known.state, Checkpoint):
            grows = event.transition in ("triggered", "completed") and entity.kind in ("pending", "checkpoint")
            again = event.from_ == "TRIGGERED"
            if grows and not again and event.state.id <= known.state.id:
                what = f"checkpoint {event.state.id} comes after {known.state.id}: ids only grow"
                self._say(self._offset, event.entity, what)
        if isinstance(event.state, Cursor) and isinstance(known.state, Cursor):
            before = {(p.topic, p.partition): p.offset for p in known.state.positions}
            for position in event.state.positions:
                if position.offset < before.get((position.topic, position.partition), 0):
                    what = f"{position.topic}/{position.partition} went back to {position.offset}: it is consumed twice"
                    self._say(self._offset, event.entity, what)
            if event.state.incarnations < known.state.incarnations:
                self._say(self._offset, event.entity, "the sequence of incarnations went back")

    # At the end of a transaction -------------------------------------------------------------------------------------

    def _check_boundary(self, events: Sequence[Event | Gone]) -> None:
        self._check_inputs([event for event in events if isinstance(event, Event)])
        for event in events:
            ended = isinstance(event, Event) and event.entity.startswith("job/") and event.to in TERMINAL_JOB
            if ended and isinstance(event, Event) and self._gap_at < 0:
                self._check_end(event)
        for name in {entity_of(event.entity).job for event in events} - {""}:
            job = self.state.jobs.get(name)
            if job is not None and self._gap_at < 0:
                self._check_job(name, job)

    def _check_inputs(self, events: Sequence[Event]) -> None:
        """Every input is decided on once: those that a transaction decided on are those that its cursor moves over."""
        cursors = [event for event in events if isinstance(event.state, Cursor)]
        if not cursors or not isinstance(cursors[-1].state, Cursor):
            return
        after = {(p.topic, p.partition): p.offset for p in cursors[-1].state.positions}
        for event in events:
            cause = event.cause
            if cause.kind == "INPUT" and cause.offset >= after.get((cause.topic, cause.partition), 2**62):
                what = (
                    f"its cause, {cause.topic}/{cause.partition} at {cause.offset}, is not consumed by its transaction"
                )
                self._say(self._known_at.get(event.entity, -1), event.entity, what)

    def _check_end(self, event: Event) -> None:
        """The terminal event and the promise of cleanup are one transaction."""
        job = self.state.jobs.get(event.job)
        if job is not None and job.event == event and job.cleanup is None and event.incarnation:
            self._say(self._known_at[event.entity], event.entity, f"it is {event.to}, and no cleanup is promised")
        if job is not None and job.event == event and event.incarnation not in self.state.summaries.get(event.job, {}):
            self._say(self._known_at[event.entity], event.entity, f"it is {event.to}, and has no summary")

    def _check_job(self, name: str, job: JobView) -> None:
        here = self._known_at.get(f"job/{entity_of_job(name)}", self._offset)
        if job.is_orphaned:
            self._say(self._offset, f"job/{entity_of_job(name)}", "parts of it are left, and the job itself is gone")
        if job.event is None or job.event.to not in ("SCHEDULED", "RUNNING"):
            return
        for number, pipeline in job.pipelines.items():
            dues = [e.due_at for e in (pipeline.event, pipeline.pending, pipeline.checkpoint) if e is not None]
            if pipeline.event is not None and pipeline.event.to == "RUNNING" and not any(dues):
                self._say(here, pipeline.event.entity, "it is RUNNING, and no checkpoint of it is due")
            for index, mark in pipeline.ready.items():
                task = pipeline.tasks.get(index)
                if task is None or task.attempt != mark.attempt:
                    what = f"the mark is of attempt {mark.attempt} of task {number}/{index}, which is over"
                    self._say(self._known_at.get(mark.entity, -1), mark.entity, what)


def header_of_event(event: Event) -> Header:
    """As its first bytes say it."""
    return Header(event.epoch, event.logic, event.incarnation, event.attempt, event.due_at)


def entity_of_job(name: str) -> str:
    return named("job", name).text.removeprefix("job/")


def verify(transactions: Iterable[Sequence[Raw]], codec: Codec, now: int, shard: int = 0, shards: int = 1) -> Verifier:
    """A whole log at once."""
    verifier = Verifier(shard, shards, codec)
    for records in transactions:
        verifier.add(records)
    verifier.finish(now)
    return verifier
