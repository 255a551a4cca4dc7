"""Losses for real: a source's files gone under a checkpoint, no room left under a sink, and a worker that everybody
believes dead."""

from __future__ import annotations

import errno
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from events.embedded import EmbeddedBroker
from events.records import Job, TaskFailed
from tests.connectors.parts import SPARK_SOCKETS
from tests.jvm import QUICK_SPARK
from tests.scenes import Scene
from tests.spark_parts import ids, source
from tests.spark_scene import LIMIT_S, SparkJob, a_spark_scene, again
from tests.test_spark_files import write

pytestmark = [pytest.mark.broker, SPARK_SOCKETS]
NO_SPACE = "No space left on device"


class Disk:
    """A file system of a few megabytes that somebody else fills up."""

    def __init__(self, path: Path) -> None:
        self.path, self._filler = path, path / "filler"

    def fill(self) -> None:
        """To the last byte; again whenever somebody has let some go."""
        with self._filler.open("ab", buffering=0) as file:
            while True:
                try:
                    file.write(bytes(4096))
                except OSError as error:
                    assert error.errno == errno.ENOSPC
                    return

    def free(self) -> None:
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "detent-test", path], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    yield Disk(path)
    subprocess.run(["umount", "--lazy", path], check=True)


def test_K_Z3_files_removed_under_a_checkpoint(spark_scene: Scene, spark_job: Any, tmp_path: Path) -> None:
    for number in range(30):
        write(tmp_path / f"data/f{number:02}.parquet", number * 10, part=range(10))
    job = spark_job(300)
    job.submit(source("in", "files", path=str(tmp_path / "data"), slice_files=1), partition_by=["part"])
    job.committed()
    spark_scene.workers["w0"].kill()
    assert spark_scene.look.state(f"job/{job.name}") == "RUNNING"
    (tmp_path / "data/f29.parquet").unlink()
    again(spark_scene)
    spark_scene.look.until_job(job.name, "FAILED", limit_s=LIMIT_S)
    failed = spark_scene.event(f"job/{job.name}").state
    assert isinstance(failed, Job)
    assert "can't go on from position" in failed.reason
    assert "of checkpoint" in failed.reason
    assert "files that were left to read" in failed.reason
    job.tidy()


def refused(scene: Scene, disk: Disk, job: str) -> bool:
    """The disk stays full until a task has failed."""
    disk.fill()
    return any(NO_SPACE in report.happening.reason for report in scene.said(job, TaskFailed))


@pytest.mark.parametrize("by", ["spark", "pyarrow"])
def test_K_a_disk_that_is_full_for_a_while(spark_scene: Scene, disk: Disk, by: str) -> None:
    """Rows are written by Spark where they are many or partitioned, by pyarrow where they are few."""
    restart = {"retries": 100, "backoff_ms": 200, "max_backoff_ms": 500}
    job = SparkJob(spark_scene, f"full-{by}", disk.path / "out", 900, {"restart": restart})
    partitioned = {"partition_by": ["part"]} if by == "spark" else {}
    job.submit(source={"rate": 300, "columns": {"part": "id % 2"}}, **partitioned)
    job.committed()
    spark_scene.until(lambda: refused(spark_scene, disk, job.name), "a task that has no space", LIMIT_S)
    assert spark_scene.look.state(f"job/{job.name}") in ("RUNNING", "SCHEDULED")  # before or while the task is retried
    disk.free()
    job.finished()


def test_K_a_disk_that_stays_full(spark_scene: Scene, disk: Disk) -> None:
    """The job fails, saying what and where; its staging goes though nothing can be written; what is committed stays."""
    restart = {"retries": 2, "backoff_ms": 100, "max_backoff_ms": 200}
    job = SparkJob(spark_scene, "full-for-ever", disk.path / "out", -1, {"restart": restart})
    job.submit(source={"rate": 300})
    job.committed()
    spark_scene.until(lambda: disk.fill() or spark_scene.look.state(f"job/{job.name}") == "FAILED", "its end", LIMIT_S)
    failed = spark_scene.event(f"job/{job.name}").state
    assert isinstance(failed, Job)
    assert NO_SPACE in failed.reason
    assert str(job.out) in failed.reason
    job.tidy()
    there = ids(job.out)
    assert there
    assert there == Counter(range(len(there)))


def test_K_a_worker_frozen_until_it_is_declared_dead(broker: EmbeddedBroker, tmp_path: Path) -> None:
    settings = QUICK_SPARK | {"worker__lease_ms": 4000, "coordinator__lease_ms": 5000}
    with a_spark_scene(broker.bootstrap_servers, tmp_path, workers=2, **settings) as scene:
        job = SparkJob(scene, "frozen", tmp_path / "data/out", 6000)
        job.submit(source={"rate": 300})
        job.committed()
        task = scene.event(f"task/{job.name}/0/0")
        first = scene.workers[task.state.worker]  # type: ignore[union-attr]
        first.freeze()
        scene.until(lambda: scene.event(f"task/{job.name}/0/0").attempt > task.attempt, "another attempt", LIMIT_S)
        first.wake()
        job.finished()
        assert first.alive
