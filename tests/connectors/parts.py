"""What the tests of sources and sinks share: the steps of a task, one by one, in the hand."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame

from workers.ledger import Identity
from workers.plan import Step
from workers.spark.api import Commit, Context, Piece, Sink, Source

ContextMaker = Callable[..., Context]
# PySpark leaves the sockets that results come by to the garbage collector.
SPARK_SOCKETS = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


def a_step(kind: str, name: str = "it", **options: Any) -> Step:
    return Step(name=name, kind=kind, options=options)


# Sources -------------------------------------------------------------------------------------------------------------

Read = Callable[[DataFrame], list[Any]]


def as_tuples(frame: DataFrame) -> list[Any]:
    return [tuple(row) for row in frame.collect()]


def read_on(
    source: Source, position: bytes, goal: int, read: Read = as_tuples, limit: int = 100
) -> list[tuple[bytes, list[Any]]]:
    """All slices from there on until there are no more now: the position before each, and its rows; the end last."""
    found: list[tuple[bytes, list[Any]]] = []
    while (piece := source.next_slice(position, goal)) is not None:
        assert len(found) < limit, "a source that never ends"
        found.append((position, read(piece.frame)))
        assert piece.after != position
        position = piece.after
    found.append((position, []))
    return found


def assert_remaining_from_every_position(make: Callable[[], Source], goal: int, read: Read = as_tuples) -> Counter[Any]:
    """Reading on from any position, by another task object, gives exactly what was not read before it. All rows."""
    source = make()
    slices = read_on(source, source.begin(b"", 0), goal, read)
    source.close()
    assert len(slices) > 2, "too few slices to prove anything"
    everything = [row for _, rows in slices for row in rows]
    for index, (position, _) in enumerate(slices):
        rest = Counter(row for _, rows in slices[index:] for row in rows)
        again = make()
        begun = again.begin(position, 7)
        assert begun == position
        assert Counter(row for _, rows in read_on(again, begun, goal * 100, read) for row in rows) == rest
        again.close()
    return Counter(everything)


# Sinks ---------------------------------------------------------------------------------------------------------------


def who(task: int = 0, attempt: int = 1, job: str = "job", incarnation: int = 1) -> Identity:
    return Identity(job, incarnation, 0, task, attempt)


def a_commit(checkpoint: int, pieces: Sequence[Piece], job: str = "job", incarnation: int = 1) -> Commit:
    return Commit(job, incarnation, 0, checkpoint, tuple(pieces))


def publish_by_many(make: Callable[[], Sink], commit: Commit, count: int = 4) -> list[int | Exception]:
    """Several publishers of the same checkpoint at once, each with a sink of its own. What each got."""
    together, got = threading.Barrier(count), list[int | Exception]()

    def run() -> None:
        sink = make()
        together.wait()
        try:
            got.append(sink.publish(commit, lambda: True))
        except Exception as error:  # noqa: BLE001  the test looks at it
            got.append(error)
        sink.close()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


def yes() -> bool:
    return True
