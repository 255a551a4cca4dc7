"""The log on a real broker: transactions, fencing, following, poison, and brokers that go away."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from events.cluster import Cluster
from events.codec import Codec, SchemaBook
from events.dead_letters import DeadLetters
from events.embedded import EmbeddedBroker
from events.errors import (
    BrokerUnreachable,
    DetentError,
    Fenced,
    OutcomeUnknown,
    Place,
    RecordTooLarge,
    TransactionAborted,
    UnreadableRecord,
)
from events.follower import Follower
from events.keys import shard_of
from events.reader import PartitionReader, UnreadablePartition, raw
from events.records import DeadLetter, Event
from events.schema_topic import SchemaTopic
from events.table import Poison, Raw, Table, tombstone_headers
from events.topics import ensure_topics
from events.writer import Outgoing, TransactionalWriter
from tests.logs import a_writer, cursor, followed, own_cluster, replayed, settle, tasks, transaction, until

pytestmark = pytest.mark.broker
CODEC = Codec()


@pytest.fixture
def cluster(broker: EmbeddedBroker) -> Cluster:
    made = own_cluster(broker.bootstrap_servers)
    ensure_topics(made)
    return made


@pytest.fixture
def follower(cluster: Cluster) -> Iterator[Follower]:
    following = Follower(cluster, Table("events", 0, CODEC))
    yield following
    following.close()


def test_a_transaction_is_seen_whole_and_at_its_end(cluster: Cluster, follower: Follower) -> None:
    """However small the pieces in which it arrives."""
    with a_writer(cluster) as writer:
        last = writer.commit(transaction(CODEC, tasks(0, 500)))
        writer.commit(transaction(CODEC, tasks(0, 3, rows=7)))
    first, second = followed(follower, 2, limit=50)
    assert len(first.records) == 501
    assert first.records[-1].offset == last == 500
    assert len(second.changed) == 4
    event = follower.table.read(b"task/job-1/0/0")
    assert event is not None
    assert event.state.rows == 7  # type: ignore[union-attr]


def test_catching_up_ends_at_the_end_whatever_stands_there(cluster: Cluster) -> None:
    """Markers and aborted records leave offsets that nobody delivers: the end is a position, not a record."""
    with a_writer(cluster) as writer:
        writer.commit(transaction(CODEC, tasks(0, 10)))
        with pytest.raises(TransactionAborted):
            writer.commit([*transaction(CODEC, tasks(10, 20)), Outgoing("events", 99, b"cursor/0", b"")])
    settle(cluster)
    follower = Follower(cluster, Table("events", 0, CODEC))
    assert follower.catch_up() == 11
    _, end = follower.reader.start_and_end()
    assert follower.table.next_offset == follower.reader.position == end > 11
    assert follower.catch_up() == 0
    with a_writer(cluster) as writer:
        writer.commit(transaction(CODEC, tasks(0, 1, rows=5)))
    (applied,) = followed(follower, 1)
    assert set(applied.changed) == {b"task/job-0/0/0", b"cursor/0"}
    follower.close()


def test_catching_up_to_an_end_in_the_past_leaves_the_rest_for_later(cluster: Cluster, follower: Follower) -> None:
    with a_writer(cluster) as writer:
        end = writer.commit(transaction(CODEC, tasks(0, 10))) + 2  # behind the marker
        writer.commit(transaction(CODEC, tasks(10, 30)))
    assert follower.catch_up(end) == 11
    assert len(follower.table.values) == 11
    (rest,) = followed(follower, 1)
    assert len(rest.records) == 21


def test_tombstones_remove(cluster: Cluster, follower: Follower) -> None:
    with a_writer(cluster) as writer:
        writer.commit(transaction(CODEC, tasks(0, 3)))
        gone = Outgoing("events", 0, b"task/job-1/0/0", None, tombstone_headers(1, 1))
        writer.commit([gone, *transaction(CODEC, [])])
    settle(cluster)
    follower.catch_up()
    assert set(follower.table.values) == {b"task/job-0/0/0", b"task/job-2/0/0", b"cursor/0"}
    assert follower.table.voided == 0


def test_a_new_writer_fences_the_old_one(cluster: Cluster) -> None:
    old = a_writer(cluster)
    old.commit(transaction(CODEC, tasks(0, 1)))
    with a_writer(cluster) as new:
        with pytest.raises(Fenced, match="newer owner"):
            old.commit(transaction(CODEC, tasks(0, 1, rows=666)))
        assert old.closed
        with pytest.raises(DetentError, match="is closed; open a new one"):
            old.commit(transaction(CODEC, tasks(0, 1)))
        new.commit(transaction(CODEC, tasks(0, 1, epoch=2, rows=2), epoch=2))
    assert read_rows(replayed(cluster, CODEC)) == {2}


def test_a_new_writer_ends_what_a_dead_one_left_open(cluster: Cluster, follower: Follower) -> None:
    """Fence, then measure the end, then replay: only then is decided what stood open."""
    dead = cluster.producer(transactional_id=f"{cluster.prefix}-shard-0", transaction_timeout_ms=600_000)
    dead.init_transactions(10)
    dead.begin_transaction()
    for record in transaction(CODEC, tasks(1, 5)):
        dead.produce(cluster.topic("events"), record.value, record.key, 0)
    assert dead.flush(10) == 0
    before = follower.reader.start_and_end()[1]
    with a_writer(cluster) as new:
        after = follower.reader.start_and_end()[1]
        assert before == 0 < after
        assert follower.catch_up(after) == 0
        new.commit(transaction(CODEC, tasks(0, 1)))
    (applied,) = followed(follower, 1)
    assert len(applied.records) == 2


def test_a_record_of_20_mb_is_refused_before_anything_is_sent(cluster: Cluster) -> None:
    with a_writer(cluster) as writer:
        giant = Outgoing("events", 0, b"job/giant", bytes(20 * 1024 * 1024))
        with pytest.raises(
            RecordTooLarge, match=r"key b'job/giant' for events has 20,971,5\d\d bytes; at most 4,194,304"
        ):
            writer.commit([*transaction(CODEC, tasks(0, 5)), giant])
        writer.commit(transaction(CODEC, tasks(5, 6)))
    assert set(replayed(cluster, CODEC).values) == {b"task/job-5/0/0", b"cursor/0"}


def test_the_largest_record_that_is_allowed_arrives(cluster: Cluster) -> None:
    with a_writer(cluster) as writer:
        largest = bytes(4 * 1024 * 1024 - len(b"job/large"))
        writer.commit([Outgoing("events", 0, b"job/large", largest), *transaction(CODEC, [])])
    settle(cluster)
    found: list[Poison] = []
    follower = Follower(cluster, Table("events", 0, CODEC), poison=found.append)
    follower.catch_up()
    follower.close()
    assert follower.table.values[b"job/large"] == largest


def test_an_aborted_transaction_leaves_nothing_and_the_writer_goes_on(cluster: Cluster) -> None:
    with a_writer(cluster) as writer:
        for _ in range(2):
            with pytest.raises(TransactionAborted, match="nothing of it is visible"):
                writer.commit([Outgoing("events", 77, b"job/a", b"x"), *transaction(CODEC, tasks(0, 5))])
        assert not writer.closed
        writer.commit(transaction(CODEC, tasks(5, 6)))
        with pytest.raises(DetentError, match="at least one record"):
            writer.commit([])
    assert set(replayed(cluster, CODEC).values) == {b"task/job-5/0/0", b"cursor/0"}


def test_poison_is_put_aside_whole_and_stops_nobody(cluster: Cluster, broker: EmbeddedBroker) -> None:
    good = CODEC.encode(tasks(1, 2)[0])
    poisoned: list[tuple[bytes | None, bytes | None]] = [
        (b"job/garbage", b"not ours"),
        (b"job/unknown", good[:2] + b"abcdefgh" + good[10:]),
        (b"task/job-1/0/0", good[:40]),
        (b"job/foreign", None),
    ]
    with a_writer(cluster) as writer:
        writer.commit(transaction(CODEC, tasks(0, 3)))
        write_plainly(cluster, "events", poisoned)
        writer.commit(transaction(CODEC, tasks(2, 3, rows=9)))
    aside = DeadLetters(cluster, CODEC, by="test")
    follower = Follower(cluster, Table("events", 0, CODEC), poison=lambda p: aside.put_poison("events", 0, p))
    seen = 0
    while seen < 2:
        for applied in follower.advance(0.1, limit=1):
            seen += 1
            for key in applied.changed:
                read_or_put_aside(follower.table, key, applied.records, aside)
    aside.flush()
    assert aside.count == len(poisoned)
    follower.close()
    assert {b"task/job-0/0/0", b"task/job-2/0/0"} <= set(follower.table.values)
    letters = dead_letters(cluster, len(poisoned))
    assert {(letter.key, letter.value) for letter in letters} == set(poisoned)
    assert all(letter.topic == "events" and letter.offset > 3 and letter.by == "test" for letter in letters)
    by_key = {letter.key: letter.reason for letter in letters}
    assert "single-object" in by_key[b"job/garbage"]
    assert "fingerprint 6162636465666768" in by_key[b"job/unknown"]
    assert "do not hold a Event" in by_key[b"task/job-1/0/0"]
    assert "without the epoch" in by_key[b"job/foreign"]


def write_plainly(cluster: Cluster, topic: str, records: list[tuple[bytes | None, bytes | None]]) -> None:
    """What a stranger may do who has access."""
    failures: list[object] = []
    producer = cluster.producer()
    for key, value in records:
        producer.produce(cluster.topic(topic), value, key, 0, lambda error, _: failures.append(error and error.name()))
    assert producer.flush(10) == 0
    assert failures == [None] * len(records)


def test_a_compacted_topic_takes_no_record_without_a_key(cluster: Cluster) -> None:
    """The broker itself sees to it, so a record on the log always belongs to some key."""
    with pytest.raises(AssertionError, match="INVALID_RECORD"):
        write_plainly(cluster, "events", [(None, b"no key")])


def read_or_put_aside(table: Table, key: bytes, records: list[Raw], aside: DeadLetters) -> None:
    """What a reader of entities does: decode late, and put aside what can't be decoded."""
    try:
        table.read(key)
    except UnreadableRecord as error:
        record = next(r for r in reversed(records) if r.key == key)
        if key not in (b"job/garbage", b"job/unknown"):  # the fold has put those aside already
            aside.put("events", 0, record, error.reason)


