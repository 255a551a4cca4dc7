"""The data plane against plain Spark: the same rows through the same query into parquet, from parquet and from Kafka.

    python -m bench.dataplane --json

plain: PySpark reads, transforms and writes in one go. detent: a job on a worker, one task per core, from its submission
to its end on the log: checkpoints, commit and all. streaming: Structured Streaming with `availableNow`, in as many
slices as Detent took. For Kafka (bench/kafka_data.py) also connector: Spark's own, where its jars
(bench/connector.jars.sha256: the newest that there is of each) can be had. Every run's rows are counted by pyarrow.

Before anything is measured, both Sparks have planned some hundred small queries: a JVM compiles Spark's planner for as
long, and workers are started to work for weeks.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import harness, kafka
from bench.data_jobs import CORES, Detent, detent, measured, plain_spark, write_parquet
from bench.harness import progress
from bench.kafka_data import KafkaContest, Topic
from events.ivy import JarsUnavailable
from events.jars import fetch_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_QUERIES, SMALL_ROWS = 300, 1000
WARMUPS = 4  # of whole runs, after those
CONNECTOR_JARS = Path(__file__).with_name("connector.jars.sha256")
SCHEMA = "id LONG, customer LONG, amount DOUBLE, at TIMESTAMP, text STRING"
QUERY = (
    "SELECT id, customer, amount * 1.2 AS gross, date_trunc('HOUR', at) AS hour, upper(text) AS text "
    "FROM input WHERE customer % 10 <> 3"
)


def plainly(spark: SparkSession, source: Path, out: Path) -> float:
    began = time.monotonic()
    spark.read.parquet(str(source)).createOrReplaceTempView("input")
    spark.sql(QUERY).write.parquet(str(out))
    return time.monotonic() - began


def specification(source: Path, out: Path, **more: object) -> dict[str, Any]:
    options = {"path": str(source), "schema": SCHEMA, **more}
    return {
        "env": {"parallelism": CORES},
        "source": [{"name": "orders", "kind": "files", "options": options}],
        "transform": [{"name": "query", "kind": "sql", "from": ["orders"], "options": {"query": QUERY}}],
        "sink": [{"name": "out", "kind": "files", "from": ["query"], "options": {"path": str(out)}}],
    }


def warm_up(spark: SparkSession, workers: Detent, folder: Path) -> None:
    """Small queries, as many for each Spark. Detent's is one job with as many slices."""
    write_parquet(folder / "small", SMALL_QUERIES * SMALL_ROWS, SMALL_QUERIES)
    progress("warm-up: small slices")
    workers.run(specification(folder / "small", folder / "small-of-detent", slice_files=1))
    for number, file in enumerate(sorted((folder / "small").iterdir())):
        progress(f"warm-up: small query {number + 1} of {SMALL_QUERIES}")
        plainly(spark, file, folder / "small-of-plain" / file.name)


class Contest:
    """Three ways from one folder to others."""

    def __init__(self, spark: SparkSession, workers: Detent, folder: Path, files: int) -> None:
        self._spark, self._workers, self._folder, self._files = spark, workers, folder, files
        self._input = folder / "input"
        self.rows: set[int] = set()
        self.slices: list[int] = []

    def plain(self) -> float:
        return self.measured(partial(plainly, self._spark, self._input))

    def detent(self) -> float:
        return self.measured(lambda out: self._run(specification(self._input, out)))

    def streaming(self) -> float:
        def work(out: Path) -> float:
            most = max(1, math.ceil(self._files / max(1, self.slices[-1] if self.slices else CORES)))
            began = time.monotonic()
            rows = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", most).parquet(str(self._input))
            rows.createOrReplaceTempView("input")
            writer = self._spark.sql(QUERY).writeStream.format("parquet").trigger(availableNow=True)
            state = out.with_name(f"{out.name}-state")
            query = writer.option("checkpointLocation", str(state)).start(str(out))
            query.awaitTermination()
            return time.monotonic() - began

        return self.measured(work)

    def _run(self, specification: dict[str, Any]) -> float:
        took, name = self._workers.run(specification)
        pieces = [piece for checkpoint in self._workers.checkpoints(name) for ack in checkpoint.acks
                  for piece in ack.staged]  # fmt: skip
        self.slices.append(len(pieces))
        return took

    def measured(self, work: Callable[[Path], float]) -> float:
        took, rows = measured(self._folder, work)
        self.rows.add(rows)
        return took


