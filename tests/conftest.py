"""Fixtures that several test modules share: a shard, a broker and a Spark for the whole session, the Docker engine."""

from __future__ import annotations

import itertools
import logging
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from events import embedded
from events.broker_launch import JVM_VARIABLE
from events.recovery import now_ms
from tests.containers import engine as docker
from tests.containers import image
from tests.containers.broker import Brokers
from tests.jvm import QUICK, QUICK_SPARK, SPARK_OPTIONS
from tests.scenes import Scene
from tests.shard import Shard
from tests.spark_scene import SparkJob, a_spark_scene
from workers.engine import Surroundings
from workers.spark.engine import SparkEngine

os.environ.setdefault(JVM_VARIABLE, QUICK)
NAMES = (f"data-{number}" for number in itertools.count())


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """Commands that are run inside a test set up logging, on a stream that ends with the test."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
    for handler in [each for each in root.handlers if type(each) is logging.StreamHandler]:
        root.removeHandler(handler)


@pytest.fixture
def shard() -> Shard:
    """The core in the hand, with two workers."""
    made = Shard()
    made.worker("w1")
    made.worker("w2")
    return made


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.EmbeddedBroker]:
    """A broker that is there for the whole session. Tests that kill or configure one start their own."""
    state_dir = tmp_path_factory.mktemp("shared-broker")
    with embedded.EmbeddedBroker(state_dir) as running:
        yield running
    embedded.stop(state_dir)  # so that nothing writes there when pytest clears it away


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkEngine]:
    """Spark, once for the whole session: PySpark knows only one at a time in a process."""
    options = {
        "spark.master": "local[2]",
        "spark.conf": {"spark.driver.memory": "800m", SPARK_OPTIONS: QUICK},
        "slice_ms": 300,
        "allowed_modules": ("tests.spark_functions",),
    }
    made = SparkEngine(Surroundings("w1", "i", tmp_path_factory.mktemp("spark-worker"), now_ms, options=options))
    yield made
    made.close(10)


@pytest.fixture(scope="module")
def spark_scene(broker: embedded.EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with a_spark_scene(broker.bootstrap_servers, tmp_path_factory.mktemp("spark-scene"), **QUICK_SPARK) as made:
        yield made


@pytest.fixture
def spark_job(spark_scene: Scene, tmp_path: Path) -> Callable[..., SparkJob]:
    return lambda rows, **env: SparkJob(spark_scene, next(NAMES), tmp_path / "out", rows, env)


@pytest.fixture(scope="session")
def frail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.EmbeddedBroker]:
    """A broker that tests may stop and kill; each leaves it running."""
    state_dir = tmp_path_factory.mktemp("frail-broker")
    with embedded.EmbeddedBroker(state_dir) as running:
        yield running
    embedded.stop(state_dir)


@pytest.fixture(scope="session")
def docker_engine() -> None:
    """Tests that need the Docker engine ask for this: skipped where there is none, failed where there must be one."""
    if missing := docker.why_no_engine():
        if docker.is_required():
            pytest.fail(missing)
        pytest.skip(missing)
    docker.set_up_testcontainers()
    docker.remove_leftovers()


@pytest.fixture(scope="session")
def kafka_image(docker_engine: None) -> str:
    """The image that brokers in containers run from."""
    return image.kafka_image()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of few tests come first: their tests are the long ones, and a run of two at a time should not end with one
    that the other process waits for."""
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: tests[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows the logs of the containers that it used: they are gone afterwards."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        for used in item.funcargs.values():
            for node in used.nodes if isinstance(used, Brokers) else ():
                report.sections.append((f"log of broker {node.number} in its container", node.log_tail()))
    return report