def dead_letters(cluster: Cluster, count: int) -> list[DeadLetter]:
    found: list[Raw] = []
    with PartitionReader(cluster, "dead-letters", 0) as reader:
        until(lambda: found.extend(map(raw, reader.poll(0.1))) or len(found) >= count, f"{count} dead letters")
    return [CODEC.decode(r.value, DeadLetter, Place("dead-letters", 0, r.offset)) for r in found]


def test_the_log_describes_itself(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """A reader that does not know a writer's schema learns it from the log."""
    later = SchemaBook()
    schema = later.own["Event"] | {
        "fields": [*later.own["Event"]["fields"], {"name": "mood", "type": "string", "default": ""}]
    }
    reading = SchemaBook()
    topic = SchemaTopic(cluster, reading)
    codec = Codec(reading, refresh=topic.refresh)
    assert topic.publish() == len(reading.own)
    assert topic.publish() == 0

    writing = SchemaBook()
    writing.own["Event"] = schema
    writing.fingerprints["Event"] = writing.add(schema)
    newer = SchemaTopic(cluster, writing)
    assert newer.publish() == 1
    written = CODEC.encode(tasks(0, 1)[0])
    evolved = written[:2] + writing.fingerprints["Event"] + written[10:] + b"\x08glad"
    topic._refreshed = float("-inf")  # as if a second had passed
    assert codec.decode(evolved, Event, Place("events", 0, 0)) == tasks(0, 1)[0]

    record = b'{"type": "record", "name": "X", "fields": []}'
    write_plainly(cluster, "schemas", [(b"key", b"{no json"), (b"wrong key", record)])
    with caplog.at_level(logging.ERROR):
        topic.load()
    assert caplog.text.count("a schema can't be used") == 2
    topic.close()
    newer.close()


def test_a_position_that_the_log_no_longer_has_is_an_error(cluster: Cluster) -> None:
    with a_writer(cluster) as writer:
        writer.commit(transaction(CODEC, tasks(0, 3)))
    with (
        PartitionReader(cluster, "events", 0, start=500) as reader,
        pytest.raises(UnreadablePartition, match="offset 500"),
    ):
        until(lambda: reader.poll(0.1), "an error")


def test_whoever_only_asks_for_the_end_fetches_nothing(cluster: Cluster) -> None:
    """A consumer that is closed while the broker refuses its position hangs for ever, about once in 700 times: what
    stands behind the end and only asked must not have told the broker where."""
    with PartitionReader(cluster, "events", 0, start=500) as reader:
        assert reader.start_and_end() == (0, 0)
        assert reader._consumer.assignment() == []
        reader.go_to(0)
        reader.poll(0)
        assert [at.offset for at in reader._consumer.assignment()] == [0]
        reader.pause()
        reader.poll(0)
        assert reader._consumer.assignment() == []


def test_a_client_that_does_not_know_the_partition_yet_is_asked_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there, as the broker says; a slow one has not told who leads it. That is no reason to give up."""
    monkeypatch.setattr("events.topics.LATE_S", 0.0)
    with PartitionReader(cluster, "events", 0) as reader:
        forgetful = Forgetful(reader._consumer, times=3)
        monkeypatch.setattr(reader, "_consumer", forgetful)
        assert reader.start_and_end() == (0, 0)
        assert forgetful.times == 0
        forgetful.times = 1000
        with pytest.raises(BrokerUnreachable):
            reader.start_and_end(patience_s=0.5)


class Forgetful:
    """A consumer that does not know its partition for some times."""

    def __init__(self, consumer: Consumer, times: int) -> None:
        self._consumer, self.times = consumer, times

    def get_watermark_offsets(self, *asked: Any, **how: Any) -> tuple[int, int]:
        if self.times:
            self.times -= 1
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        return self._consumer.get_watermark_offsets(*asked, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)


def test_a_topic_deleted_under_a_reader_is_an_error(cluster: Cluster) -> None:
    with PartitionReader(cluster, "reports", 0) as reader:
        reader.poll(0.1)
        name = cluster.topic("reports")
        admin = cluster.admin()
        admin.delete_topics([name])[name].result(timeout=10)
        with pytest.raises(UnreadablePartition, match=r"reports/0.*Nothing was skipped"):
            until(reader.check, "an error")


def test_a_broker_that_drops_in_the_middle(tmp_path: Path) -> None:
    """The commit in flight has no definite answer: the writer is closed, the log tells, and a follower goes on by
    itself when the broker is back. Nothing is lost, nothing doubled."""
    with EmbeddedBroker(tmp_path) as broker:
        cluster = own_cluster(broker.bootstrap_servers)
        ensure_topics(cluster)
        follower = Follower(cluster, Table("events", 0, CODEC))
        writer = a_writer(cluster, transaction_timeout_ms=1500)
        writer.commit(transaction(CODEC, tasks(0, 10)))
        assert len(followed(follower, 1)) == 1
        broker.kill()
        with pytest.raises((OutcomeUnknown, TransactionAborted)) as lost:
            writer.commit(transaction(CODEC, tasks(0, 10, rows=1)))
        assert writer.closed == isinstance(lost.value, OutcomeUnknown)
        with pytest.raises(BrokerUnreachable, match="opening"):
            TransactionalWriter(cluster, f"{cluster.prefix}-shard-0", patience_s=0.5)
        assert follower.advance(0.1) == []
        with pytest.raises(BrokerUnreachable, match="replaying events/0"):
            follower.catch_up(10_000, patience_s=0.5)
        broker.start()
        assert broker.bootstrap_servers == cluster.bootstrap_servers
        assert read_rows(replayed(cluster, CODEC)) in ({0}, {1})  # all of the transaction or nothing
        with a_writer(cluster) as again:
            again.commit(transaction(CODEC, tasks(0, 10, rows=2)))
        until(lambda: follower.advance(0.1) and read_rows(follower.table) == {2}, "the new transaction")
        follower.close()


def read_rows(table: Table) -> set[int]:
    events = [table.read(key) for key in table.values if key != b"cursor/0"]
    return {event.state.rows for event in events if event}  # type: ignore[union-attr]


def test_a_read_committed_reader_waits_at_an_open_transaction(cluster: Cluster, follower: Follower) -> None:
    """The end is the last stable offset: what stands behind an open transaction is not there yet."""
    with a_writer(cluster) as writer:
        first = writer.commit(transaction(CODEC, tasks(0, 1)))
        other = cluster.producer(transactional_id=f"{cluster.prefix}-other", transaction_timeout_ms=60_000)
        other.init_transactions(10)
        other.begin_transaction()
        other.produce(cluster.topic("events"), b"open", b"job/open", 0)
        other.flush()
        writer.commit(transaction(CODEC, tasks(1, 2)))
        assert follower.catch_up(first + 1) == 2
        stuck = follower.reader.start_and_end()[1]
        assert follower.catch_up() == 0
        assert follower.advance(0.2) == []
        assert follower.reader.start_and_end()[1] == stuck  # at the record that stands open
        other.abort_transaction()
    assert len(followed(follower, 1)) == 1
    assert set(follower.table.values) == {b"task/job-0/0/0", b"task/job-1/0/0", b"cursor/0"}


def test_the_shard_of_a_job_is_the_partition_of_any_client(cluster: Cluster) -> None:
    """A service that leaves partitioning to a murmur2 client reaches the partition that Detent reads."""
    spread = own_cluster(cluster.bootstrap_servers, shards=5)
    ensure_topics(spread)
    producer = spread.producer(partitioner="murmur2_random")
    for i in range(50):
        producer.produce(spread.topic("commands"), b"x", f"job-{i}".encode())
    producer.flush(10)
    consumer = spread.consumer()
    for shard in range(5):
        consumer.assign([TopicPartition(spread.topic("commands"), shard, 0)])
        expected = {f"job-{i}".encode() for i in range(50) if shard_of(f"job-{i}", 5) == shard}
        seen: set[bytes | str | None] = set()

        def arrived(seen: set[bytes | str | None] = seen, expected: set[bytes] = expected) -> bool:
            seen.update(m.key() for m in consumer.consume(100, 0.1) if not m.error())
            return seen >= expected

        until(arrived, f"the commands of shard {shard}")
        assert seen == expected
    consumer.close()


def test_cursor_is_what_ends_a_transaction() -> None:
    assert transaction(CODEC, tasks(0, 2))[-1].key == cursor().entity.encode() == b"cursor/0"
