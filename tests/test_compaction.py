"""Real compaction on the real broker: what the cleaner leaves folds to the same state."""

from __future__ import annotations

from pathlib import Path

import pytest

from events.codec import Codec
from events.embedded import EmbeddedBroker
from events.reader import PartitionReader, raw
from events.table import Raw, tombstone_headers
from events.topics import TopicSettings, ensure_topics
from events.writer import Outgoing
from tests.logs import a_writer, own_cluster, replayed, tasks, transaction, until

pytestmark = pytest.mark.broker
CODEC = Codec()
MEBIBYTE = 1024 * 1024
EAGER = {
    "segment.bytes": str(MEBIBYTE),  # the smallest that Kafka 4 takes
    "segment.ms": "500",
    "min.cleanable.dirty.ratio": "0.001",
    "max.compaction.lag.ms": "500",
    "compression.type": "uncompressed",
}
SETTINGS = TopicSettings(forensics_window_ms=0, delete_retention_ms=100, extra={"events": EAGER})


def on_the_log(cluster_reader: PartitionReader) -> list[Raw]:
    """Every record that a reader from the start is given."""
    cluster_reader.go_to(0)
    end = cluster_reader.start_and_end()[1]
    found: list[Raw] = []
    while cluster_reader.position < end:
        found.extend(map(raw, cluster_reader.poll(0.1)))
    return found


def test_T8_what_the_cleaner_leaves_folds_to_the_same_state(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, overrides={"log.cleaner.backoff.ms": "200"}) as broker:
        cluster = own_cluster(broker.bootstrap_servers)
        ensure_topics(cluster, SETTINGS)
        entities, generations = 500, 20
        deleted = [event.entity.encode() for event in tasks(0, 200)]
        with a_writer(cluster) as writer:
            for generation in range(generations):
                writer.commit(transaction(CODEC, tasks(0, entities, rows=generation)))
            gone = [Outgoing("events", 0, key, None, tombstone_headers(1, 1)) for key in deleted]
            writer.commit([*gone, *transaction(CODEC, [])])
            before = replayed(cluster, CODEC)
            written = generations * (entities + 1) + len(deleted) + 1
            with PartitionReader(cluster, "events", 0) as reader:
                assert len(on_the_log(reader)) == written

                def cleaned() -> list[Raw]:
                    # The active segment is never cleaned: go on writing, so that it is rolled.
                    writer.commit(transaction(CODEC, []))
                    left = on_the_log(reader)
                    superseded = len({r.key for r in left}) < len([r for r in left if r.key != b"cursor/0"])
                    dead = {r.key for r in left} & set(deleted)
                    return [] if superseded or dead else left

                left = until(cleaned, "the cleaner to have run", limit_s=120)
        assert len(left) < written / 10
        assert {r.key for r in left} >= set(before.values)
        after = replayed(cluster, CODEC)
        del before.values[b"cursor/0"], after.values[b"cursor/0"]  # written on while we waited
        assert after.values == before.values
        assert len(after.values) == entities - len(deleted)
        assert after.epoch == before.epoch
        assert after.voided == 0
