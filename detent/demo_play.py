"""What the demo plays: input that it makes, the job over it, and the check that every row arrived exactly once, by a
reader that knows nothing of Detent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from detent.jobs import Job
from events.cluster import Cluster
from events.errors import DetentError

JOB = "demo"
ENV = {
    "checkpoint": {"interval_ms": 1500},
    "restart": {"retries": 20, "backoff_ms": 200, "max_backoff_ms": 1000},
    "cleanup_delay_ms": 600_000,
}


class RowsDiffer(DetentError):
    """What arrived is not what was there."""


class Play(Protocol):
    """One way to play it."""

    says: str  # what the job does, in a sentence
    rows: int  # in all
    settings: Mapping[str, str]  # that it needs

    def prepare(self, cluster: Cluster) -> None:
        """Make the input."""
        ...

    def job(self) -> Job: ...

    def check(self) -> str:
        """Compare what arrived with what was there; what was found, in a sentence. Raises RowsDiffer."""
        ...


class TrialPlay:
    """Without Spark: numbered rows from two sources into files of lines. For trying the demo itself."""

    def __init__(self, directory: Path, rows: int = 20_000, rate: float = 600.0) -> None:
        self.rows, self._rate, self._out = rows, rate, directory / "out"
        self._split = rows // 2
        self.settings: Mapping[str, str] = {"worker.engine": "workers.trial:TrialEngine"}
        self.says = f"{rows:,} numbers from two sources, on the trial engine, into files of lines"

    def prepare(self, cluster: Cluster) -> None:
        pass  # its sources make their rows themselves

    def job(self) -> Job:
        job = Job(JOB).env(**ENV)
        job = job.source("low", "numbers", parallelism=2, rows=self._split, rate=self._rate)
        more = self.rows - self._split
        job = job.source("high", "numbers", parallelism=2, start=self._split, rows=more, rate=self._rate)
        return job.sink("table", "lines", path=str(self._out))

    def check(self) -> str:
        lines = (line for file in self._out.iterdir() if file.is_file() for line in file.read_text().splitlines())
        found = Counter(int(line.split()[-1]) for line in lines)
        return compare(found, range(self.rows))


def compare(found: Counter[int], wanted: range) -> str:
    missing = [number for number in wanted if number not in found][:5]
    twice = [number for number, count in found.items() if count > 1][:5]
    foreign = [number for number in found if number not in wanted][:5]
    if missing or twice or foreign:
        raise RowsDiffer(
            f"the rows do not match the source: of {len(wanted):,} rows {found.total():,} arrived; missing {missing}, "
            f"more than once {twice}, never there {foreign}"
        )
    return f"{found.total():,} rows, sum {sum(found.elements()):,}: each of the source's is there, exactly once"
