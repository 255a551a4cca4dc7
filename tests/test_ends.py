"""The end of a log as a new leader must see it: nothing before it is undecided."""

from __future__ import annotations

import re

import pytest

from events.cluster import Cluster
from events.codec import Codec
from events.embedded import EmbeddedBroker
from events.ends import LogUndecided, decided_end
from events.errors import BrokerUnreachable
from events.reader import UnreadablePartition
from events.topics import ensure_topics
from tests.logs import a_writer, own_cluster, tasks, transaction, until

pytestmark = pytest.mark.broker


@pytest.fixture
def cluster(broker: EmbeddedBroker) -> Cluster:
    cluster = own_cluster(broker.bootstrap_servers)
    ensure_topics(cluster)
    return cluster


def test_the_end_counts_everything_once_the_writer_is_fenced(cluster: Cluster) -> None:
    with a_writer(cluster) as writer:
        last = writer.commit(transaction(Codec(), tasks(0, 10)))
    a_writer(cluster).close()
    assert decided_end(cluster.admin(), cluster, "events", 0) > last


def test_an_open_transaction_that_nobody_ends_is_told_and_not_passed_over(cluster: Cluster) -> None:
    other = cluster.producer(transactional_id="somebody-else", transaction_timeout_ms=60_000)
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(cluster.topic("events"), b"open", b"key", 0)
    assert other.flush(10) == 0
    a_writer(cluster).close()
    admin, said = cluster.admin(), ""

    def is_told() -> bool:
        nonlocal said
        try:
            decided_end(admin, cluster, "events", 0, patience_s=3.0)
        except BrokerUnreachable:  # a busy broker took longer than that for its first answer
            return False
        except LogUndecided as error:
            said = str(error)
        return True

    until(is_told, "an answer")
    assert re.search(r"is decided up to offset 0 and goes on to 1: .*find-hanging --topic", said)
    other.abort_transaction(30)
    assert decided_end(cluster.admin(), cluster, "events", 0) == 2


def test_a_log_that_is_gone_is_named(cluster: Cluster) -> None:
    admin = cluster.admin()
    assert decided_end(admin, cluster, "events", 0) == 0
    name = cluster.topic("events")
    admin.delete_topics([name])[name].result(30)
    said: list[str] = []

    def is_named() -> bool:  # a broker hears of it a moment later
        try:
            decided_end(admin, cluster, "events", 0, patience_s=1.0)
        except UnreadablePartition as error:
            said.append(str(error))
        return bool(said)

    until(is_named, "it to be gone")
    assert "the topic is not there. Nothing was skipped. If the topic was deleted" in said[0]


def test_a_client_that_knew_the_log_before_its_broker_was_killed_finds_its_end_again(frail: EmbeddedBroker) -> None:
    cluster = own_cluster(frail.bootstrap_servers)
    ensure_topics(cluster)
    admin = cluster.admin()
    assert decided_end(admin, cluster, "events", 0) == 0
    frail.kill()
    try:
        with pytest.raises(BrokerUnreachable):
            decided_end(admin, cluster, "events", 0, patience_s=0.5)
    finally:
        frail.start()
    assert decided_end(admin, cluster, "events", 0, patience_s=60) == 0
