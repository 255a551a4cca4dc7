"""What the log says of a job, transition by transition: with from, to, cause, time, offset, epoch, attempt and worker.
All of it is there within the forensics window; what is older may have been compacted, and the gap is said.

Given records, in whole transactions; it touches no broker and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from coordinator.state import entity_of
from coordinator.viewing import cause_view, checkpoint_view
from coordinator.views import CauseView, CheckpointView, View
from events.codec import Codec, peek_time
from events.errors import Place, UnreadableKey, UnreadableRecord
from events.keys import WITHOUT_JOB, Entity
from events.records import Ack, Checkpoint, Event, Leader, ReadyMark, Task
from events.table import Raw, header_of

WITH_PIPELINE = frozenset({"pipeline", "task", "ready", "ack", "pending", "checkpoint"})
WITH_TASK = frozenset({"task", "ready", "ack"})


class Seen(NamedTuple):
    """A record of the log, decoded. `event` is None where the entity was deleted, or (with `unreadable`) where nobody
    can read it."""

    shard: int
    offset: int
    entity: Entity
    event: Event | None
    time: int
    epoch: int
    incarnation: int
    was: str  # the entity's state before, as this history knows it
    is_void: bool = False  # of a reign that had ended: it counts for nobody
    unreadable: str = ""


class Transition(View, frozen=True):
    """A transition of an entity, for people."""

    shard: int
    offset: int
    time: int
    entity: str
    kind: str
    job: str
    incarnation: int
    transition: str  # as in the life-cycle tables; "deleted", or "unreadable"
    from_: str = msgspec.field(name="from")
    to: str
    cause: CauseView | None
    epoch: int
    leader: str = ""  # who wrote it
    pipeline: int | None = None
    task: int | None = None
    attempt: int | None = None
    worker: str = ""
    checkpoint: int | None = None
    reason: str = ""
    due_at: int | None = None
    is_void: bool = False
    has_gap: bool = False  # transitions of the entity right before this one are compacted away


def of_job(job: str) -> Callable[[bytes], bool]:
    """Whether a key belongs to the job, or to no job: leaders and workers are part of every job's history."""
    name = quote(job, safe="").encode()
    others = frozenset(kind.encode() for kind in WITHOUT_JOB - {"cursor"})

    def wanted(key: bytes) -> bool:
        kind, _, rest = key.partition(b"/")
        return kind in others or (kind != b"cursor" and rest.split(b"/", 1)[0] == name)

    return wanted


def everything(key: bytes) -> bool:
    return not key.startswith(b"cursor/")


def seen(
    transactions: Iterable[Sequence[Raw]], codec: Codec, shard: int, wanted: Callable[[bytes], bool] = everything
) -> Iterator[Seen]:
    """The records of whole transactions that are wanted, in the order of the log."""
    return Chronicle(codec, shard, wanted).read(transactions)


class Chronicle:
    """Goes through a shard's log, piece by piece if need be, and tells what is wanted."""

    def __init__(self, codec: Codec, shard: int, wanted: Callable[[bytes], bool] = everything) -> None:
        self._codec, self._shard, self._wanted = codec, shard, wanted
        self._newest = 0  # epoch
        self._states: dict[bytes, str] = {}

    def read(self, transactions: Iterable[Sequence[Raw]]) -> Iterator[Seen]:
        """Those that follow on what was read before."""
        for records in transactions:
            epoch = _epoch(records, self._codec)
            void = epoch < self._newest
            self._newest = max(self._newest, epoch)
            for index, record in enumerate(records):
                if record.key is not None and self._wanted(record.key):
                    was = self._states.get(record.key, "")
                    time = 0 if record.value else _time_around(records, index)
                    found = _seen(record, self._codec, self._shard, was, time, void)
                    if found is None:
                        continue
                    if not void:
                        self._states[record.key] = found.event.to if found.event else ""
                    yield found


def _epoch(records: Sequence[Raw], codec: Codec) -> int:
    """Of a transaction, by its cursor."""
    try:
        return codec.peek(records[-1].value or b"").epoch
    except ValueError:
        return 0


