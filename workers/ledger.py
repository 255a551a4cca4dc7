"""The worker's ledger: what it holds of every task, publication and removal, and the one way it changes.

`apply` is the only thing that changes a ledger; decisions read it. It never decides and never reaches a disk: the
caller stores entries under their keys and, after a restart, puts them back the same way.

Hard state (`Held`, `Publication`, `Removal`) must be durable before anything follows from it. Soft state (`Pulse`,
the time Kafka was last reached) is lost with the process and missed by nobody: its attempts are lost as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import msgspec

from events import records


class Identity(NamedTuple):
    """One attempt of one task of one incarnation of a job: what runs, or has run."""

    job: str
    incarnation: int
    pipeline: int
    task: int
    attempt: int


# Keys are structs and no tuples: two of them with equal numbers but of different kinds are different.
class TaskKey(msgspec.Struct, frozen=True, gc=False):
    """A task whatever its incarnation, as in the key of orders."""

    job: str
    pipeline: int
    task: int


class PipelineKey(msgspec.Struct, frozen=True, gc=False):
    """A pipeline of one incarnation."""

    job: str
    incarnation: int
    pipeline: int


class JobKey(msgspec.Struct, frozen=True, gc=False):
    """One incarnation of a job."""

    job: str
    incarnation: int


Key = TaskKey | PipelineKey | JobKey


class Phase(StrEnum):
    """Where an attempt is. All but ENDED are active: they take a slot."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    READY = "READY"
    STOPPING = "STOPPING"
    ENDED = "ENDED"


Terminal = records.TaskFailed | records.TaskStopped


class Successor(msgspec.Struct, frozen=True, gc=False):
    """A higher attempt that waits until the one before it has stopped."""

    who: Identity
    epoch: int
    # What becomes of it then: it is deployed, or ends without ever having run.
    fate: records.Deploy | Terminal


class Held(msgspec.Struct, frozen=True, gc=False, kw_only=True, tag=True):
    """The newest attempt that the worker has of a task: active, or ended and its end not yet noted."""

    who: Identity
    # The reign whose order it last followed.
    epoch: int
    phase: Phase
    started_at: int = 0
    why: str = ""  # it is being stopped
    stop_by: int = 0  # when it is given up
    # The lowest checkpoint that it may still be asked for, the one it stages now (0 for none), the last it has staged.
    lowest: int = 1
    staging: int = 0
    staged: int = 0
    # Its last acknowledgement, without the output: that is `pieces`.
    acked: records.CheckpointAcked | None = None
    # Output staged since the last completed checkpoint, by the checkpoint it was staged for.
    pieces: tuple[tuple[int, tuple[records.Staged, ...]], ...] = ()
    # What it reports until that is settled.
    report: records.TaskReady | Terminal | None = None
    settled: bool = False
    withdrawn: bool = False  # forgotten as soon as it has stopped
    successor: Successor | None = None

    @property
    def key(self) -> TaskKey:
        return TaskKey(self.who.job, self.who.pipeline, self.who.task)

    @property
    def active(self) -> bool:
        return self.phase is not Phase.ENDED

    @property
    def version(self) -> tuple[int, int]:
        return (self.who.incarnation, self.who.attempt)

    def reigns(self) -> Iterator[tuple[JobKey, int]]:
        yield JobKey(self.who.job, self.who.incarnation), self.epoch
        if self.successor is not None:
            yield JobKey(self.who.job, self.successor.who.incarnation), self.successor.epoch


class Publication(msgspec.Struct, frozen=True, gc=False, kw_only=True, tag=True):
    """What the worker has published, or is publishing, for a pipeline."""

    # Whom the last order named: the report answers to it, its withdrawal forgets the publication.
    who: Identity
    epoch: int
    publishing: int = 0  # the checkpoint; 0 for none
    # The newest one published, with its rows.
    published: int = 0
    rows: int = 0
    withdrawn: bool = False

    @property
    def key(self) -> PipelineKey:
        return PipelineKey(self.who.job, self.who.incarnation, self.who.pipeline)

    def reigns(self) -> Iterator[tuple[JobKey, int]]:
        yield JobKey(self.who.job, self.who.incarnation), self.epoch


class Removal(msgspec.Struct, frozen=True, gc=False, kw_only=True, tag=True):
    """The removal of a job's staging. While it is held, nothing else is done for that incarnation."""

    who: Identity
    epoch: int
    removing: bool = False
    done: bool = False
    removed: int = 0
    withdrawn: bool = False

    @property
    def key(self) -> JobKey:
        return JobKey(self.who.job, self.who.incarnation)

    def reigns(self) -> Iterator[tuple[JobKey, int]]:
        yield self.key, self.epoch


Entry = Held | Publication | Removal


