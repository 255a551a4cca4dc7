"""A streaming job on Spark for a long time, without faults: memory of worker and JVM is sampled, and must not grow; the
ids of its checkpoints must follow each other without a gap; every row is there once. Used by tests/soak.py.

A slope is the median of those between all pairs of samples after a warm-up (Theil and Sen's), in MB an hour: a sample
that is off by far does not move it. The heap is what is alive of it, after a collection that is asked for now and then.
"""

from __future__ import annotations

import itertools
import re
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.fleet import resident_mb
from events.embedded import EmbeddedBroker
from events.java import find_java
from events.records import Checkpoint, Stop
from tests.scenes import Scene
from tests.spark_parts import files_in
from tests.spark_scene import LIMIT_S, SparkJob, a_spark_scene, java_of

SETTINGS: dict[str, object] = {
    "worker.spark.conf.spark.driver.memory": "512m",
    # The heap is as large from the beginning as it ever will be: what else grows is seen.
    "worker.spark.conf.spark.driver.extraJavaOptions": "-Xms512m -XX:+AlwaysPreTouch",
}
SAMPLE_S, COLLECT_S, TELL_S = 2.0, 30.0, 60.0
WARM_UP = 0.3  # of the time
RATE = 500.0
MB = 1024.0 * 1024.0


@dataclass
class Samples:
    """Of one thing, in MB, with the seconds since the beginning."""

    of: list[tuple[float, float]] = field(default_factory=list)

    def add(self, at_s: float, mb: float) -> None:
        if mb:
            self.of.append((at_s, mb))

    def told(self) -> dict[str, float]:
        warm = [sample for sample in self.of if sample[0] >= WARM_UP * self.of[-1][0]] if self.of else []
        if len(warm) < 3:
            return {}
        slope = statistics.median((b - a) / (at_b - at_a) for (at_a, a), (at_b, b) in itertools.combinations(warm, 2))
        return {
            "first_mb": round(warm[0][1], 1),
            "last_mb": round(warm[-1][1], 1),
            "mb_per_hour": round(3600 * slope, 2),
        }


@dataclass
class Streaming:
    scene: Scene
    job: SparkJob
    say: Callable[[str], None]
    memory: dict[str, Samples] = field(default_factory=lambda: {n: Samples() for n in ("worker", "jvm", "heap")})
    ids: list[int] = field(default_factory=list)  # of checkpoints, as they are committed

    def run(self, minutes: float) -> None:
        self.job.submit(source={"rate": RATE}, query="SELECT id, id % 7 AS seven FROM input")
        began = time.monotonic()
        sample_at = collect_at = tell_at = began
        while (now := time.monotonic()) < began + 60 * minutes:
            self.look()
            if now >= sample_at:
                sample_at = now + SAMPLE_S
                self._sample(now - began)
            if now >= collect_at:
                collect_at = now + COLLECT_S
                self.memory["heap"].add(now - began, live_heap_mb(java_of(self._worker)))
            if now >= tell_at:
                tell_at = now + TELL_S
                told = ", ".join(
                    f"{name} {samples.of[-1][1]:.0f} MB" for name, samples in self.memory.items() if samples.of
                )
                self.say(f"streaming: {len(self.ids)} checkpoints; {told}")
            time.sleep(0.02)
        self.scene.send(self.job.name, Stop())
        self.scene.look.until_job(self.job.name, "FINISHED", limit_s=LIMIT_S)
        self.look()

    def look(self) -> None:
        """Nothing else of the log is kept: a long run is a long log."""
        look = self.scene.look
        look.follow()
        for seen in look.seen:
            event = seen.event
            committed = seen.key == f"checkpoint/{self.job.name}/0" and event is not None and event.to == "COMMITTED"
            if committed and event is not None and isinstance(event.state, Checkpoint):
                self.ids.append(event.state.id)
        look.seen[:] = [seen for seen in look.seen if seen.key.startswith("command/")]

    def wrong(self) -> list[str]:
        """When the job is over."""
        found = []
        if self.ids != list(range(1, len(self.ids) + 1)):
            gap = next(
                n for n, (got, due) in enumerate(zip(self.ids, range(1, len(self.ids) + 1), strict=True)) if got != due
            )
            found.append(f"streaming: checkpoint {self.ids[gap]} was committed after {self.ids[gap - 1] if gap else 0}")
        rows = pa.chunked_array([pq.ParquetFile(f).read(columns=["id"]).column("id") for f in files_in(self.job.out)])
        ends = pc.min_max(rows).as_py()
        distinct = pc.count_distinct(rows).as_py()
        if (ends["min"], ends["max"], distinct) != (0, len(rows) - 1, len(rows)):
            found.append(f"streaming: {len(rows)} rows, {distinct} different ones, from {ends['min']} to {ends['max']}")
        return found + [f"streaming: {finding}" for finding in self.scene.verdict()]

    def told(self, minutes: float) -> dict[str, Any]:
        memory = {name: samples.told() for name, samples in self.memory.items()}
        return {"minutes": minutes, "checkpoints": len(self.ids), "memory": memory}

    @property
    def _worker(self) -> Any:
        return self.scene.workers["w0"]

    def _sample(self, at_s: float) -> None:
        self.memory["worker"].add(at_s, resident_mb(self._worker.process.pid))
        self.memory["jvm"].add(at_s, resident_mb(java_of(self._worker)))


def live_heap_mb(process: int) -> float:
    """0 where nobody can tell: a JVM without a JDK, or none at all."""
    jcmd = find_java().executable.resolve().with_name("jcmd")
    if not process or not jcmd.exists():
        return 0.0
    said = subprocess.run(
        [jcmd, str(process), "GC.class_histogram"], capture_output=True, text=True, check=False
    ).stdout
    found = re.search(r"^Total\s+\d+\s+(\d+)", said, re.MULTILINE)
    return int(found.group(1)) / MB if found else 0.0


def stream(directory: Path, minutes: float, say: Callable[[str], None]) -> tuple[dict[str, Any], list[str]]:
    """What was measured, and what was wrong."""
    with (
        EmbeddedBroker(directory / "broker") as broker,
        a_spark_scene(broker.bootstrap_servers, directory, judged=False, **SETTINGS) as scene,
    ):
        streaming = Streaming(
            scene, SparkJob(scene, "stream", directory / "stream", -1, {"cleanup_delay_ms": 60_000}), say
        )
        streaming.run(minutes)
        return streaming.told(minutes), streaming.wrong()


def table(told: dict[str, Any]) -> str:
    lines = [f"streaming, {told['minutes']:g} minutes: {told['checkpoints']} checkpoints without a fault"]
    for name, of in told["memory"].items():
        what = (
            f"{of['first_mb']:8.1f} → {of['last_mb']:.1f} MB  {of['mb_per_hour']:+.1f} MB/hour"
            if of
            else "      not known"
        )
        lines.append(f"  {name:8s}{what}")
    return "\n".join(lines) + "\n"
