"""Data jobs for benchmarks: a coordinator and a worker on Spark as processes, plain Spark in this one, and parquet."""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.fleet import SPARK, Fleet, Look
from bench.harness import progress
from events.cluster import Cluster
from events.records import Checkpoint
from workers.spark.session import LOCAL_TUNING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES = os.cpu_count() or 1
LIMIT_S = 170.0


def write_parquet(folder: Path, rows: int, files: int) -> None:
    """Orders: an id, a customer, an amount, a time and a text."""
    folder.mkdir(parents=True)
    each = rows // files
    for number in range(files):
        progress(f"writing the input: file {number + 1} of {files}")
        ids = pa.array(range(number * each, (number + 1) * each), pa.int64())
        customer = pc.bit_wise_and(pc.multiply(ids, 2654435761), 0xFFFFF)
        table = pa.table(
            {
                "id": ids,
                "customer": customer,
                "amount": pc.divide(pc.cast(pc.bit_wise_and(pc.multiply(ids, 40503), 0xFFFF), pa.float64()), 100.0),
                "at": pc.cast(pc.add(pc.multiply(ids, 1000), 1_700_000_000_000_000), pa.timestamp("us", "UTC")),
                "text": pc.binary_join_element_wise("order of ", pc.cast(customer, pa.string()), ""),
            }
        )
        pq.write_table(table, folder / f"{number:05}.parquet")
    progress("")


def rows_in(folder: Path) -> int:
    """By pyarrow."""
    found = [path for path in folder.rglob("*.parquet") if not path.relative_to(folder).parts[0].startswith((".", "_"))]
    return sum(int(pq.read_metadata(path).num_rows) for path in found)


def measured(place: Path, work: Callable[[Path], float]) -> tuple[float, int]:
    """What the work says that it took to fill a folder, and how many rows that has; it is gone then, with all beside
    it."""
    with tempfile.TemporaryDirectory(dir=place) as name:
        out = Path(name, "out")
        return work(out), rows_in(out)


@contextmanager
def plain_spark(directory: Path, jars: Sequence[str] = ()) -> Iterator[SparkSession]:
    """As anybody has it who starts PySpark, without its page and its chatter."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[*]").appName("plain")
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR",
             "spark.driver.host": "127.0.0.1", "spark.sql.warehouse.dir": str(directory / "warehouse"),
             "spark.sql.session.timeZone": "UTC",
             # As Detent has them: without the first, its speed is a matter of luck (docs/dataplane.md); as INT96,
             # Spark's default, timestamps take longer.
             "spark.driver.defaultJavaOptions": LOCAL_TUNING["spark.driver.defaultJavaOptions"],
             "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}  # fmt: skip
    for name, value in quiet.items():
        builder = builder.config(name, value)
    if jars:
        builder = builder.config("spark.driver.extraClassPath", ":".join(jars))
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


class Detent:
    """Runs jobs to their ends and tells how long that took."""

    def __init__(self, fleet: Fleet, look: Look) -> None:
        self.fleet, self.look = fleet, look
        self._names = (f"job-{number}" for number in itertools.count())

    def run(self, specification: dict[str, Any]) -> tuple[float, str]:
        """Seconds from its submission to its end, seen on the log; and its name."""
        name = next(self._names)
        began = time.monotonic()
        self.fleet.submit(name, json.dumps(specification))
        state = self.look.until_job(name, "FINISHED", "FAILED", limit_s=LIMIT_S)
        took = time.monotonic() - began
        if state != "FINISHED":
            raise RuntimeError(f"{name} is {state}: {self.look.known[f'job/{name}'].state}")
        return took, name

    def checkpoints(self, name: str) -> list[Checkpoint]:
        """Those that were committed."""
        key = f"checkpoint/{name}/0"
        seen = [s.event.state for s in self.look.seen if s.key == key and s.event and s.event.to == "COMMITTED"]
        return [state for state in seen if isinstance(state, Checkpoint)]


@contextmanager
def detent(cluster: Cluster, directory: Path, **settings: object) -> Iterator[Detent]:
    """A coordinator, and a worker whose Spark is there."""
    directory.mkdir(parents=True, exist_ok=True)
    given: dict[str, object] = {"worker.engine": SPARK, "worker.slots": 2 * CORES}
    given |= {name.replace("__", "."): value for name, value in settings.items()}
    with Fleet(cluster, directory, given) as fleet, fleet.look() as look:
        processes = [fleet.coordinator("c0"), fleet.worker("w0")]
        fleet.ready(*processes)
        yield Detent(fleet, look)
