"""How far a log goes, and whether all of it is decided. To be asked by who has just fenced the log's writer.

A transaction that its coordinator has ended but whose marker never came (seen on Kafka 4.3.1 after kill -9, like
KAFKA-20734) holds the last stable offset below the end for ever. Who took the stable offset for the end would go on
without a transaction that was acknowledged.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from events.cluster import Cluster, passes, refuses
from events.errors import DetentError, Place
from events.reader import UnreadablePartition

LOG = logging.getLogger(__name__)
ASK_S = 3.0
PAUSE_S = 0.003


@dataclass(eq=False)
class LogUndecided(DetentError):
    """After fencing, a transaction is still open, and nobody is left to end it."""

    topic: str
    partition: int
    stable: int
    end: int
    waited_s: float

    def message(self) -> str:
        return (
            f"{self.topic}/{self.partition} is decided up to offset {self.stable} and goes on to {self.end}: a "
            f"transaction was not ended within {self.waited_s:g} s, though its writer is fenced. Nothing is written "
            "behind it, since it may be one that was acknowledged. If it does not pass, find it with "
            f"`kafka-transactions.sh find-hanging --topic {self.topic}`."
        )


def decided_end(admin: AdminClient, cluster: Cluster, topic: str, partition: int, patience_s: float = 10.0) -> int:
    """The end of a log whose writer is fenced, when every transaction on it is decided. Raises LogUndecided."""
    name, started = cluster.topic(topic), time.monotonic()
    stable, end, gone = -1, -1, False
    while (waited_s := time.monotonic() - started) < patience_s:
        try:
            end = _latest(admin, name, partition, IsolationLevel.READ_UNCOMMITTED)
            stable = _latest(admin, name, partition, IsolationLevel.READ_COMMITTED)
            if stable >= end:
                return stable
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if refuses(error):
                raise cluster.refusal(f"asking for the end of {topic}/{partition}", error) from failure
            if not passes(error) and error.code() != KafkaError._NOENT:  # it knows no leader, yet
                raise
            LOG.debug("no answer to the question for the end of %s/%d: %s", topic, partition, error.str())
            gone = not _learn_leaders(admin, name)
        except TimeoutError:
            LOG.debug("no answer to the question for the end of %s/%d", topic, partition)
            gone = not _learn_leaders(admin, name)
        time.sleep(min(PAUSE_S + waited_s / 10, 0.2))
    if gone:
        raise UnreadablePartition(Place(topic, partition, -1), "the topic is not there")
    if end < 0:
        raise cluster.no_answer(f"asking for the end of {topic}/{partition}", patience_s)
    raise LogUndecided(name, partition, stable, end, patience_s)


def _latest(admin: AdminClient, topic: str, partition: int, isolation: IsolationLevel) -> int:
    asked = {TopicPartition(topic, partition): OffsetSpec.latest()}  # type: ignore[no-untyped-call]
    (answer,) = admin.list_offsets(asked, isolation_level=isolation, request_timeout=ASK_S).values()
    return int(answer.result(ASK_S + 1).offset)


def _learn_leaders(admin: AdminClient, topic: str) -> bool:
    """Whether the topic is there, as far as anybody says. Without this the client goes on asking whom it knows, with
    the leader epoch that it knows, and is refused for ever once either has changed. All topics are asked for: naming
    one could create it."""
    try:
        return topic in admin.list_topics(timeout=ASK_S).topics
    except KafkaException as failure:
        if not passes(failure.args[0]):
            raise
        return True
