"""A fleet of coordinators and workers against brokers in Docker containers: three of which one is lost, and one with
SASL_SSL where every process has the rights of its role and no others. The oracle has the last word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from events.records import Stop
from events.topics import ensure_topics
from tests.containers.broker import BrokerContainer, Brokers, three_brokers
from tests.containers.clusters import (
    PASSWORDS,
    broker_with_roles,
    grant,
    leader_of_events,
    own_cluster_on,
    wait_until_in_sync,
)
from tests.logs import own_cluster
from tests.scenes import EAGER, a_scene, endless, finish, goes_on

pytestmark = pytest.mark.docker
LIMIT_S = 120.0


@pytest.fixture(scope="module")
def trio(kafka_image: str) -> Iterator[Brokers]:
    with three_brokers(kafka_image) as running:
        yield running


@pytest.mark.parametrize(
    ("harm", "heal"),
    [(BrokerContainer.kill, BrokerContainer.start_again), (BrokerContainer.pause, BrokerContainer.unpause)],
    ids=["killed", "paused"],
)
def test_a_fleet_goes_on_without_one_of_three_brokers(
    trio: Brokers, tmp_path: Path, harm: Callable[[BrokerContainer], None], heal: Callable[[BrokerContainer], None]
) -> None:
    """The one that leads the events. What runs is not touched, and the next leader finds everything, with it or not."""
    cluster = own_cluster(trio.bootstrap_servers, properties={"socket.timeout.ms": "1500"})
    with a_scene(trio.bootstrap_servers, tmp_path, cluster=cluster) as scene:
        endless(scene)
        victim = trio.node(leader_of_events(cluster))
        harm(victim)
        try:
            goes_on(scene, limit_s=LIMIT_S)
            assert leader_of_events(cluster) != victim.number, "another one leads"
            scene.kill_leader()
            goes_on(scene, limit_s=LIMIT_S)
        finally:
            heal(victim)
        wait_until_in_sync(cluster)
        goes_on(scene, limit_s=LIMIT_S)
        finish(scene)
        assert scene.starts("a") == [("w0", 1)]


@pytest.fixture(scope="module")
def secured(kafka_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with broker_with_roles(kafka_image, tmp_path_factory.mktemp("certificates")) as running:
        yield running


def test_a_fleet_lives_with_the_rights_of_its_roles(secured: Brokers, tmp_path: Path) -> None:
    """Taking over, losing a worker, cleaning up: nobody is refused anything."""
    cluster = own_cluster_on(secured)
    ensure_topics(cluster)
    for role in ("coordinator", "worker"):
        grant(cluster, role)
    coordinator, worker = (
        {"kafka.sasl.username": role, "kafka.sasl.password": PASSWORDS[role]} for role in ("coordinator", "worker")
    )
    with a_scene(secured.bootstrap_servers, tmp_path, cluster=cluster, coordinators=0, workers=0) as scene:
        scene.coordinator("c0", **EAGER, **coordinator)
        scene.coordinator("c1", **coordinator)
        scene.worker("w0", **worker)
        scene.ready()
        endless(scene, cleanup_delay_ms=100)
        assert scene.kill_leader(again=False).by == "c1"
        goes_on(scene)
        scene.workers["w0"].kill()
        scene.worker("w0", **worker)
        scene.until_runs("a/0/0", attempt=2)
        goes_on(scene)
        scene.send("a", Stop())
        scene.until_gone("a")
        assert scene.count("job/a", "FINISHED") == 1
        said = "".join(child.said() for child in scene.fleet.children)
        assert "refused us" not in said
        assert "AUTHORIZATION" not in said
