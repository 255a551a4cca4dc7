"""Topics are created when missing, verified when there, and refused with what to change."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from events.cluster import Cluster
from events.embedded import EmbeddedBroker
from events.errors import BrokerUnreachable, DetentError, TopicMismatch
from events.topics import DAY, TopicSettings, answered, ensure_topics, plans
from tests.logs import own_cluster

pytestmark = pytest.mark.broker


def test_missing_topics_are_created_once(broker: EmbeddedBroker) -> None:
    cluster = own_cluster(broker.bootstrap_servers, shards=3)
    first = ensure_topics(cluster)
    assert ensure_topics(cluster) == first
    topics = cluster.admin().list_topics(timeout=10).topics
    found = {name: len(topics[cluster.topic(name)].partitions) for name in first}
    assert found == {plan.name: 3 if plan.sharded else 1 for plan in plans(TopicSettings())}


@pytest.mark.parametrize("days", [-1, 1])
def test_a_clock_that_is_off_stops_nobody_from_writing(broker: EmbeddedBroker, days: int) -> None:
    """Kafka refuses records whose time is ahead of the broker's by an hour, unless the broker's time is theirs."""
    cluster = own_cluster(broker.bootstrap_servers)
    producer, answers = cluster.producer(), list[object]()
    at = int(time.time() * 1000) + days * DAY
    for name in ensure_topics(cluster):
        topic = cluster.topic(name)
        producer.produce(topic, b"v", b"k", 0, lambda error, _: answers.append(error), timestamp=at)
    assert producer.flush(30) == 0
    assert answers == [None] * 8


@pytest.mark.parametrize(
    ("topic", "partitions", "config", "says"),
    [
        (
            "events",
            1,
            {"cleanup.policy": "delete"},
            r"events has cleanup.policy=delete and must have compact: kafka-configs",
        ),
        ("events", 5, {"cleanup.policy": "compact"}, "events has 5 partitions and must have 1.* Set shards to 5"),
        ("commands", 1, {"retention.ms": "1000"}, "commands has retention.ms=1000 and needs at least 604800000"),
        ("events", 1, {"cleanup.policy": "compact", "min.compaction.lag.ms": "5"}, "min.compaction.lag.ms=5 and needs"),
        ("orders", 1, {"cleanup.policy": "compact", "max.message.bytes": "1000"}, "orders has max.message.bytes=1000"),
        ("reports", 1, {"unclean.leader.election.enable": "true"}, "reports allows unclean leader election"),
    ],
)
def test_a_topic_that_would_lose_something_is_refused(
    broker: EmbeddedBroker, topic: str, partitions: int, config: dict[str, str], says: str
) -> None:
    cluster = own_cluster(broker.bootstrap_servers)
    name = cluster.topic(topic)
    admin = cluster.admin()
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(timeout=10)
    with pytest.raises(TopicMismatch, match=says):
        ensure_topics(cluster)


def test_more_replicas_than_there_are_is_refused_when_the_topics_are_there(broker: EmbeddedBroker) -> None:
    cluster = own_cluster(broker.bootstrap_servers)
    ensure_topics(cluster)
    with pytest.raises(TopicMismatch, match="events has 1 replicas and needs 3"):
        ensure_topics(cluster, TopicSettings(replication=3))


def test_a_broker_that_is_not_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: nobody else gets the port, nobody answers
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            BrokerUnreachable, match=f"no broker at {address} answered within 1 s while asking for its topics"
        ):
            ensure_topics(Cluster(address), patience_s=1.0)


@pytest.mark.parametrize("code", [KafkaError._UNKNOWN_PARTITION, KafkaError._DESTROY_BROKER])
def test_a_client_that_has_not_been_told_of_a_topic_yet_is_asked_again(broker: EmbeddedBroker, code: int) -> None:
    came = [KafkaException(KafkaError(code))]

    def ask() -> str:
        if came:
            raise came.pop()
        return "there"

    assert answered(own_cluster(broker.bootstrap_servers), "asking", 30.0, ask) == "there"


def test_a_topic_unknown_to_a_broker_that_has_just_come_back_is_asked_for_again(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the soak: it had been away for longer than a topic may be unknown, and a coordinator ended."""
    away, unknown = KafkaError._TRANSPORT, KafkaError._UNKNOWN_PARTITION
    came, now = [unknown, away, away, away], [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: now.__setitem__(0, now[0] + 3))
    monkeypatch.setattr("events.topics.time", clock)

    def ask() -> str:
        if came:
            raise KafkaException(KafkaError(came.pop()))
        return "there"

    assert answered(own_cluster(broker.bootstrap_servers), "asking", 30.0, ask) == "there"
    came[:] = [unknown] * 5
    with pytest.raises(DetentError, match="refused, asking"):
        answered(own_cluster(broker.bootstrap_servers), "asking", 30.0, ask)