def measure(options: argparse.Namespace) -> harness.Result:
    result = harness.Result("dataplane")
    jars = connector_jars() if "kafka" in options.of else []
    with tempfile.TemporaryDirectory(prefix="detent-dataplane-") as name, kafka.fresh_cluster(options) as cluster:
        folder = Path(name)
        with plain_spark(folder, jars) as spark, detent(cluster, folder / "detent") as workers:
            warm_up(spark, workers, folder)
            if "parquet" in options.of:
                write_parquet(folder / "input", options.rows, options.files)
                contest = Contest(spark, workers, folder, options.files)
                contenders = {"plain": contest.plain, "detent": contest.detent, "streaming": contest.streaming}
                compare(result, "parquet", contenders, contest.rows, options.rows, options.repetitions)
                result.figures["parquet: slices of Detent"] = contest.slices[-1]
            if "kafka" in options.of:
                topic = Topic(cluster, options.records)
                of_kafka = KafkaContest(spark, workers, topic, connector=bool(jars))
                written = Contest(spark, workers, folder, 1)
                contenders = {name: partial(written.measured, way) for name, way in of_kafka.contenders.items()}
                compare(result, "kafka", contenders, written.rows, options.records, options.repetitions)
                result.figures["kafka: slices of Detent"] = of_kafka.slices
    return result


def connector_jars() -> list[str]:
    """None where they can't be had: that is said, and the rest is measured."""
    try:
        return sorted(map(str, fetch_jars(CONNECTOR_JARS).glob("*.jar")))
    except JarsUnavailable as error:
        sys.stderr.write(f"without Spark's own connector: {error}\n")
        return []


def compare(
    result: harness.Result, name: str, contenders: dict[str, Callable[[], float]], written: set[int], rows: int,
    repetitions: int,
) -> None:  # fmt: skip
    """Measure them in turns. All must write the same number of rows."""
    seconds = harness.alternate(contenders, warmups=WARMUPS, repetitions=repetitions)
    if len(written) != 1:
        raise RuntimeError(f"{name}: the contenders wrote different numbers of rows: {sorted(written)}")
    result.figures |= {f"{name}: rows read": rows, f"{name}: rows written": next(iter(written))}
    result.figures |= {f"{name}: {who}, rows/s": rows / took for who, took in harness.medians(seconds).items()}
    for who, bound in (("plain", 0.9), ("streaming", 1.0), ("connector", 1.0)):
        if who in seconds:
            value = harness.ratio(seconds, who, "detent")
            each = harness.ratios(seconds, who, "detent")
            result.figures[f"{name}: detent / {who}, each turn"] = " ".join(f"{one:.2f}" for one in each)
            result.bars.append(harness.Bar(f"{name}: detent / {who}", value, ">=", bound))


def main() -> int:
    options = harness.parser("Detent's data plane against plain Spark and Structured Streaming.")
    options.add_argument("--rows", type=int, default=12_000_000)
    options.add_argument("--files", type=int, default=40)
    options.add_argument("--records", type=int, default=4_000_000, help="on the topic")
    options.add_argument("--of", nargs="+", default=["parquet", "kafka"], choices=["parquet", "kafka"])
    kafka.add_options(options)
    options.set_defaults(repetitions=5)
    chosen = options.parse_args()
    return harness.report(measure(chosen), as_json=chosen.json)


if __name__ == "__main__":
    sys.exit(main())
