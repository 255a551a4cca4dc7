"""How the Kafka source and sink reach their cluster: properties with their secrets, ends of partitions, refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

from events.cluster import Cluster, refuses
from events.topics import answered
from workers.plan import OptionsRefused
from workers.secrets import Scalar, Secret, Secrets
from workers.spark.api import Context

ASK_S, PATIENCE_S = 3.0, 30.0
# What a job may not set: exactly-once depends on them.
OURS = frozenset({"isolation.level", "auto.offset.reset", "enable.auto.commit", "enable.partition.eof",
                  "enable.idempotence", "acks", "transactional.id"})  # fmt: skip


class PlainCluster(Cluster):
    """A cluster whose topics have the names that users gave them."""

    def topic(self, name: str) -> str:
        return name


class Ends(NamedTuple):
    """The first offset that a partition has, and the one behind the last stable record."""

    low: int
    high: int


def properties_of(
    context: Context, step: str, servers: str, given: Mapping[str, Scalar | Secret], secrets: Secrets
) -> dict[str, Scalar]:
    """Of the client, bootstrap.servers among them. Raises OptionsRefused."""
    if wrong := sorted(OURS & given.keys()):
        raise OptionsRefused(f"{step!r} sets {', '.join(wrong)}, which Detent sets by itself: leave it out")
    properties = secrets.values(given)
    if servers:
        return {**properties, "bootstrap.servers": servers}
    if not context.kafka.get("bootstrap.servers"):
        raise OptionsRefused(f"{step!r} needs bootstrap_servers: this worker was not told of a cluster of Detent's own")
    return {**context.kafka, **properties}


def cluster_of(properties: Mapping[str, Scalar]) -> PlainCluster:
    others = {name: value for name, value in properties.items() if name != "bootstrap.servers"}
    return PlainCluster(str(properties["bootstrap.servers"]), properties=others)


def partitions_of(consumer: Consumer, cluster: Cluster, topics: Sequence[str]) -> list[tuple[str, int]]:
    """All partitions of the topics that are there; a topic that is not has none."""
    found = []
    for topic in topics:
        doing = f"asking for the partitions of {topic}"
        about = answered(cluster, doing, PATIENCE_S, lambda: consumer.list_topics(topic, timeout=ASK_S).topics[topic])  # noqa: B023
        if about.error is not None and refuses(about.error):
            raise cluster.refusal(doing, about.error)
        found += [(topic, partition) for partition in sorted(about.partitions)]
    return found


def ends_of(consumer: Consumer, cluster: Cluster, topic: str, partition: int) -> Ends:
    def ask() -> Ends:
        return Ends(*consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ASK_S))

    return answered(cluster, f"asking for the ends of {topic}/{partition}", PATIENCE_S, ask)
