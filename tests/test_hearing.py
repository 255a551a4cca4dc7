"""What a coordinator hears from workers: what is old when it begins is history, and no clock loses what comes later."""

from __future__ import annotations

import time

import pytest

from coordinator.hearing import Hearing
from coordinator.peers import Peers
from events.cluster import Cluster
from events.codec import SINGLE_OBJECT, Codec
from events.embedded import EmbeddedBroker
from events.errors import BrokerUnreachable
from events.records import Beat, Heartbeat
from events.topics import TopicSettings, ensure_topics
from tests.logs import own_cluster, until

HOUR_MS = 3_600_000
# Records keep the time of who sent them, as on a topic that somebody made by hand.
SENT = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str(1000 * HOUR_MS)}


def say(cluster: Cluster, worker: str, age_ms: int) -> None:
    """A heartbeat that was sent so long ago, by the clock of who sent it."""
    beat = Heartbeat(worker=worker, instance="i", time=0, slots=1)
    at = int(time.time() * 1000) - age_ms
    producer, errors = cluster.producer(), list[object]()
    value, topic = Codec().encode(beat), cluster.topic("workers")
    producer.produce(topic, value, worker.encode(), 0, lambda error, _: errors.append(error), timestamp=at)
    assert producer.flush(30) == 0
    assert errors == [None]


def heard(hearing: Hearing) -> set[str]:
    return {one.heartbeat.worker for one in hearing.since(0)[1]}


@pytest.mark.broker
def test_only_what_was_there_at_the_start_can_be_too_old(broker: EmbeddedBroker) -> None:
    cluster = own_cluster(broker.bootstrap_servers)
    ensure_topics(cluster, TopicSettings(extra={"workers": SENT}))
    say(cluster, "history", HOUR_MS)
    say(cluster, "recent", 0)
    hearing = Hearing(cluster, Codec(), lambda: 0, lease_ms=60_000)
    hearing.start()
    try:
        until(lambda: heard(hearing), "the recent one")
        for worker, age_ms in (
            ("late", 24 * HOUR_MS),
            ("early", -24 * HOUR_MS),
        ):  # a clock that was set, ours or theirs
            say(cluster, worker, age_ms)
            until(lambda w=worker: w in heard(hearing), f"{worker} to be heard")  # type: ignore[misc]
        assert heard(hearing) == {"recent", "late", "early"}
        version = hearing.since(0)[0]
        say(cluster, "history", 24 * HOUR_MS)  # it lives after all
        until(lambda: hearing.since(version)[1], "the one that was silent")
        assert "history" in heard(hearing)
    finally:
        hearing.stop()


@pytest.mark.broker
def test_a_schema_that_is_out_of_reach_costs_one_record_and_not_the_process(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody newer said something, and the broker went away before its schema could be asked for."""
    cluster = own_cluster(broker.bootstrap_servers)
    ensure_topics(cluster)

    def out_of_reach() -> None:
        raise BrokerUnreachable(cluster.bootstrap_servers, "reading the schemas topic", 30.0)

    codec, me = Codec(refresh=out_of_reach), Beat(coordinator="c0", instance="i0", time=0)
    hearing, peers = Hearing(cluster, codec, lambda: 0, lease_ms=60_000), Peers(cluster, codec, lambda: me, beat_ms=100)
    hearing.start()
    peers.start()
    try:
        producer = cluster.producer()
        for topic in ("workers", "coordinators"):
            producer.produce(cluster.topic(topic), SINGLE_OBJECT + bytes(8), b"newer", 0)
        assert producer.flush(30) == 0
        until(lambda: all(f"a {what} can't be read" in caplog.text for what in ("heartbeat", "beat")), "both to come")
        say(cluster, "w0", 0)
        until(lambda: heard(hearing) == {"w0"}, "what comes later")
        assert (hearing.failed, peers.failed) == (None, None)
    finally:
        hearing.stop()
        peers.stop()
