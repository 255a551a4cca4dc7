"""A worker whose Spark is a standalone cluster: executors are other processes, with directories of their own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from events.embedded import EmbeddedBroker
from tests.connectors.test_kafka_source import numbers_on_a_topic
from tests.jvm import QUICK
from tests.scenes import Scene
from tests.spark_cluster import HERE, SparkCluster, a_spark_cluster
from tests.spark_scene import LIMIT_S, SLOW, SparkJob, a_spark_scene, java_under

pytestmark = pytest.mark.broker
ROWS = 1000
CONF = {
    "spark.driver.host": HERE,
    "spark.driver.bindAddress": HERE,
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.extraJavaOptions": QUICK,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with a_spark_cluster(tmp_path_factory.mktemp("spark-cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def scene(broker: EmbeddedBroker, cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    settings = {f"worker.spark.conf.{name}": value for name, value in CONF.items()}
    directory = tmp_path_factory.mktemp("spark-scene")
    with a_spark_scene(broker.bootstrap_servers, directory, cluster.address, **settings) as made:
        yield made


def test_jobs_on_a_standalone_cluster(scene: Scene, cluster: SparkCluster, tmp_path: Path) -> None:
    """One that is cancelled lets the cores go, though its tasks would sleep for an hour; one whose rows are read by
    Python in an executor that is killed meanwhile has each of them once."""
    asleep = SparkJob(scene, "asleep", tmp_path / "asleep", 4)
    asleep.sleeps_until_cancelled()

    job = SparkJob(scene, "read", tmp_path / "out", ROWS)
    query = f"SELECT id, id % 2 AS part, {SLOW} AS slow FROM input"
    job.submit(numbers_on_a_topic(scene.cluster.bootstrap_servers, ROWS), query=query, partition_by=["part"])
    scene.until(job.being_written, "tasks on executors", LIMIT_S)
    killed = java_under(cluster.worker)
    os.kill(killed, signal.SIGKILL)
    job.finished()
    assert java_under(cluster.worker) not in (0, killed)
    asleep.tidy()
