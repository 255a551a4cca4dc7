"""Losses for real: a source's files gone under a checkpoint, no room left under a sink, and a worker that everybody
believes dead."""

from __future__ import annotations

import errno
import itertools
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.fleet import SPARK
from events.embedded import EmbeddedBroker
from events.records import Job, TaskFailed
from tests.jvm import QUICK_SPARK
from tests.scenes import Scene, a_scene
from tests.spark_parts import ids, source
from tests.spark_scene import LIMIT_S, SparkJob
from tests.test_spark_files import write

pytestmark = [pytest.mark.broker, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]
NAMES = (f"data-{number}" for number in itertools.count())
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


@pytest.fixture(scope="module")
def scene(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Workers are started again by the tests that kill them."""
    directory = tmp_path_factory.mktemp("spark-scene")
    settings = {"worker__engine": SPARK, "worker__spark__slice_ms": 300, "worker__spark__master": "local[2]"}
    with a_scene(broker.bootstrap_servers, directory, coordinators=1, **settings, **QUICK_SPARK) as made:
        yield made


@pytest.fixture
def a_job(scene: Scene, tmp_path: Path) -> Callable[..., SparkJob]:
    return lambda rows, **env: SparkJob(scene, next(NAMES), tmp_path / "out", rows, env)


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


def again(scene: Scene, name: str = "w0") -> None:
    scene.fleet.ready(scene.worker(name))


def test_K_Z3_files_removed_under_a_checkpoint(scene: Scene, a_job: Any, tmp_path: Path) -> None:
    for number in range(30):
        write(tmp_path / f"data/f{number:02}.parquet", number * 10, part=range(10))
    job = a_job(300)
    job.submit(source("in", "files", path=str(tmp_path / "data"), slice_files=1), partition_by=["part"])
    job.committed()
    scene.workers["w0"].kill()
    assert scene.look.state(f"job/{job.name}") == "RUNNING"
    (tmp_path / "data/f29.parquet").unlink()
    again(scene)
    scene.look.until_job(job.name, "FAILED", limit_s=LIMIT_S)
    failed = scene.event(f"job/{job.name}").state
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
def test_K_a_disk_that_is_full_for_a_while(scene: Scene, disk: Disk, by: str) -> None:
    """Rows are written by Spark where they are many or partitioned, by pyarrow where they are few."""
    restart = {"retries": 100, "backoff_ms": 200, "max_backoff_ms": 500}
    job = SparkJob(scene, f"full-{by}", disk.path / "out", 900, {"restart": restart})
    partitioned = {"partition_by": ["part"]} if by == "spark" else {}
    job.submit(source={"rate": 300, "columns": {"part": "id % 2"}}, **partitioned)
    job.committed()
    scene.until(lambda: refused(scene, disk, job.name), "a task that has no space", LIMIT_S)
    assert scene.look.state(f"job/{job.name}") == "RUNNING"
    disk.free()
    job.finished()


def test_K_a_disk_that_stays_full(scene: Scene, disk: Disk) -> None:
    """The job fails, saying what and where; its staging goes though nothing can be written; what is committed stays."""
    restart = {"retries": 2, "backoff_ms": 100, "max_backoff_ms": 200}
    job = SparkJob(scene, "full-for-ever", disk.path / "out", -1, {"restart": restart})
    job.submit(source={"rate": 300})
    job.committed()
    scene.until(lambda: disk.fill() or scene.look.state(f"job/{job.name}") == "FAILED", "its end", LIMIT_S)
    failed = scene.event(f"job/{job.name}").state
    assert isinstance(failed, Job)
    assert NO_SPACE in failed.reason
    assert str(job.out) in failed.reason
    job.tidy()
    there = ids(job.out)
    assert there
    assert there == Counter(range(len(there)))


def test_K_a_worker_frozen_until_it_is_declared_dead(broker: EmbeddedBroker, tmp_path: Path) -> None:
    settings = {"worker__engine": SPARK, "worker__spark__slice_ms": 300, "worker__lease_ms": 4000,
                "coordinator__lease_ms": 5000}  # fmt: skip
    with a_scene(broker.bootstrap_servers, tmp_path, coordinators=1, workers=2, **settings, **QUICK_SPARK) as scene:
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
