"""The soak's jobs on Spark: numbered rows into parquet files, some to an end and some until they are told. Each is
judged when it is cleaned up: by what pyarrow finds, against what the log says was published. It never asks a worker."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

from bench.fleet import SPARK, Seen
from events.records import Submit, Summary
from tests.jvm import QUICK_SPARK
from tests.scenes import Scene
from tests.spark_parts import ids, sink, source

LABEL = "worker.labels.engine"
LABELS = {"trial": {"engine": "trial"}, "spark": {"engine": "spark"}}
SETTINGS: dict[str, object] = {
    LABEL: "spark", "worker.engine": SPARK, "worker.spark.master": "local[2]", "worker.spark.slice_ms": 300,
    "worker.spark.conf.spark.driver.memory": "512m",
    **QUICK_SPARK,
}  # fmt: skip
MOST = 3  # at a time: two cores carry no more
ENV = {
    "cleanup_delay_ms": 2000,
    "restart": {"retries": 1000, "backoff_ms": 50, "max_backoff_ms": 1000},
    "commit": {"retries": 1000, "backoff_ms": 100, "max_backoff_ms": 1000},
    "labels": LABELS["spark"],
}


@dataclass
class Output:
    """What a job should have left."""

    job: str
    path: Path
    shares: int
    rows: int  # -1: as many as the log says
    published: int = 0  # by the log
    end: str = ""
    is_gone: bool = False  # cleaned up, by the log

    def findings(self) -> list[str]:
        """When it is cleaned up."""
        found, wrong = ids(self.path), self.twice()
        whole = Counter(n for share in range(self.shares) for n in self._upto(share, found))
        if found.total() != self.published:
            wrong.append(f"{found.total()} rows are there, {self.published} were published")
        if found.keys() != whole.keys():
            wrong.append(f"rows are missing, such as {min(found.keys() ^ whole.keys())}")
        if self.end == "FINISHED" and self.rows >= 0 and found.keys() != set(range(self.rows)):
            wrong.append(f"{len(found)} of {self.rows} rows are there, and it is FINISHED")
        staging = self.path / ".staging"
        left = [path.name for path in staging.glob(f"{quote(self.job, safe='')}-*")]
        return [f"{self.job}: {what}" for what in wrong] + [f"{self.job}: {name} is left in staging" for name in left]

    def twice(self) -> list[str]:
        return [f"row {row} is there {n} times" for row, n in ids(self.path).items() if n > 1][:5]

    def _upto(self, share: int, found: Counter[int]) -> range:
        """Task `share` has the numbers share, share + shares, …, and publishes them in this order."""
        count = sum(n % self.shares == share for n in found)
        return range(share, share + count * self.shares, self.shares)


@dataclass
class SparkJobs:
    scene: Scene
    root: Path
    open: dict[str, Output] = field(default_factory=dict)  # not judged yet
    judged: int = 0
    rows: int = 0

    def submit(self, name: str, chance: Random, *, bounded: bool) -> None:
        shares, rows = chance.choice([1, 1, 2]), chance.randint(200, 3000) if bounded else -1
        output = self.open[name] = Output(name, self.root / name, shares, rows)
        columns: dict[str, Any] = {"part": "id % 2"}
        given = source(rows=rows, parallelism=shares, rate=float(chance.choice([100, 400])), columns=columns)
        into = sink(output.path, **({"partition_by": ["part"]} if chance.random() < 0.5 else {}))
        checkpoint = {"interval_ms": chance.choice([200, 500, 1000]), "timeout_ms": 20_000}
        body = {"env": ENV | {"checkpoint": checkpoint}, "source": [given], "sink": [into]}
        self.scene._send(name, Submit(specification=json.dumps(body)))

    def saw(self, seen: Seen) -> None:
        """A record of the log."""
        kind, _, rest = seen.key.partition("/")
        output = self.open.get(rest.split("/")[0])
        if output is None:
            return
        if kind == "summary" and seen.event is not None and isinstance(seen.event.state, Summary):
            output.published = seen.event.state.rows
        elif kind == "job" and seen.event is not None:
            output.end = seen.event.to
        elif kind == "job":
            output.is_gone = True

    def judge(self) -> list[str]:
        """What is wrong with the output of those that are cleaned up; not while something is in its place."""
        found: list[str] = []
        for output in [output for output in self.open.values() if output.is_gone and not output.path.is_file()]:
            del self.open[output.job]
            self.judged += 1
            self.rows += output.published
            found += output.findings()
        return found

    def sinks(self) -> list[Path]:
        """That somebody writes to."""
        return [output.path for output in self.open.values() if output.path.is_dir() and not output.is_gone]