def _time_around(records: Sequence[Raw], index: int) -> int:
    """When a deletion, which says no time, was decided: with the event before it, or else the one after it."""
    for record in (*reversed(records[:index]), *records[index + 1 :]):
        try:
            if record.value:
                return peek_time(record.value)
        except ValueError:
            continue
    return 0


def _seen(record: Raw, codec: Codec, shard: int, was: str, time: int, void: bool) -> Seen | None:
    try:
        entity = entity_of((record.key or b"").decode())
    except (UnreadableKey, UnicodeDecodeError):
        return None
    try:
        header = header_of(record, codec)
        epoch, incarnation = header.epoch, header.incarnation
    except ValueError:
        epoch = incarnation = 0
    if record.value is None:
        return Seen(shard, record.offset, entity, None, time, epoch, incarnation, was, void)
    try:
        event = codec.decode(record.value, Event, Place("events", shard, record.offset))
    except UnreadableRecord as error:
        return Seen(shard, record.offset, entity, None, time, epoch, incarnation, was, void, error.reason)
    return Seen(shard, record.offset, entity, event, event.time, epoch, incarnation, was, void)


def leaders(history: Iterable[Seen]) -> dict[int, str]:
    """Who led in each epoch."""
    return {each.epoch: each.event.state.coordinator for each in history
            if each.event is not None and isinstance(each.event.state, Leader)}  # fmt: skip


def transition(each: Seen, led_by: dict[int, str]) -> Transition:
    entity, event = each.entity, each.event
    parts, state = entity.parts, event.state if event is not None else None
    worker = state.worker if isinstance(state, Task | ReadyMark) else ""
    checkpoint = state.id if isinstance(state, Checkpoint) else state.checkpoint if isinstance(state, Ack) else None
    gone = "unreadable" if each.unreadable else "deleted"
    return Transition(
        shard=each.shard,
        offset=each.offset,
        time=each.time,
        entity=entity.text,
        kind=entity.kind,
        job=entity.job,
        incarnation=each.incarnation,
        transition=event.transition if event else gone,
        from_=event.from_ if event else each.was,
        to=event.to if event else "",
        cause=cause_view(event.cause) if event else None,
        epoch=each.epoch,
        leader=led_by.get(each.epoch, ""),
        pipeline=int(parts[1]) if entity.kind in WITH_PIPELINE else None,
        task=int(parts[2]) if entity.kind in WITH_TASK else None,
        attempt=event.attempt if event and event.attempt else None,
        worker=worker or (str(parts[0]) if entity.kind == "worker" else ""),
        checkpoint=checkpoint,
        reason=each.unreadable or getattr(state, "reason", ""),
        due_at=event.due_at or None if event else None,
        is_void=each.is_void,
        has_gap=event is not None and event.from_ != each.was and not each.is_void,
    )


def transitions(history: Sequence[Seen], job: str = "", incarnation: int = 0) -> list[Transition]:
    """Those of a job (of one incarnation, if it is given), or of all."""
    led_by = leaders(history)
    return [
        transition(each, led_by)
        for each in history
        if (not job or each.entity.job == job) and (not incarnation or each.incarnation == incarnation)
    ]


def checkpoints(history: Iterable[Seen], job: str, now: int, incarnation: int = 0) -> list[CheckpointView]:
    """Every checkpoint of a job that the log still tells of, as it stands: oldest first. Without an incarnation, of
    the newest one."""
    mine = [each for each in history if each.entity.job == job and each.event is not None and not each.is_void]
    wanted = incarnation or max((each.incarnation for each in mine), default=0)
    newest: dict[tuple[int, int], tuple[int, Event]] = {}
    order = {"TRIGGERED": 0, "ABORTED": 1, "COMPLETED": 2, "ABANDONED": 3, "COMMITTED": 4}
    for each in mine:
        event = each.event
        if each.incarnation != wanted or event is None or not isinstance(event.state, Checkpoint):
            continue
        key = (int(each.entity.parts[1]), event.state.id)
        # Pending and completed are two entities: what the completed one says is the later word.
        weight = order.get(event.to, 0) + (10 if each.entity.kind == "checkpoint" else 0)
        if key not in newest or weight >= newest[key][0]:
            newest[key] = (weight, event)
    return [checkpoint_view(key[0], event, now) for key, (_, event) in sorted(newest.items())]
