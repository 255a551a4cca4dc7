"""A fleet on Spark that is struck: workers with real Spark, and jobs whose rows are read back by pyarrow."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.fleet import LIBC, SPARK, Child
from events.records import Cancel, CheckpointAcked, Submit
from tests.scenes import ENV, Scene, a_scene
from tests.spark_parts import ids, sink, source, transform

LIMIT_S = 120.0
AT_FDCWD, RENAME_EXCHANGE = -100, 2
SLOW = "java_method('java.lang.Thread', 'sleep', 2L)"  # for each row


@contextmanager
def a_spark_scene(kafka: str, directory: Path, master: str = "local[2]", **settings: Any) -> Iterator[Scene]:
    """With one coordinator. Workers are started again by the tests that kill them."""
    spark = {"worker__engine": SPARK, "worker__spark__slice_ms": 300, "worker__spark__master": master}
    with a_scene(kafka, directory, coordinators=1, **spark, **settings) as made:
        yield made


def again(scene: Scene, name: str = "w0") -> None:
    """Start a worker that was killed."""
    scene.fleet.ready(scene.worker(name))


@dataclass
class SparkJob:
    """A job from numbered rows to files."""

    scene: Scene
    name: str
    out: Path
    rows: int
    env: dict[str, Any] = field(default_factory=dict)

    def submit(self, of: dict[str, Any] | None = None, parallelism: int = 1, query: str = "", **options: Any) -> None:
        given = of or source(rows=self.rows, parallelism=parallelism, **options.pop("source", {}))
        env = ENV | {"cleanup_delay_ms": 500} | self.env
        steps = [transform("between", "sql", "in", query=query)] if query else []
        sinks = [sink(self.out, "between" if query else "in", **options)]
        body = {"env": env, "source": [given], "transform": steps, "sink": sinks}
        self.scene._send(self.name, Submit(specification=json.dumps(body)))

    def sleeps_until_cancelled(self) -> None:
        """Its tasks would sleep for an hour; it is cancelled when Spark has begun with them."""
        hour = "java_method('java.lang.Thread', 'sleep', 3600000L)"
        self.submit(source={"columns": {"hour": hour}}, parallelism=2, partition_by=["hour"])
        self.scene.until(self.being_written, "tasks of Spark", LIMIT_S)
        self.scene.send(self.name, Cancel())
        self.scene.until(lambda: self.scene.count(f"job/{self.name}", "CANCELED"), "it to be CANCELED", LIMIT_S)

    # What is there ---------------------------------------------------------------------------------------------------

    @property
    def staging(self) -> list[Path]:
        """Pieces."""
        return [path for path in self.out.glob(".staging/*/*") if path.is_dir()]

    def being_written(self) -> bool:
        return any("_temporary" in folders for _, folders, _ in os.walk(self.out / ".staging"))

    def half_published(self) -> bool:
        """A piece of which some files are out and some are not."""
        staged, out = set(), []
        for parent, _, names in os.walk(self.out):  # tolerates what goes meanwhile
            inside = Path(parent).relative_to(self.out).parts
            data = [name for name in names if name.endswith(".parquet")]
            if inside[:1] != (".staging",):
                out += data
            elif data and len(inside) > 2 and "_temporary" not in inside:
                staged.add(inside[2])
        return any(piece in name for name in out for piece in staged)

    def committed(self, at_least: int = 1) -> int:
        return self.scene.until_committed(self.name, at_least)

    def in_flight(self) -> int:
        """The checkpoint that is triggered and neither completed nor given up; 0 for none."""
        self.scene.look.follow()
        pending = self.scene.checkpoint(self.name, "pending")
        triggered = self.scene.look.state(f"pending/{self.name}/0") == "TRIGGERED"
        return pending.id if pending is not None and triggered else 0

    def acked(self) -> int:
        """The newest checkpoint that the worker has acknowledged."""
        said = self.scene.said(self.name, CheckpointAcked)
        return max((report.happening.checkpoint for report in said), default=0)  # type: ignore[union-attr]

    # The verdict -----------------------------------------------------------------------------------------------------

    def finished(self) -> None:
        """It ends well, with every row once; and nothing is left of it in staging."""
        # It may be cleaned up by the time that somebody looks.
        key = f"job/{self.name}"
        self.scene.until(lambda: self.scene.count(key, "FINISHED"), f"{self.name} to be FINISHED", LIMIT_S)
        self.whole()
        self.tidy()

    def whole(self) -> None:
        found = ids(self.out)
        assert sum(found) == self.rows * (self.rows - 1) // 2
        assert found == Counter(range(self.rows))

    def tidy(self) -> None:
        self.scene.until_gone(self.name)
        assert not [path for path in self.out.glob(".staging/*") if path.exists()]


def java_of(worker: Child) -> int:
    """The JVM under a worker; 0 while there is none."""
    return java_under(worker.process.pid)


def java_under(process: int) -> int:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        if "(java)" in text and int(text.rpartition(")")[2].split()[1]) == process:
            return int(stat.parent.name)
    return 0


def exchange(one: Path, other: Path) -> None:
    """Two names change places in one step: nobody finds nothing there."""
    if LIBC.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        raise OSError(f"{one} and {other} could not be exchanged")


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """A sink's directory is gone meanwhile, and something else is in its place."""
    aside = path.with_name(f"{path.name}.aside")
    aside.touch()
    exchange(path, aside)
    yield
    exchange(path, aside)
    aside.unlink()


def strike(worker: Child, window: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Kill -9 while something is so: frozen first, to see that it still is."""
    deadline = time.monotonic() + limit_s
    while True:
        while not window():
            assert time.monotonic() < deadline, "the window never came"
        worker.freeze()
        jvm = java_of(worker)
        if jvm:
            os.kill(jvm, signal.SIGSTOP)
        if window():
            worker.kill()
            if jvm:
                os.kill(jvm, signal.SIGCONT)  # it sees that the worker is gone, and goes
            return
        if jvm:
            os.kill(jvm, signal.SIGCONT)
        worker.wake()
