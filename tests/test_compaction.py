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


def on_the_log(reader: PartitionReader) -> list[Raw]:
    """Every record that a reader from the start is given."""
    reader.go_to(0)
    end = reader.start_and_end()[1]
    found: list[Raw] = []
    while reader.position < end:
        found.extend(map(raw, reader.poll(0.1)))
    return found


def test_T8_what_the_cleaner_leaves_folds_to_the_same_state(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, overrides={"log.cleaner.backoff.ms": "200"}) as broker:
        cluster = own_cluster(broker.bootstrap_servers)
        ensure_topics(cluster, SETTINGS)
        generations, deleted = 20, {event.entity.encode() for event in tasks(0, 200)}
        newest = {e.entity.encode(): CODEC.encode(e) for e in tasks(0, 500, rows=generations - 1)}
        expected = {key: value for key, value in newest.items() if key not in deleted}
        with a_writer(cluster) as writer, PartitionReader(cluster, "events", 0) as reader:
            for generation in range(generations):
                writer.commit(transaction(CODEC, tasks(0, 500, rows=generation)))
            gone = [Outgoing("events", 0, key, None, tombstone_headers(1, 1)) for key in deleted]
            written = writer.commit([*gone, *transaction(CODEC, [])])

            def cleaned() -> list[Raw]:
                # The active segment is never cleaned: go on writing, so that it is rolled.
                writer.commit(transaction(CODEC, []))
                left = on_the_log(reader)
                keys = [r.key for r in left if r.key != b"cursor/0"]
                return [] if len(keys) > len(set(keys)) or deleted & set(keys) else left

            left = until(cleaned, "the cleaner to have run", limit_s=120)
        # It shrank, it lost superseded records and tombstones, and most transactions have lost their cursor.
        assert len(left) < written / 10
        assert left[0].offset > 0
        table = replayed(cluster, CODEC)
        del table.values[b"cursor/0"]
        assert table.values == expected
        assert table.voided == 0
