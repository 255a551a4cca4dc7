"""Losses for real: a source's files gone under a checkpoint, and a worker that everybody believes dead."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.fleet import SPARK
from events.embedded import EmbeddedBroker
from events.records import Job
from tests.scenes import Scene, a_scene
from tests.spark_parts import source
from tests.spark_scene import LIMIT_S, SparkJob
from tests.test_spark_files import write

pytestmark = [pytest.mark.broker, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]
NAMES = (f"data-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def scene(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Workers are started again by the tests that kill them."""
    directory = tmp_path_factory.mktemp("spark-scene")
    settings = {"worker__engine": SPARK, "worker__spark__slice_ms": 300, "worker__spark__master": "local[2]"}
    with a_scene(broker.bootstrap_servers, directory, coordinators=1, **settings) as made:
        yield made


@pytest.fixture
def a_job(scene: Scene, tmp_path: Path) -> Callable[..., SparkJob]:
    return lambda rows, **env: SparkJob(scene, next(NAMES), tmp_path / "out", rows, env)


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


def test_K_a_worker_frozen_until_it_is_declared_dead(broker: EmbeddedBroker, tmp_path: Path) -> None:
    settings = {"worker__engine": SPARK, "worker__spark__slice_ms": 300, "worker__lease_ms": 4000,
                "coordinator__lease_ms": 5000}  # fmt: skip
    with a_scene(broker.bootstrap_servers, tmp_path, coordinators=1, workers=2, **settings) as scene:
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
