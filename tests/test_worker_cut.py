"""A worker that the network cuts off: it stops its own tasks when its lease is over, publishes nothing after that, and
goes on when Kafka is back."""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from events import records as r
from events.cluster import Cluster
from events.embedded import EmbeddedBroker
from events.topics import ensure_topics
from tests.kafka_worker import DEPLOY, Puppet, Script, inside, outside, who
from tests.logs import own_cluster, until
from tests.proxy import Proxy, proxied_broker
from workers import happenings as h

pytestmark = pytest.mark.broker
LOG = logging.getLogger(__name__)
LEASE_MS = 3000
CUTS: list[Callable[[Proxy], None]] = [Proxy.hold, Proxy.refuse]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedBroker, Proxy]]:
    with proxied_broker(tmp_path_factory.mktemp("proxied")) as made:
        yield made


@pytest.fixture
def proxy(network: tuple[EmbeddedBroker, Proxy]) -> Iterator[Proxy]:
    yield network[1]
    network[1].heal()


@pytest.fixture
def script(network: tuple[EmbeddedBroker, Proxy]) -> Iterator[Script]:
    """A coordinator that is never cut off."""
    cluster = own_cluster(network[0].bootstrap_servers)
    ensure_topics(cluster)
    made = Script(cluster)
    yield made
    made.close()


@pytest.fixture
def cluster(script: Script, proxy: Proxy) -> Cluster:
    """The same cluster as the worker sees it."""
    return replace(script.cluster, bootstrap_servers=proxy.address)


def test_all_of_the_workers_traffic_goes_through_the_proxy(
    cluster: Cluster, script: Script, proxy: Proxy, tmp_path: Path
) -> None:
    """Or the tests below would prove nothing."""
    with inside(cluster, tmp_path, Puppet()) as worker:
        script.heard()
        proxy.hold()
        until(lambda: worker.service.metrics.silent._value.get() > 1.0, "silence")
        script.listen()
        known = len(script.beats)
        until(lambda: worker.service.metrics.silent._value.get() > 2.0, "silence")
        script.listen()
        assert len(script.beats) == known
        proxy.heal()
        script.heard()


@pytest.mark.parametrize("cut", CUTS, ids=["held", "refused"])
def test_B7_a_worker_that_is_cut_off_stops_its_tasks_within_its_lease(
    cluster: Cluster, script: Script, proxy: Proxy, tmp_path: Path, cut: Callable[[Proxy], None]
) -> None:
    puppet = Puppet()
    commit = r.CommitCheckpoint(checkpoint=1, specification="{}", staged=())
    with inside(cluster, tmp_path, puppet, lease_ms=LEASE_MS) as worker:
        script.heard()
        script.order(DEPLOY)
        script.said(r.TaskRunning)
        script.order(commit, who(task=-1, attempt=0))
        until(lambda: puppet.publications, "the publication")
        _, may_publish, say = puppet.publications[0]
        assert may_publish()
        lease = script.heard(lambda beat: bool(beat.tasks)).lease  # it runs, and is heard, right before
        cut(proxy)
        began = time.monotonic()
        until(lambda: "stop 0/1" in puppet.done, "the end of the task")
        took_ms = (puppet.at["stop 0/1"] - began) * 1000
        LOG.warning("lease_ms=%d stopped_after_ms=%.0f", LEASE_MS, took_ms)
        assert LEASE_MS / 2 < took_ms < LEASE_MS + 500
        assert not may_publish()
        proxy.heal()
        assert "lease lost" in script.said(r.TaskStopped).reason
        script.heard(lambda beat: not beat.tasks and beat.lease > lease)  # what it said while it was cut off comes too
        until(lambda: worker.service.metrics.lease_losses._value.get() == 1, "the loss to be counted, once")
        assert not may_publish(), "it was begun under a lease that is over"
        say(h.PublishFailed("job", 1, 0, 1, "the lease is lost"))
        script.said(r.CheckpointFailed, who(task=-1, attempt=0))
        script.order(commit, who(task=-1, attempt=0))
        until(lambda: len(puppet.publications) == 2, "the next try")
        assert puppet.publications[1][1]()
        say(h.Published("job", 1, 0, 1, 0))
        script.withdraw()
        script.order(DEPLOY, who(2))  # it works on
        script.said(r.TaskRunning, who(2))


def test_B7_a_new_lease_is_told_at_once(cluster: Cluster, script: Script, tmp_path: Path) -> None:
    """Orders to publish name the lease that the leader has heard of: until it hears of the new one, they are stale."""
    with inside(cluster, tmp_path, Puppet(), lease_ms=LEASE_MS, heartbeat_ms=600_000) as worker:
        until(lambda: worker.service.metrics.silent._value.get() > LEASE_MS / 1000, "the lease to be over")
        lease = worker.service.decider.ledger.lease
        script.order(DEPLOY)  # its answer is what Kafka hears next
        script.heard(lambda beat: beat.lease > lease)


