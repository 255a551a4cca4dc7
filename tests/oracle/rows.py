"""Judges what the jobs of the trial engine have published: every row that a committed checkpoint covers, once, and no
other; each file named by a checkpoint; nothing in staging of jobs that are gone. What should be there is computed from
the specifications on the log, by a reading of them that is the oracle's own.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from tests.oracle.facts import Facts, Finding, Pipe
from tests.oracle.rules import TERMINAL

LOOK_EVERY_S = 0.01


class TaskRows(NamedTuple):
    """The rows of one task, in the order in which it reads them."""

    source: str
    first: int
    step: int
    total: int  # -1: without end

    def upto(self, count: int) -> set[str]:
        return {f"{self.source} {self.first + i * self.step}" for i in range(count)}


class Sink(NamedTuple):
    path: Path
    pipeline: int
    tasks: list[TaskRows]


def sinks_of(body: str) -> list[Sink]:
    """Where a job writes what. Pipelines are numbered by their first source, tasks by the order of sources."""
    spec: dict[str, Any] = json.loads(body)
    groups = _groups(spec)
    tasks: list[list[TaskRows]] = [[] for _ in groups]
    for source in spec["source"]:
        number = next(n for n, group in enumerate(groups) if source["name"] in group)
        shares = source.get("parallelism") or spec.get("env", {}).get("parallelism", 1)
        options = source.get("options", {})
        rows, start = options.get("rows", -1), options.get("start", 0)
        for share in range(shares):
            total = -1 if rows < 0 else len(range(share, rows, shares))
            tasks[number].append(TaskRows(source["name"], start + share, shares, total))
    return [
        Sink(Path(sink["options"]["path"]), number, tasks[number])
        for sink in spec["sink"]
        for number, group in enumerate(groups)
        if sink["name"] in group and sink["kind"] == "lines" and "path" in sink.get("options", {})
    ]


def _groups(spec: dict[str, Any]) -> list[set[str]]:
    """Connected steps, in the order of their first sources."""
    groups = [{source["name"]} for source in spec["source"]]
    for step in [*spec.get("transform", []), *spec["sink"]]:
        joined = {step["name"], *step["from"]}
        while touching := [group for group in groups if group & joined and group is not joined]:
            for group in touching:
                groups.remove(group)
                joined |= group
        groups.append(joined)
    order = [source["name"] for source in spec["source"]]
    return sorted((g for g in groups if g & {*order}), key=lambda g: min(order.index(n) for n in g if n in order))


def check_rows(facts: Facts) -> list[Finding]:
    found: list[Finding] = []
    for job in sorted({job for job, _ in facts.specifications}):
        paths: dict[Path, list[tuple[int, Sink]]] = {}
        for incarnation in sorted(i for name, i in facts.specifications if name == job):
            for sink in sinks_of(facts.specifications[job, incarnation]):
                paths.setdefault(sink.path, []).append((incarnation, sink))
        for path, wrote in paths.items():
            found += _check_path(facts, job, path, wrote)
    return found


def _check_path(facts: Facts, job: str, path: Path, wrote: list[tuple[int, Sink]]) -> list[Finding]:
    """Incarnations of a job that share a path go on where the one before ended: the last one tells how far."""
    incarnation, sink = wrote[-1]
    pipe, place = Pipe(job, incarnation, sink.pipeline), str(path)
    there = Counter(line for file in files_of(path) for line in file.read_text().splitlines())
    found = [Finding("twice", place, f"{row!r} is there {n} times") for row, n in there.items() if n > 1][:5]
    found += _check_names(facts, job, path, [i for i, _ in wrote])
    for i, _ in wrote:
        if (job, i) in facts.cleaned and (left := path / ".staging" / f"{quote(job, safe='')}-{i}").exists():
            found.append(Finding("R7", place, f"{left} is left of {job}, which is cleaned up"))
    if job in facts.lost_words:  # then nobody knows what was published last
        return found
    last = facts.last.get((job, incarnation))
    committed, completed = facts.committed.get(pipe, {}), facts.completed.get(pipe, {})
    for number, task in enumerate(sink.tasks):
        must, may = task.upto(committed.get(number, 0)), task.upto(completed.get(number, 0))
        mine = {row for row in there if _belongs(row, task)}
        ended = last is not None and last.to in TERMINAL
        if missing := must - mine:
            found.append(Finding("lost", place, f"{len(missing)} committed rows are missing, such as {min(missing)!r}"))
        if more := mine - (must if ended else must | may):
            found.append(Finding("void", place, f"{len(more)} rows are there that no checkpoint covers, {min(more)!r}"))
        if last is not None and last.to == "FINISHED" and task.total >= 0 and (job, incarnation) not in facts.drained:
            whole = len(mine) == task.total
            found += [] if whole else [Finding("lost", place, f"{job} FINISHED with {len(mine)} of {task.total} rows")]
    return found


def _belongs(row: str, task: TaskRows) -> bool:
    source, _, number = row.rpartition(" ")
    return source == task.source and (int(number) - task.first) % task.step == 0


def _check_names(facts: Facts, job: str, path: Path, incarnations: list[int]) -> Iterator[Finding]:
    """Only what a completed checkpoint names is ever published."""
    allowed = {
        f"{quote(job, safe='')}-{pipe.incarnation}-{pipe.pipeline}-{checkpoint}-{piece}"
        for (pipe, checkpoint), pieces in facts.named.items()
        if pipe.job == job and pipe.incarnation in incarnations
        for piece in pieces
    }
    for file in files_of(path):
        if file.name not in allowed:
            yield Finding("void", str(path), f"{file.name} is named by no completed checkpoint")


def files_of(path: Path) -> list[Path]:
    return sorted(file for file in path.glob("*") if file.is_file())


class Onlooker:
    """Somebody who reads the output all the time, as it appears: no row may ever come twice, and what was there stays.
    Use as a context."""

    def __init__(self, root: Path, every_s: float = LOOK_EVERY_S) -> None:
        """Looks at all directories below `root`."""
        self._root, self._every_s = root, every_s
        self._seen: dict[Path, dict[str, str]] = {}  # by directory: row → file
        self._files: set[Path] = set()
        self.findings: list[Finding] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="onlooker", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> list[Finding]:
        """A last look, and what was found."""
        self._stopping.set()
        self._thread.join()
        self._look()
        return self.findings

    @property
    def rows(self) -> int:
        return sum(map(len, self._seen.values()))

    def _look_on(self) -> None:
        while not self._stopping.wait(self._every_s):
            self._look()

    def _look(self) -> None:
        there = (
            {file for path in self._root.iterdir() if path.is_dir() for file in files_of(path)}
            if self._root.exists()
            else set()
        )
        for file in sorted(self._files - there):
            self.findings.append(Finding("gone", str(file), "it was published and is not there any more"))
        for file in sorted(there - self._files):
            rows = self._seen.setdefault(file.parent, {})
            for row in file.read_text().splitlines():
                if row in rows:
                    self.findings.append(Finding("twice", str(file), f"{row!r} was seen before, in {rows[row]}"))
                rows[row] = file.name
        self._files = there
