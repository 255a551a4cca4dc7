"""One engine on Spark in the hand: specifications, identities, and an independent reader of what was written."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from events import records as r
from tests.logs import until
from workers import happenings as h
from workers.ledger import Identity
from workers.spark.engine import SparkEngine

LIMIT_S = 120.0
NAMES = (f"job-{number}" for number in itertools.count())


class Heard:
    """What an engine says, in order."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def __call__(self, it: Any) -> None:
        self.all.append(it)

    def of(self, who: Identity | None, *kinds: type[Any]) -> list[Any]:
        return [it for it in list(self.all) if isinstance(it, kinds) and (who is None or it.who == who)]

    def next(self, who: Identity | None, *kinds: type[Any], count: int = 1) -> Any:
        """The count-th of its kinds, waited for; or the crash that came instead."""

        def come() -> list[Any]:
            found = self.of(who, *kinds)
            crashed = [] if h.Crashed in kinds else self.of(who, h.Crashed) if who else []
            assert not crashed or len(found) >= count, crashed
            return found if len(found) >= count else []

        names = " or ".join(kind.__name__ for kind in kinds)
        return until(come, f"{count} {names}", LIMIT_S)[count - 1]


def source(name: str = "in", kind: str = "generator", parallelism: int = 1, **options: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "parallelism": parallelism, "options": options}


def transform(name: str, kind: str, *inputs: str, **options: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "from": list(inputs), "options": options}


def sink(path: Path, *inputs: str, name: str = "out", kind: str = "files", **options: Any) -> dict[str, Any]:
    given = {"path": str(path)} | options if kind == "files" else options
    return {"name": name, "kind": kind, "from": list(inputs) or ["in"], "options": given}


def job(sources: list[dict[str, Any]], sinks: list[dict[str, Any]], *transforms: dict[str, Any], **env: Any) -> str:
    return json.dumps({"env": env, "source": sources, "transform": list(transforms), "sink": sinks})


class Hand:
    """Does by hand what a worker's decisions would."""

    def __init__(self, engine: SparkEngine, body: str, name: str, incarnation: int = 1) -> None:
        self.engine, self.body, self.heard = engine, body, Heard()
        self._name, self._incarnation = name, incarnation

    def who(self, task: int = 0, attempt: int = 1) -> Identity:
        return Identity(self._name, self._incarnation, 0, task, attempt)

    def start(self, who: Identity, position: bytes = b"", checkpoint: int = 0) -> None:
        deploy = r.Deploy(specification=self.body, position=position, checkpoint=checkpoint)
        self.engine.start(who, deploy, self.heard)

    def stage(self, who: Identity, checkpoint: int = 1) -> h.Staged:
        before = len(self.heard.of(who, h.Staged))
        self.engine.stage(who, checkpoint)
        staged: h.Staged = self.heard.next(who, h.Staged, count=before + 1)
        return staged

    def run(self, who: Identity, position: bytes = b"", checkpoint: int = 1) -> h.Staged:
        """To the source's end, staged and stopped."""
        self.start(who, position, checkpoint - 1)
        self.heard.next(who, h.Exhausted)
        staged = self.stage(who, checkpoint)
        self.stop(who)
        return staged

    def stop(self, who: Identity) -> Any:
        self.engine.stop(who, "enough")
        return self.heard.next(who, h.Stopped, h.Crashed)

    def crash(self, who: Identity, position: bytes = b"", checkpoint: int = 0) -> h.Crashed:
        self.start(who, position, checkpoint)
        crashed: h.Crashed = self.heard.next(who, h.Crashed)
        return crashed

    def publish(self, *staged: r.Staged, checkpoint: int = 1, lease: bool = True) -> Any:
        effect = h.Publish(self._name, self._incarnation, 0, checkpoint, self.body, staged)
        answers, done = [], threading.Event()

        def say(it: Any) -> None:
            answers.append(it)
            done.set()

        self.engine.publish(effect, lambda: lease, say)
        assert done.wait(LIMIT_S)
        return answers[0]

    def remove(self) -> Any:
        answers, done = [], threading.Event()

        def say(it: Any) -> None:
            answers.append(it)
            done.set()

        self.engine.remove(h.RemoveStaging(self._name, self._incarnation, self.body), say)
        assert done.wait(LIMIT_S)
        return answers[0]


def hand(engine: SparkEngine, body: str) -> Hand:
    """With a job of its own."""
    return Hand(engine, body, next(NAMES))


def files_in(path: Path, ending: str = "parquet") -> list[Path]:
    """What is published."""
    return sorted(file for file in path.rglob(f"*.{ending}") if ".staging" not in file.parts)


def ids(path: Path, column: str = "id") -> Counter[int]:
    """By pyarrow, which knows nothing of Spark."""
    found: Counter[int] = Counter()
    for file in files_in(path):
        found.update(pq.ParquetFile(file).read(columns=[column]).column(column).to_pylist())
    return found