def test_B7_a_short_cut_stops_nothing(cluster: Cluster, script: Script, proxy: Proxy, tmp_path: Path) -> None:
    puppet = Puppet()
    with inside(cluster, tmp_path, puppet, lease_ms=20_000) as worker:
        script.heard()
        script.order(DEPLOY)
        script.said(r.TaskRunning)
        proxy.refuse()
        until(lambda: worker.service.metrics.silent._value.get() > 1.5, "silence")
        proxy.heal()
        until(lambda: worker.service.metrics.silent._value.get() < 0.5, "an answer")
        assert script.heard().tasks[0].attempt == 1
        script.order(DEPLOY)
        script.said(r.TaskRunning, count=2)
        assert puppet.done == ["start 0/1"]


def test_B7_a_real_process_that_is_cut_off_writes_no_more(
    cluster: Cluster, script: Script, proxy: Proxy, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    source = {"name": "in", "kind": "numbers", "options": {"rate": 2000}}
    sink = {"name": "out", "kind": "lines", "from": ["in"], "options": {"path": str(out)}}
    specification = json.dumps({"source": [source], "sink": [sink]})
    with outside(cluster, tmp_path / "state", f"worker.lease_ms={LEASE_MS}") as worker:
        script.heard()
        script.order(r.Deploy(specification=specification))
        script.said(r.TaskRunning)
        until(lambda: worker.measured('tasks{phase="RUNNING"}') == 1, "the task")
        proxy.hold()
        began = time.monotonic()
        until(lambda: worker.measured('tasks{phase="RUNNING"}') == 0, "its end")
        took_ms = (time.monotonic() - began) * 1000
        LOG.warning("lease_ms=%d stopped_after_ms=%.0f", LEASE_MS, took_ms)
        assert took_ms < LEASE_MS + 1500
        until(lambda: not list(out.glob(".staging/*/*")), "the end of its loop")  # it discards what nobody will publish
        assert "Kafka has not answered" in worker.said
        assert worker.page("/readyz")[0] == 503
        assert worker.page("/healthz")[0] == 200
        proxy.heal()
        assert "lease lost" in script.said(r.TaskStopped).reason
        until(lambda: worker.page("/readyz")[0] == 200, "readiness")
        until(lambda: "Kafka answers again" in worker.said, "a word")
        script.withdraw()
        script.order(r.Deploy(specification=specification), who(2))
        script.said(r.TaskRunning, who(2))


def test_B7_a_process_that_was_frozen_does_not_go_on_as_if_nothing_had_been(
    cluster: Cluster, script: Script, tmp_path: Path
) -> None:
    source = {"name": "in", "kind": "numbers", "options": {"rate": 100}}
    sink = {"name": "out", "kind": "lines", "from": ["in"], "options": {"path": str(tmp_path / "out")}}
    deploy = r.Deploy(specification=json.dumps({"source": [source], "sink": [sink]}))
    with outside(cluster, tmp_path / "state", f"worker.lease_ms={LEASE_MS}") as worker:
        script.heard()
        script.order(deploy)
        script.said(r.TaskRunning)
        worker.signal(signal.SIGSTOP)
        frozen = time.monotonic()
        until(lambda: time.monotonic() - frozen > 1.2 * LEASE_MS / 1000, "the lease to be over")
        worker.signal(signal.SIGCONT)
        assert "lease lost" in script.said(r.TaskStopped).reason
        script.heard(lambda beat: not beat.tasks)


def test_a_broker_that_is_away_at_the_start_is_waited_for(
    cluster: Cluster, script: Script, proxy: Proxy, tmp_path: Path
) -> None:
    proxy.refuse()
    with outside(cluster, tmp_path / "state") as worker:
        until(lambda: "waits for the broker" in worker.said, "a word")
        code, content = worker.page("/readyz")
        assert code == 503
        assert "waits for the broker" in content
        proxy.heal()
        script.heard()
        assert worker.said.count("waits for the broker") < 5


def test_a_worker_that_waits_for_its_broker_can_be_stopped(cluster: Cluster, proxy: Proxy, tmp_path: Path) -> None:
    proxy.refuse()
    with inside(cluster, tmp_path, Puppet()) as worker:
        assert worker.stop() == 0


def test_a_slow_network_costs_nothing_but_time(cluster: Cluster, script: Script, proxy: Proxy, tmp_path: Path) -> None:
    puppet = Puppet()
    with inside(cluster, tmp_path, puppet, lease_ms=30_000) as worker:
        script.heard()
        proxy.delay(0.15)
        for attempt in range(1, 4):
            script.order(DEPLOY, who(attempt))
            script.said(r.TaskRunning, who(attempt))
        proxy.heal()
        assert worker.service.metrics.lease_losses._value.get() == 0
    assert puppet.done[:5] == ["start 0/1", "stop 0/1", "start 0/2", "stop 0/2", "start 0/3"]
