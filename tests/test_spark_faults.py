"""Faults for real: coordinator, worker and Spark as processes, killed and frozen where it hurts. After each, an
independent reader finds every row once, staging is empty after cleanup, and the oracle finds the log legal."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.fleet import SPARK
from events.embedded import EmbeddedBroker
from events.records import TaskFailed
from tests.jvm import QUICK_SPARK
from tests.scenes import Scene, a_scene
from tests.spark_parts import files_in
from tests.spark_scene import LIMIT_S, SLOW, SparkJob, java_of, refusing, strike

pytestmark = [pytest.mark.broker, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]
NAMES = (f"data-{number}" for number in itertools.count())


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


def again(scene: Scene, name: str = "w0") -> None:
    scene.fleet.ready(scene.worker(name))


def test_a_job_on_spark_from_its_submission_to_its_cleanup(scene: Scene, a_job: Any) -> None:
    job = a_job(300_000)
    job.submit(parallelism=2)
    job.finished()


def test_K_the_worker_dies_in_the_middle_of_a_slice(scene: Scene, a_job: Any) -> None:
    job = a_job(3000)
    job.submit(source={"rate": 400, "columns": {"part": "id % 2", "slow": SLOW}}, partition_by=["part"])
    job.committed()
    strike(scene.workers["w0"], job.being_written)
    assert job.being_written()
    again(scene)
    job.finished()


def test_K_the_worker_dies_between_acknowledgement_and_commit(scene: Scene, a_job: Any) -> None:
    job = a_job(3000)
    job.submit(source={"rate": 300, "columns": {"slow": SLOW}})
    job.committed()
    leader = scene.led()
    try:
        leader.freeze()
        while not job.in_flight():  # another moment
            leader.wake()
            scene.until(job.in_flight, "a checkpoint in flight")
            leader.freeze()
        pending = job.in_flight()
        scene.until(lambda: job.acked() >= pending, "its acknowledgement")
        assert job.in_flight() == pending
        scene.workers["w0"].kill()
        assert not [file for file in files_in(job.out) if f"-0-{pending}-0-" in file.name]
    finally:
        leader.wake()
    again(scene)
    job.finished()
    assert [file for file in files_in(job.out) if f"-0-{pending}-0-" in file.name], "what was acknowledged is published"


def test_K_the_worker_dies_in_the_middle_of_publishing(scene: Scene, a_job: Any) -> None:
    job = a_job(2000)
    job.submit(source={"rate": 300, "columns": {"part": "id % 150"}}, partition_by=["part"])
    strike(scene.workers["w0"], job.half_published)
    assert job.half_published()
    again(scene)
    job.finished()


def test_K_spark_dies_under_the_worker(scene: Scene, a_job: Any) -> None:
    job = a_job(3000)
    job.submit(source={"rate": 400})
    job.committed()
    worker = scene.workers["w0"]
    before = java_of(worker)
    assert before
    os.kill(before, signal.SIGKILL)
    job.finished()
    assert worker.alive
    assert java_of(worker) not in (0, before)
    assert any("Spark is gone" in report.happening.reason for report in scene.said(job.name, TaskFailed))


def test_K_coordinator_and_worker_die_together(scene: Scene, a_job: Any) -> None:
    job = a_job(3000)
    job.submit(source={"rate": 400})
    job.committed()
    leader = scene.led()
    scene.workers["w0"].kill()
    leader.kill()
    scene.coordinator(leader.name)
    again(scene)
    job.finished()


@pytest.mark.parametrize("well_again", [True, False])
def test_K_a_sink_that_refuses(scene: Scene, a_job: Any, well_again: bool) -> None:
    """Its directory is gone, and something else is in its place."""
    restart = {"retries": 30 if well_again else 2, "backoff_ms": 200, "max_backoff_ms": 500}
    job = a_job(2000, restart=restart)
    job.submit(source={"rate": 300})
    job.committed()
    with refusing(job.out):
        scene.until(lambda: scene.said(job.name, TaskFailed), "a failure")
        if not well_again:
            scene.look.until_job(job.name, "FAILED", limit_s=LIMIT_S)
    if well_again:
        job.finished()
        return
    job.tidy()
    assert files_in(job.out), "what was committed stays"