class Pulse(msgspec.Struct, frozen=True, gc=False):
    """Soft state of a held task: its progress, and when its report is due again."""

    rows: int = 0
    bytes_read: int = 0
    progressed_at: int = 0
    stalled: bool = False  # this lack of progress has been reported
    tries: int = 0
    repeat_at: int = 0


class Put(msgspec.Struct, frozen=True, gc=False):
    """Hard: the entry stands under its key from now on."""

    entry: Entry


class Drop(msgspec.Struct, frozen=True, gc=False):
    """Hard: nothing stands under the key any more."""

    key: Key


class SetPulse(msgspec.Struct, frozen=True, gc=False):
    """Soft."""

    key: TaskKey
    pulse: Pulse


class SetReached(msgspec.Struct, frozen=True, gc=False):
    """Soft."""

    at: int
    lease: int


Change = Put | Drop | SetPulse | SetReached


@dataclass(slots=True)
class OfJob:
    """What is held of one incarnation of a job, and the highest epoch seen for it."""

    epoch: int = 0
    keys: dict[Key, None] = field(default_factory=dict)  # a set that keeps its order, for the same run every time


@dataclass(slots=True)
class Ledger:
    """All the worker knows. Read it freely; only `apply` writes it, on the one thread that decides."""

    tasks: dict[TaskKey, Held] = field(default_factory=dict)
    publications: dict[PipelineKey, Publication] = field(default_factory=dict)
    removals: dict[JobKey, Removal] = field(default_factory=dict)
    pulses: dict[TaskKey, Pulse] = field(default_factory=dict)
    reached_at: int = 0
    lease: int = 0  # which lease this is: the next begins when Kafka is reached again after one ran out
    # Indexes, kept by `apply` so that a decision never searches.
    active: int = 0
    jobs: dict[JobKey, OfJob] = field(default_factory=dict)
    # Publications and removals by the task whose order key they were ordered under.
    ordered_by: dict[TaskKey, dict[PipelineKey | JobKey, None]] = field(default_factory=dict)

    def pulse(self, key: TaskKey) -> Pulse:
        return self.pulses.get(key, IDLE)

    def epoch(self, job: str, incarnation: int) -> int:
        of = self.jobs.get(JobKey(job, incarnation))
        return of.epoch if of is not None else 0


IDLE = Pulse()


def apply(ledger: Ledger, changes: Iterable[Change]) -> None:
    """The ledger after these changes, in their order."""
    for change in changes:
        if isinstance(change, SetPulse):
            ledger.pulses[change.key] = change.pulse
        elif isinstance(change, Put):
            _replace(ledger, change.entry.key, change.entry)
        elif isinstance(change, Drop):
            _replace(ledger, change.key, None)
        else:
            ledger.reached_at, ledger.lease = change.at, change.lease


def _replace(ledger: Ledger, key: Key, new: Entry | None) -> None:
    old = _exchange(ledger, key, new)
    # The new is linked before the old is unlinked, or the job's epoch would be forgotten in between.
    linked = set()
    for job, epoch in new.reigns() if new is not None else ():
        linked.add(job)
        of = ledger.jobs.setdefault(job, OfJob())
        of.epoch = max(of.epoch, epoch)
        of.keys[key] = None
    for job, _ in old.reigns() if old is not None else ():
        if job in ledger.jobs and job not in linked:
            keys = ledger.jobs[job].keys
            keys.pop(key, None)
            if not keys:
                del ledger.jobs[job]


def _exchange(ledger: Ledger, key: Key, new: Entry | None) -> Entry | None:
    """Sets the entry of a key; returns what stood there."""
    old: Entry | None
    if isinstance(key, TaskKey):
        old = ledger.tasks.pop(key, None) if new is None else ledger.tasks.get(key)
        if isinstance(new, Held):
            ledger.tasks[key] = new
        else:
            ledger.pulses.pop(key, None)
        ledger.active += (isinstance(new, Held) and new.active) - (old is not None and old.active)
        return old
    if isinstance(key, PipelineKey):
        old = ledger.publications.pop(key, None) if new is None else ledger.publications.get(key)
        if isinstance(new, Publication):
            ledger.publications[key] = new
    else:
        old = ledger.removals.pop(key, None) if new is None else ledger.removals.get(key)
        if isinstance(new, Removal):
            ledger.removals[key] = new
    _order_by(ledger, key, old, new)
    return old


def _order_by(ledger: Ledger, key: PipelineKey | JobKey, old: Entry | None, new: Entry | None) -> None:
    if old is not None:
        by = TaskKey(old.who.job, old.who.pipeline, old.who.task)
        keys = ledger.ordered_by[by]
        del keys[key]
        if not keys:
            del ledger.ordered_by[by]
    if new is not None:
        by = TaskKey(new.who.job, new.who.pipeline, new.who.task)
        ledger.ordered_by.setdefault(by, {})[key] = None
