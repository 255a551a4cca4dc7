"""The marker topic of Kafka sinks: a record for each checkpoint that is published, in the transaction that did it.

Compacted, keyed by the checkpoint's identity. Who looks has fenced the sink's producers before: what they committed is
there to be read, whole.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from events.cluster import Cluster
from events.ends import decided_end
from events.reader import PartitionReader
from events.topics import answered
from events.writer import Outgoing
from workers.spark.api import Commit, Refused
from workers.spark.kafka_client import PATIENCE_S, partitions_of

PARTITIONS = 8
MARKERS_KEPT = 50  # nobody asks for a checkpoint that so many others came after
CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
EXISTS = 36  # TOPIC_ALREADY_EXISTS


class Markers:
    """Those of one owner, which all are on one partition."""

    def __init__(self, cluster: Cluster, topic: str, owner: str) -> None:
        self._cluster, self._topic, self._owner = cluster, topic, owner

    @contextlib.contextmanager
    def asking(self) -> Iterator[Consumer]:
        consumer = self._cluster.consumer()
        try:
            yield consumer
        finally:
            consumer.close()

    def make(self) -> None:
        """The topic, if it is not there. Raises Refused where one of that name is no place for markers."""
        admin = self._cluster.admin()
        if not self._partitions():
            answered(self._cluster, f"making {self._topic}", PATIENCE_S, lambda: self._create(admin))
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        ask = lambda: next(iter(admin.describe_configs([resource]).values())).result(PATIENCE_S)  # noqa: E731
        policy = answered(self._cluster, f"looking at {self._topic}", PATIENCE_S, ask)["cleanup.policy"].value
        if policy != "compact":
            raise Refused(
                f"the marker topic {self._topic} has cleanup.policy {policy}, which loses markers. Set it to compact, "
                "or name another as marker_topic."
            )

    def _create(self, admin: AdminClient) -> None:
        new = NewTopic(self._topic, PARTITIONS, config=CONFIG)
        try:
            next(iter(admin.create_topics([new]).values())).result(PATIENCE_S)
        except KafkaException as error:
            if error.args[0].code() != EXISTS:  # somebody was quicker
                raise

    def known(self) -> dict[str, int]:
        """The owner's checkpoints by their identities. Fence the owner's producers first."""
        count = self._partitions()
        if not count:
            return {}
        partition = self._partition(count)
        end = decided_end(self._cluster.admin(), self._cluster, self._topic, partition, PATIENCE_S)
        found: dict[str, int] = {}
        with PartitionReader(self._cluster, self._topic, partition) as reader:
            reader.go_to(reader.start_and_end(PATIENCE_S)[0])
            while reader.position < end:
                for message in reader.poll(0.5):
                    key = (message.key() or b"").decode(errors="replace")
                    value = message.value()
                    if not key.startswith(self._owner):
                        continue
                    if value is None:
                        found.pop(key, None)
                    else:
                        found[key] = int(json.loads(value)["checkpoint"])
        return found

    def marker(self, identity: str, commit: Commit) -> Outgoing:
        value = json.dumps({"checkpoint": commit.checkpoint, "rows": commit.rows}).encode()
        return Outgoing(self._topic, self._partition(self._partitions()), identity.encode(), value)

    def forgotten(self, identity: str) -> Outgoing:
        return Outgoing(self._topic, self._partition(self._partitions()), identity.encode(), None)

    def _partitions(self) -> int:
        with self.asking() as consumer:
            return len(partitions_of(consumer, self._cluster, [self._topic]))

    def _partition(self, count: int) -> int:
        return zlib.crc32(self._owner.encode()) % count
