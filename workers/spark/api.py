"""The seams of the data plane: what a source and a sink owe the loop that runs them (workers/spark/loop.py).

A task's rows come in slices. A slice begins at a position and ends at one; a position is a few bytes (JSON) that mean
the same in any process, on any worker, at any time: reading on from a position gives exactly the rows that were not
read before it, whoever reads and however often. That, and output that is named by whoever staged it and nobody else, is
all that exactly-once rests on. Nothing here keeps state for another.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from events import records
from events.errors import DetentError
from workers.engine import MayPublish
from workers.ledger import Identity
from workers.plan import Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


# Errors. Whatever else is raised is taken as passing: the attempt crashes and is tried again -------------------------


@dataclass(eq=False)
class Unservable(DetentError):
    """A position that the source can't go on from. Lasting: the job fails, and never starts elsewhere by itself."""

    source: str
    checkpoint: int
    position: bytes
    has: str  # what the source still has, as a clause: "the topic begins at offset 12 now"

    def message(self) -> str:
        return (
            f"source {self.source!r} can't go on from position {self.position.decode(errors='replace')} of checkpoint "
            f"{self.checkpoint}: {self.has}. Bring back what is missing, or submit the job anew to start elsewhere."
        )


class Refused(DetentError):
    """A step that can't do what it is told. `lasting`: trying again is pointless, somebody has to change something.

    From `Sink.publish`, lasting also says: the sink was looked at, the output is not there and can't be put there."""

    def __init__(self, reason: str, *, lasting: bool = True) -> None:
        super().__init__(reason)
        self.lasting = lasting


# What makers of sources and sinks are given --------------------------------------------------------------------------


@dataclass(frozen=True)
class Context:
    """What a source or a sink may use of the worker that it is in."""

    session: Callable[[], SparkSession]  # waits until it is there; raises when it can't be had
    directory: Path  # the worker's own
    now_ms: Callable[[], int]
    allowed_modules: Sequence[str] = ()
    kafka: Mapping[str, str] = field(default_factory=dict)  # librdkafka properties of Detent's own cluster


# Sources -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slice:
    """Rows between two positions, not yet read: the frame is lazy, and reading it twice gives the same rows."""

    frame: DataFrame
    after: bytes  # the position behind its last row
    weight: int  # how much of the goal it takes, in the source's own unit
    rows: int = -1  # -1: known only when it has been read
    size: int = 0  # bytes, as far as they are known


class Source(Protocol):
    """One task's share of a source. Made by `maker(context, step, share, shares)`, which raises OptionsRefused; used by
    one thread. A share is the same rows in every attempt: it follows from the options, share, shares and position."""

    @property
    def first_goal(self) -> int:
        """A weight that surely takes less than a second or two: bytes, rows, offsets, whatever it counts in. The loop
        asks for more or less afterwards, by the time that slices take."""
        ...

    def begin(self, position: bytes, checkpoint: int) -> bytes:
        """Where to read from: the position itself, if all behind it can still be had; for b"", the beginning that the
        options ask for, made explicit. Raises Unservable, Refused."""
        ...

    def next_slice(self, after: bytes, goal: int) -> Slice | None:
        """Rows from there on, about as many as weigh the goal and at least one step; None when there are none now.
        Quick: it reads no rows. Raises Unservable for what has gone since `begin`."""
        ...

    def at_end(self, position: bytes) -> bool:
        """Whether there will never be rows behind it."""
        ...

    def close(self) -> None: ...


# Sinks ---------------------------------------------------------------------------------------------------------------


class Piece(msgspec.Struct, frozen=True):
    """A piece of staged output, as its sink knows it. It goes on the log: keep `detail` small."""

    name: str
    rows: int
    size: int = 0
    detail: bytes = b""


class Commit(msgspec.Struct, frozen=True):
    """A checkpoint whose pieces in one sink are to be made visible; its identity is the first four fields."""

    job: str
    incarnation: int
    pipeline: int
    checkpoint: int
    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)


class Sink(Protocol):
    """One sink of one incarnation of a job. Made by `maker(context, step, job, incarnation)`, which raises
    OptionsRefused and must need no Spark: `remove` and many a `publish` do not. Several threads and processes may have
    the same sink at once; one of these objects is used by one thread."""

    def prepare(self, *, fresh: bool) -> None:
        """Before the task reads: staging is made and the save mode looked at. `fresh`: no checkpoint of this job is
        completed, so whatever the sink holds is somebody else's. Raises Refused."""
        ...

    def check(self, schema: StructType) -> None:
        """Before any row moves: whether rows of this schema can be taken. Raises Refused."""
        ...

    def stage(self, frame: DataFrame, who: Identity, rows: int) -> Sequence[Piece]:
        """Write the rows where nobody sees them, under names that no other attempt and no other call has; durable when
        it returns. `rows` is how many there are about, -1 if that is not known: few may be worth a shorter way.
        Raises Refused."""
        ...

    def discard(self, pieces: Sequence[Piece]) -> None:
        """Pieces that were never acknowledged, of an attempt that ends. What is left, `remove` takes."""
        ...

    def publish(self, commit: Commit, may_publish: MayPublish) -> int:
        """Make the pieces visible, once, however often and by however many this is called; `may_publish` is asked
        right before each step that shows something, and when it says no, Refused(lasting=False) is raised. Returns the
        rows. Called also with no pieces: a checkpoint without output. Raises Refused."""
        ...

    def remove(self) -> int:
        """Remove all that this incarnation has in staging; how many pieces there were. Not there is removed."""
        ...

    def close(self) -> None: ...


SourceMaker = Callable[[Context, Step, int, int], Source]
SinkMaker = Callable[[Context, Step, str, int], Sink]


def piece_name(who: Identity) -> str:
    """A name that no other attempt, process or call has."""
    return f"{who.pipeline}-{who.task}-{who.attempt}-{uuid.uuid4().hex[:16]}"


# Pieces on the log: each names its sink ------------------------------------------------------------------------------


def tagged(sink: str, piece: Piece) -> records.Staged:
    detail = msgspec.msgpack.encode((sink, piece.detail))
    return records.Staged(name=piece.name, rows=piece.rows, size=piece.size, detail=detail)


def pieces_of(sink: str, staged: Sequence[records.Staged]) -> tuple[Piece, ...]:
    found = []
    for each in staged:
        name, detail = msgspec.msgpack.decode(each.detail, type=tuple[str, bytes])
        if name == sink:
            found.append(Piece(each.name, each.rows, each.size, detail))
    return tuple(found)
