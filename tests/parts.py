"""What the tests of sources and sinks share: a Spark session of the test process, and the steps of a task, one by one.

The session is one for all tests of a process. Each test takes a session of its own from it (views, catalogs)."""

from __future__ import annotations

import functools
import gc
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from events.jars import SPARK_JARS, fetch_jars
from workers.ledger import Identity
from workers.plan import Step
from workers.spark.api import Commit, Context, Piece, Sink, Source

# PySpark leaves a socket to the collector after each `collect`. Whoever asks for `tidy_sockets` too has it closed in
# the same test, where that is no error.
SPARK_SOCKETS = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(autouse=True)
def tidy_sockets() -> Iterator[None]:
    yield
    gc.collect()


CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "800m",
    "spark.log.level": "ERROR",
}


@functools.cache
def _base() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    jars = fetch_jars(SPARK_JARS)
    builder = SparkSession.builder.master("local[2]").config("spark.driver.extraClassPath", f"{jars}/*")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    return builder.config("spark.sql.warehouse.dir", tempfile.mkdtemp(prefix="detent-warehouse")).getOrCreate()


def a_session() -> SparkSession:
    return _base().newSession()


def a_context(directory: Path, **more: Any) -> Context:
    session = a_session()
    return Context(session=lambda: session, directory=directory, now_ms=lambda: 0, **more)


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
