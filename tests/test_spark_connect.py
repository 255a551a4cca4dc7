"""A worker whose Spark is a Spark Connect server; skipped where its packages (extra `connect`) are not installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from events.embedded import EmbeddedBroker
from tests.connectors.test_kafka_source import numbers_on_a_topic
from tests.scenes import Scene
from tests.spark_cluster import a_connect_server
from tests.spark_scene import SparkJob, a_spark_scene

for package in ("grpc", "grpc_status", "google.rpc", "pandas", "zstandard"):
    pytest.importorskip(package, reason=f"Spark Connect needs {package}, which is not installed (extra: connect)")
pytestmark = pytest.mark.broker
ROWS = 1000


@pytest.fixture(scope="module")
def scene(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with (
        a_connect_server(tmp_path_factory.mktemp("spark-connect")) as address,
        a_spark_scene(broker.bootstrap_servers, tmp_path_factory.mktemp("spark-scene"), address) as made,
    ):
        yield made


def test_jobs_on_a_connect_server(scene: Scene, tmp_path: Path) -> None:
    """One that is cancelled lets the cores go, though its tasks would sleep for an hour; one whose rows are read by
    Python has each of them once, written by Spark and written here."""
    asleep = SparkJob(scene, "asleep", tmp_path / "asleep", 4)
    asleep.sleeps_until_cancelled()

    partitioned = SparkJob(scene, "partitioned", tmp_path / "partitioned", ROWS)
    query = "SELECT id, id % 2 AS part FROM input"
    partitioned.submit(numbers_on_a_topic(scene.cluster.bootstrap_servers, ROWS), query=query, partition_by=["part"])
    plain = SparkJob(scene, "plain", tmp_path / "plain", ROWS)
    plain.submit(source={"rate": 500}, query="SELECT id FROM input")
    for job in (partitioned, plain):
        job.finished()
    asleep.tidy()
