"""Small slices: what one costs with everything that makes it exactly once.

    python -m bench.microbatch --json

Little parquet files, one to a slice. detent: a job whose checkpoints follow each other as fast as they can, each with
its trigger, acknowledgement, decision, publication and commit on the log; the cost is the job's time divided by its
committed checkpoints, none of which covers less than a slice. streaming: Structured Streaming with `availableNow` and
one file to a trigger, with its write-ahead log and commits; the time divided by its triggers. plain: the same writes
one after the other, without any of it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench import harness, kafka
from bench.data_jobs import Detent, detent, measured, plain_spark, write_parquet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id LONG, customer LONG, amount DOUBLE, at TIMESTAMP, text STRING"


class Contest:
    def __init__(self, spark: SparkSession, workers: Detent, folder: Path, options: argparse.Namespace) -> None:
        self._spark, self._workers, self._folder, self._options = spark, workers, folder, options
        self._input = folder / "input"
        self.slices: list[float] = []  # of Detent, for each checkpoint

    def plain(self) -> float:
        def work(out: Path) -> float:
            files = sorted(self._input.glob("*.parquet"))
            began = time.monotonic()
            for file in files:
                self._spark.read.schema(SCHEMA).parquet(str(file)).write.mode("append").parquet(str(out))
            return (time.monotonic() - began) / len(files)

        return self._measured(work)

    def detent(self) -> float:
        def work(out: Path) -> float:
            source = {"path": str(self._input), "schema": SCHEMA, "slice_files": 1}
            took, name = self._workers.run(
                {
                    "env": {"checkpoint": {"interval_ms": 1}},
                    "source": [{"name": "in", "kind": "files", "options": source}],
                    "sink": [{"name": "out", "kind": "files", "from": ["in"], "options": {"path": str(out)}}],
                }
            )
            checkpoints = [one for one in self._workers.checkpoints(name) if any(ack.staged for ack in one.acks)]
            pieces = sum(len(ack.staged) for one in checkpoints for ack in one.acks)
            self.slices.append(pieces / len(checkpoints))
            return took / len(checkpoints)

        return self._measured(work)

    def streaming(self) -> float:
        def work(out: Path) -> float:
            began = time.monotonic()
            rows = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(self._input))
            writer = rows.writeStream.format("parquet").trigger(availableNow=True)
            query = writer.option("checkpointLocation", f"{out}-state").start(str(out))
            query.awaitTermination()
            return (time.monotonic() - began) / int(self._options.slices)

        return self._measured(work)

    def _measured(self, work: Callable[[Path], float]) -> float:
        took, found = measured(self._folder, work)
        if found != (expected := self._options.slices * self._options.rows):
            raise RuntimeError(f"{found} rows were written, not {expected}")
        return took


def measure(options: argparse.Namespace) -> harness.Result:
    with tempfile.TemporaryDirectory(prefix="detent-microbatch-") as name, kafka.fresh_cluster(options) as cluster:
        folder = Path(name)
        write_parquet(folder / "input", options.rows * options.slices, options.slices)
        with plain_spark(folder) as spark, detent(cluster, folder / "detent") as workers:
            contest = Contest(spark, workers, folder, options)
            contenders = {"plain": contest.plain, "detent": contest.detent, "streaming": contest.streaming}
            seconds = harness.alternate(contenders, warmups=1, repetitions=options.repetitions)
    result = harness.Result("microbatch")
    result.figures["rows of a slice"] = options.rows
    result.figures["slices of a run"] = options.slices
    result.figures["slices of a checkpoint of Detent"] = contest.slices[-1]
    result.figures |= {f"{name}, ms": took * 1000 for name, took in harness.medians(seconds).items()}
    result.bars = [harness.Bar("detent / streaming", harness.ratio(seconds, "detent", "streaming"), "<=", 1.0)]
    return result


def main() -> int:
    options = harness.parser("What a small slice costs, exactly once.")
    options.add_argument("--rows", type=int, default=100, help="rows of a slice")
    options.add_argument("--slices", type=int, default=30, help="slices of a run")
    kafka.add_options(options)
    options.set_defaults(repetitions=3)
    chosen = options.parse_args()
    return harness.report(measure(chosen), as_json=chosen.json)


if __name__ == "__main__":
    sys.exit(main())
