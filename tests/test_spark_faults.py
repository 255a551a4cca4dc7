"""Faults for real: coordinator, worker and Spark as processes, killed and frozen where it hurts. After each, an
independent reader finds every row once, staging is empty after cleanup, and the oracle finds the log legal."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from events.records import TaskFailed
from tests.connectors.parts import SPARK_SOCKETS
from tests.scenes import Scene
from tests.spark_parts import files_in
from tests.spark_scene import LIMIT_S, SLOW, again, java_of, refusing, strike

pytestmark = [pytest.mark.broker, SPARK_SOCKETS]


def test_a_job_on_spark_from_its_submission_to_its_cleanup(spark_scene: Scene, spark_job: Any) -> None:
    job = spark_job(300_000)
    job.submit(parallelism=2)
    job.finished()


def test_K_the_worker_dies_in_the_middle_of_a_slice(spark_scene: Scene, spark_job: Any) -> None:
    job = spark_job(3000)
    job.submit(source={"rate": 400, "columns": {"part": "id % 2", "slow": SLOW}}, partition_by=["part"])
    job.committed()
    strike(spark_scene.workers["w0"], job.being_written)
    assert job.being_written()
    again(spark_scene)
    job.finished()


def test_K_the_worker_dies_between_acknowledgement_and_commit(spark_scene: Scene, spark_job: Any) -> None:
    job = spark_job(3000)
    job.submit(source={"rate": 300, "columns": {"slow": SLOW}})
    job.committed()
    leader = spark_scene.led()
    try:
        leader.freeze()
        while not job.in_flight():  # another moment
            leader.wake()
            spark_scene.until(job.in_flight, "a checkpoint in flight")
            leader.freeze()
        pending = job.in_flight()
        spark_scene.until(lambda: job.acked() >= pending, "its acknowledgement")
        assert job.in_flight() == pending
        spark_scene.workers["w0"].kill()
        assert not [file for file in files_in(job.out) if f"-0-{pending}-0-" in file.name]
    finally:
        leader.wake()
    again(spark_scene)
    job.finished()
    assert [file for file in files_in(job.out) if f"-0-{pending}-0-" in file.name], "what was acknowledged is published"


def test_K_the_worker_dies_in_the_middle_of_publishing(spark_scene: Scene, spark_job: Any) -> None:
    job = spark_job(2000)
    job.submit(source={"rate": 300, "columns": {"part": "id % 150"}}, partition_by=["part"])
    strike(spark_scene.workers["w0"], job.half_published)
    assert job.half_published()
    again(spark_scene)
    job.finished()


def test_K_spark_dies_under_the_worker(spark_scene: Scene, spark_job: Any) -> None:
    job = spark_job(3000)
    job.submit(source={"rate": 400})
    job.committed()
    worker = spark_scene.workers["w0"]
    before = java_of(worker)
    assert before
    os.kill(before, signal.SIGKILL)
    job.finished()
    assert worker.alive
    assert java_of(worker) not in (0, before)
    assert any("Spark is gone" in report.happening.reason for report in spark_scene.said(job.name, TaskFailed))


def test_K_coordinator_and_worker_die_together(spark_scene: Scene, spark_job: Any) -> None:
    job = spark_job(3000)
    job.submit(source={"rate": 400})
    job.committed()
    leader = spark_scene.led()
    spark_scene.workers["w0"].kill()
    leader.kill()
    spark_scene.coordinator(leader.name)
    again(spark_scene)
    job.finished()


@pytest.mark.parametrize("well_again", [True, False])
def test_K_a_sink_that_refuses(spark_scene: Scene, spark_job: Any, well_again: bool) -> None:
    """Its directory is gone, and something else is in its place."""
    restart = {"retries": 30 if well_again else 2, "backoff_ms": 200, "max_backoff_ms": 500}
    job = spark_job(2000, restart=restart)
    job.submit(source={"rate": 300})
    job.committed()
    with refusing(job.out):
        spark_scene.until(lambda: spark_scene.said(job.name, TaskFailed), "a failure")
        if not well_again:
            spark_scene.look.until_job(job.name, "FAILED", limit_s=LIMIT_S)
    if well_again:
        job.finished()
        return
    job.tidy()
    assert files_in(job.out), "what was committed stays"
