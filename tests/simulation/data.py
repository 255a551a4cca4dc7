"""The data plane of the simulation: sources with numbered rows, staging, and a sink that publishes by identity."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

from events.records import Staged
from workers import happenings as h
from workers.ledger import Identity

Row = tuple[str, int, int, int, int]  # job, incarnation, pipeline, task, number


@dataclass
class Data:
    """What is staged and what is published: both survive every process."""

    staging: dict[tuple[str, int], dict[str, list[Row]]] = field(default_factory=dict)
    published: Counter[Row] = field(default_factory=Counter)
    identities: set[tuple[str, int, int, int]] = field(default_factory=set)
    names: int = 0
    twice: list[Row] = field(default_factory=list)

    def stage(self, who: Identity, rows: list[Row]) -> tuple[Staged, ...]:
        if not rows:
            return ()
        self.names += 1
        name = f"{who.pipeline}-{who.task}-{who.attempt}-{self.names}"  # unique to the attempt
        self.staging.setdefault((who.job, who.incarnation), {})[name] = rows
        return (Staged(name=name, rows=len(rows), size=8 * len(rows)),)

    def publish(self, effect: h.Publish) -> int:
        """Idempotent by the checkpoint's identity."""
        identity = (effect.job, effect.incarnation, effect.pipeline, effect.checkpoint)
        staged = self.staging.get((effect.job, effect.incarnation), {})
        if identity in self.identities:
            return 0
        missing = [piece.name for piece in effect.staged if piece.name not in staged]
        assert not missing, f"{identity} names {missing}, which is not staged"
        self.identities.add(identity)
        rows = [row for piece in effect.staged for row in staged[piece.name]]
        self.published.update(rows)
        self.twice += [row for row in rows if self.published[row] > 1]
        return len(rows)

    def remove(self, job: str, incarnation: int) -> int:
        return len(self.staging.pop((job, incarnation), {}))


@dataclass
class Loop:
    """A running attempt: reads rows in slices, stages them at checkpoints."""

    who: Identity
    position: int
    total: int  # rows of its source; -1 for one without end
    unstaged: list[Row] = field(default_factory=list)
    started: bool = False
    exhausted: bool = False
    stopping: str = ""
    stage: int = 0

    @classmethod
    def start(cls, effect: h.StartTask) -> Loop:
        source = json.loads(effect.deploy.specification)["source"][0]
        position = int(effect.deploy.position or b"0")
        return cls(effect.who, position, source["options"]["rows"])

    def read(self, count: int) -> None:
        end = self.position + count if self.total < 0 else min(self.total, self.position + count)
        job, incarnation, pipeline, task, _ = self.who
        self.unstaged += [(job, incarnation, pipeline, task, n) for n in range(self.position, end)]
        self.position = end
