"""Generated values: records of every schema, legal logs, and the legal compactions of a log."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import schemas
from events import records
from events.codec import Codec
from events.records import Cause, Cursor, Event, EventState, Job, Leader, Task
from events.table import Poison, Raw, Run, Table, tombstone_headers

settings.register_profile(
    "default", max_examples=200, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "soak", parent=settings.get_profile("default"), max_examples=int(os.environ.get("SOAK_EXAMPLES", "20000"))
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

CODEC = Codec()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Values of an Avro type as our records hold them."""
    if isinstance(kind, list):
        return st.one_of([of_type(branch) for branch in kind])
    if isinstance(kind, dict) and kind["type"] == "array":
        return st.lists(of_type(kind["items"]), max_size=4).map(tuple)
    if isinstance(kind, dict) and kind["type"] == "map":
        return st.dictionaries(TEXT, of_type(kind["values"]), max_size=4)
    if isinstance(kind, str) and kind in schemas.files():
        return record_of(kind.removeprefix("detent."))
    return {
        "null": st.none(),
        "long": st.integers(-(2**63), 2**63 - 1),
        "int": st.integers(-(2**31), 2**31 - 1),
        "string": TEXT,
        "bytes": st.binary(max_size=60),
        "boolean": st.booleans(),
    }[kind]


def record_of(name: str) -> st.SearchStrategy[Any]:
    fields = schemas.files()[f"detent.{name}"]["fields"]
    return st.builds(getattr(records, name), **{schemas.python_name(f["name"]): of_type(f["type"]) for f in fields})


# Logs -----------------------------------------------------------------------------------------------------------------

SHARD = 0
CURSOR = b"cursor/0"


def an_event(entity: str, epoch: int, incarnation: int, attempt: int, sequence: int, state: EventState) -> Event:
    return Event(
        epoch=epoch,
        logic=1,
        incarnation=incarnation,
        attempt=attempt,
        due_at=sequence % 3,
        sequence=sequence,
        time=sequence,
        entity=entity,
        transition="moved",
        from_="",
        to="THERE",
        job="",
        cause=Cause(kind="TIMER"),
        state=state,
    )


@dataclass
class Written:
    """A record of a log, with what only the broker and the cleaner know of it."""

    raw: Raw
    committed: bool


@dataclass
class Log:
    """A log as one leader after the other writes it, offsets of markers left out."""

    records: list[Written]
    # Offsets behind the transactions: where a reader may stop.
    boundaries: list[int]

    def visible(self) -> list[Raw]:
        return [w.raw for w in self.records if w.committed]


class Leadership:
    """Writes a legal log: what a correct leader would, whatever is drawn."""

    def __init__(self) -> None:
        self.log = Log([], [])
        self.offset = self.sequence = self.incarnations = 0
        self.epoch = 0
        self.alive: dict[str, tuple[int, int]] = {}  # entity → incarnation and attempt

    def event(self, entity: str, state: EventState, incarnation: int = 0, attempt: int = 0) -> Raw:
        self.sequence += 1
        event = an_event(entity, self.epoch, incarnation, attempt, self.sequence, state)
        return Raw(-1, entity.encode(), CODEC.encode(event))

    def transaction(self, body: list[Raw], *, committed: bool) -> None:
        body = [*body, self.event(f"cursor/{SHARD}", Cursor(positions=(), incarnations=self.incarnations))]
        for record in body:
            self.log.records.append(Written(record._replace(offset=self.offset), committed))
            self.offset += 1
        self.offset += 1  # the marker
        if committed:
            self.log.boundaries.append(self.offset)

    def elect(self) -> None:
        self.epoch += 1
        self.transaction([self.event(f"leader/{SHARD}", Leader(coordinator=f"c{self.epoch}"))], committed=True)

    def change(self, name: str, what: str) -> Raw:
        """One step in the life of an entity."""
        entity = f"job/{name}" if name < "c" else f"task/{name}/0/0"
        if what == "delete" and entity in self.alive:
            incarnation, _ = self.alive.pop(entity)
            return Raw(-1, entity.encode(), None, tombstone_headers(self.epoch, incarnation))
        if entity not in self.alive:
            self.incarnations += 1
            self.alive[entity] = (self.incarnations, 1)
        elif what == "retry":
            self.alive[entity] = (self.alive[entity][0], self.alive[entity][1] + 1)
        incarnation, attempt = self.alive[entity]
        state: EventState = Job(pipelines=1, submitted_at=self.sequence) if name < "c" else Task(rows=self.sequence)
        return self.event(entity, state, incarnation, attempt if name >= "c" else 0)


STEPS = st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from(["move", "move", "retry", "delete"])), max_size=5)
ACTS = st.lists(st.one_of(STEPS, st.just("elect"), st.tuples(st.just("abort"), STEPS)), max_size=25)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    leadership = Leadership()
    leadership.elect()
    for act in draw(ACTS):
        if act == "elect":
            leadership.elect()
        elif isinstance(act, tuple):
            kept, numbers = dict(leadership.alive), (leadership.incarnations, leadership.sequence)
            leadership.transaction([leadership.change(*step) for step in act[1]], committed=False)
            leadership.alive = kept  # an aborted transaction never happened
            leadership.incarnations, leadership.sequence = numbers
        else:
            leadership.transaction([leadership.change(*step) for step in act], committed=True)
    return leadership.log


@st.composite
def compacted(draw: st.DrawFn, log: Log, *, tombstones_expire_before: int | None = None) -> list[Raw]:
    """What Kafka may leave of a log: superseded records gone in any mixture, aborted ones too; tombstones gone where
    they have expired and nothing older of their key is left. The newest record of a key stays."""
    expired = tombstones_expire_before if tombstones_expire_before is not None else 2**62
    newest = {w.raw.key: i for i, w in enumerate(log.records) if w.committed}
    drop = draw(st.lists(st.booleans(), min_size=len(log.records), max_size=len(log.records)))
    left: list[Raw] = []
    for i, written in enumerate(log.records):
        record = written.raw
        if not written.committed:
            continue  # aborted records stay or go, but no reader sees them
        older_left = any(other.key == record.key for other in left)
        may_go = newest[record.key] > i
        if record.value is None:
            # A superseded tombstone may go at once; one that is the newest must have expired. Either way the
            # cleaner has taken everything older of the key before.
            may_go = (may_go or record.offset < expired) and not older_left
        if not (may_go and drop[i]):
            left.append(record)
    return left


# Folding --------------------------------------------------------------------------------------------------------------


def no_poison(poison: Poison) -> None:
    raise AssertionError(poison)


def applied(raws: list[Raw], table: Table | None = None) -> Table:
    table = table or Table("events", SHARD, CODEC)
    table.apply(raws, poison=no_poison)
    return table


def run_of(raws: list[Raw]) -> Run:
    return Run([r.key for r in raws], [r.value for r in raws], raws.__getitem__)


def folded(raws: list[Raw], cuts: list[int], table: Table | None = None) -> Table:
    """Folded in bulk, in batches cut anywhere."""
    table = table or Table("events", SHARD, CODEC)
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(raws)}), len(raws)]
    for start, stop in pairwise(edges):
        table.fold(run_of(raws[start:stop]), poison=no_poison)
    return table


CUTS = st.lists(st.integers(0, 150), max_size=8)
