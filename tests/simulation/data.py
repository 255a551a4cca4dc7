"""The data plane of the simulation: sources with numbered rows, staging, and a sink that publishes by identity."""

from __future__ import annotations

import functools
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from events.records import Staged
from workers import happenings as h
from workers.ledger import Identity

Row = tuple[str, int, int, int, int]  # job, incarnation, pipeline, task, number
Job = tuple[str, int]


@functools.lru_cache(maxsize=1024)
def parsed(body: str) -> Any:
    return json.loads(body)


@functools.lru_cache(maxsize=1024)
def sizes(body: str) -> dict[tuple[int, int], int]:
    """How many rows every task has to read, by pipeline and task; -1 for a source without end."""
    specification = parsed(body)
    found: dict[tuple[int, int], int] = {}
    pipelines: dict[str, int] = {}
    for source in specification["source"]:
        sink = next(s["name"] for s in specification["sink"] if source["name"] in s["from"])
        number = pipelines.setdefault(sink, len(pipelines))
        first = sum(pipeline == number for pipeline, _ in found)
        for task in range(first, first + source["parallelism"]):
            found[number, task] = source["options"]["rows"]
    return found


def is_endless(body: str) -> bool:
    return -1 in sizes(body).values()


@dataclass
class Data:
    """What is staged and what is published: both survive every process."""

    staging: dict[Job, dict[str, tuple[Identity, range]]] = field(default_factory=dict)
    published: dict[Job, Counter[Row]] = field(default_factory=dict)
    identities: set[tuple[str, int, int, int]] = field(default_factory=set)
    names: int = 0
    twice: list[Row] = field(default_factory=list)

    def stage(self, who: Identity, rows: range) -> tuple[Staged, ...]:
        if not rows:
            return ()
        self.names += 1
        name = f"{who.pipeline}-{who.task}-{who.attempt}-{self.names}"  # unique to the attempt
        self.staging.setdefault((who.job, who.incarnation), {})[name] = who, rows
        return (Staged(name=name, rows=len(rows), size=8 * len(rows)),)

    def is_published(self, effect: h.Publish) -> bool:
        return (effect.job, effect.incarnation, effect.pipeline, effect.checkpoint) in self.identities

    def publish(self, effect: h.Publish) -> int:
        """Idempotent by the checkpoint's identity."""
        identity = (effect.job, effect.incarnation, effect.pipeline, effect.checkpoint)
        staged = self.staging.get((effect.job, effect.incarnation), {})
        if self.is_published(effect):
            return 0
        missing = self.missing(effect)
        assert not missing, f"{identity} names {missing}, which is not staged"
        self.identities.add(identity)
        pieces = [staged[piece.name] for piece in effect.staged]
        rows = [(*who[:4], number) for who, numbers in pieces for number in numbers]
        published = self.published.setdefault((effect.job, effect.incarnation), Counter())
        published.update(rows)
        self.twice += [row for row in rows if published[row] > 1]
        return len(rows)

    def missing(self, effect: h.Publish) -> list[str]:
        """What it names and nobody has."""
        staged = self.staging.get((effect.job, effect.incarnation), {})
        return [piece.name for piece in effect.staged if piece.name not in staged]

    def remove(self, job: str, incarnation: int) -> int:
        return len(self.staging.pop((job, incarnation), {}))

    def rows_of(self, job: Job) -> dict[tuple[int, int], set[int]]:
        """The numbers of the rows that each task has published."""
        found: dict[tuple[int, int], set[int]] = {}
        for _, _, pipeline, task, number in self.published.get(job, ()):
            found.setdefault((pipeline, task), set()).add(number)
        return found


@dataclass(slots=True)
class Loop:
    """A running attempt: reads rows in slices, stages them at checkpoints."""

    who: Identity
    position: int
    total: int  # rows of its source; -1 for one without end
    staged: int  # the position up to which its rows are in staging
    started: bool = False
    exhausted: bool = False
    stopping: str = ""
    stage: int = 0

    @classmethod
    def start(cls, effect: h.StartTask) -> Loop:
        who, begin = effect.who, int(effect.deploy.position or b"0")
        return cls(who, begin, sizes(effect.deploy.specification)[who.pipeline, who.task], begin)

    def read(self, count: int) -> None:
        end = self.position + count
        self.position = end if self.total < 0 or end < self.total else max(self.total, self.position)

    def take_unstaged(self) -> range:
        """The rows read since it was last asked."""
        rows, self.staged = range(self.staged, self.position), self.position
        return rows
