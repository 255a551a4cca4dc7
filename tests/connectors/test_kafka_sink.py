"""The sink `kafka` on a real broker: one transaction for each checkpoint, however often and by however many."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame

from events.embedded import EmbeddedBroker
from events.errors import OutcomeUnknown
from events.writer import TransactionalWriter
from tests.connectors import parts
from tests.logs import until
from workers.plan import OptionsRefused
from workers.spark.api import Refused
from workers.spark.kafka_markers import Markers
from workers.spark.kafka_sink import KafkaSink

pytestmark = [pytest.mark.broker, parts.SPARK_SOCKETS]
Make = Callable[..., KafkaSink]
Rows = Callable[..., DataFrame]


class Target:
    """A topic of a test's own, and an independent reader of it."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.name, self.markers = (f"{what}-{uuid.uuid4().hex[:8]}" for what in ("out", "markers"))
        admin = AdminClient({"bootstrap.servers": servers})
        for future in admin.create_topics([NewTopic(self.name, 2)]).values():
            future.result(30)

    def records(self, topic: str = "") -> list[Any]:
        """All committed ones."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "x", "isolation.level": "read_committed",
                             "enable.partition.eof": True, "auto.offset.reset": "earliest"})  # fmt: skip
        name = topic or self.name
        partitions = consumer.list_topics(name, timeout=30).topics[name].partitions
        consumer.assign([TopicPartition(name, partition, 0) for partition in partitions])
        found, ended = list[Any](), set[int]()

        def read() -> bool:
            for message in consumer.consume(10_000, 0.1):
                if message.error() is None:
                    found.append(message)
                else:
                    ended.add(message.partition())
            return len(ended) == len(partitions)

        until(read, "the ends of the topic")
        consumer.close()
        return found

    def ids(self) -> Counter[int]:
        return Counter(json.loads(message.value())["id"] for message in self.records())


@pytest.fixture
def target(broker: EmbeddedBroker) -> Target:
    return Target(broker.bootstrap_servers)


@pytest.fixture
def make(a_context: parts.ContextMaker, target: Target, tmp_path: Path) -> Make:
    context = a_context(kafka={"bootstrap.servers": target.servers})

    def new(**options: Any) -> KafkaSink:
        given = {"topic": target.name, "staging": str(tmp_path / "staging"), "marker_topic": target.markers, **options}
        return KafkaSink(context, parts.a_step("kafka", "out", **given), "job", 1)

    return new


@pytest.fixture
def rows(a_context: parts.ContextMaker) -> Rows:
    session = a_context().session()
    return lambda start, stop: session.range(start, stop, 1, 2).selectExpr("id", "concat('n', id) AS name")


def prepared(sink: KafkaSink, rows: Rows) -> KafkaSink:
    sink.prepare(fresh=True)
    sink.check(rows(0, 1).schema)
    return sink


def test_one_transaction_for_a_checkpoint_whoever_publishes_it(make: Make, rows: Rows, target: Target) -> None:
    sink = prepared(make(key="name"), rows)
    pieces = [*sink.stage(rows(0, 50), parts.who(0), -1), *sink.stage(rows(50, 80), parts.who(1), 30)]
    sink.stage(rows(0, 50), parts.who(0, attempt=2), 50)
    assert not target.records()
    commit = parts.a_commit(1, pieces)
    got = parts.publish_by_many(lambda: make(key="name"), commit, 3)
    assert 80 in got, got
    for each in got:  # whoever was fenced is told to try again
        assert each == 80 or (isinstance(each, Refused) and not each.lasting)
    assert make(key="name").publish(commit, parts.yes) == 80, "and again, as after a crash before the report"
    assert target.ids() == Counter(range(80))
    assert {message.key() for message in target.records()} == {b"n%d" % i for i in range(80)}
    later = sink.stage(rows(80, 90), parts.who(), 10)
    assert make().publish(parts.a_commit(2, later), parts.yes) == 10
    assert make().publish(parts.a_commit(3, []), parts.yes) == 0
    assert target.ids() == Counter(range(90))
    assert make().remove() == 1, "the piece of the attempt that was lost"
    assert make().remove() == 0
    last = {message.key(): message.value() for message in target.records(target.markers)}
    assert set(last.values()) == {None}, "markers go with the job"


def test_O4_whoever_is_overtaken_between_the_look_at_the_markers_and_at_the_files_knows_that_it_is_published(
    make: Make, rows: Rows, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = prepared(make(), rows)
    commit = parts.a_commit(1, sink.stage(rows(0, 10), parts.who(), 10))
    whole, overtaken = Markers.known, list[int]()

    def overtaking(markers: Markers) -> dict[str, int]:
        known = whole(markers)
        monkeypatch.setattr(Markers, "known", whole)
        overtaken.append(make().publish(commit, parts.yes))
        return known

    monkeypatch.setattr(Markers, "known", overtaking)
    assert sink.publish(commit, parts.yes) == 10
    assert overtaken == [10]
    assert target.ids() == Counter(range(10))


def test_O4_a_commit_without_an_answer_is_found_by_the_marker(
    make: Make, rows: Rows, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = prepared(make(), rows)
    commit = parts.a_commit(1, sink.stage(rows(0, 10), parts.who(), 10))
    whole = TransactionalWriter.commit_stream

    def unanswered(writer: TransactionalWriter, records: Any) -> None:
        whole(writer, records)
        raise OutcomeUnknown(writer.transactional_id, "commit", "the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr(TransactionalWriter, "commit_stream", unanswered)
        with pytest.raises(Refused, match="not known") as caught:
            sink.publish(commit, parts.yes)
    assert not caught.value.lasting
    assert make().publish(commit, parts.yes) == 10
    assert target.ids() == Counter(range(10))


def test_a_publisher_that_dies_in_its_transaction_is_fenced_and_done_over(
    make: Make, rows: Rows, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = prepared(make(), rows)
    commit = parts.a_commit(1, sink.stage(rows(0, 10), parts.who(), 10))
    dead = Producer({"bootstrap.servers": target.servers, "transactional.id": sink._transactional_id})
    dead.init_transactions(30)
    dead.begin_transaction()
    dead.produce(target.name, b'{"id": 0}')
    dead.flush(30)
    assert make().publish(commit, parts.yes) == 10
    assert target.ids() == Counter(range(10))
    with pytest.raises(Refused, match="lease") as caught:
        later = sink.stage(rows(10, 20), parts.who(), 10)
        sink.publish(parts.a_commit(2, later), lambda: False)
    assert not caught.value.lasting
    assert target.ids() == Counter(range(10))
    assert sink.publish(parts.a_commit(2, later), parts.yes) == 10
    assert target.ids() == Counter(range(20))


def test_O3_staged_files_that_are_gone_leave_the_topic_untouched(make: Make, rows: Rows, target: Target) -> None:
    sink = prepared(make(), rows)
    commit = parts.a_commit(1, sink.stage(rows(0, 10), parts.who(), 10))
    sink.discard(commit.pieces)
    with pytest.raises(Refused, match="gone") as caught:
        sink.publish(commit, parts.yes)
    assert caught.value.lasting
    assert not target.records()


def test_records_as_they_are(make: Make, rows: Rows, target: Target) -> None:
    sink = make(format="raw")
    frame = rows(0, 2).selectExpr(
        "name AS key", "if(id = 0, NULL, binary(name)) AS value", "1 AS partition",
        "array(named_struct('key', 'h', 'value', binary('v'))) AS headers",
    )  # fmt: skip
    sink.prepare(fresh=True)
    sink.check(frame.schema)
    sink.publish(parts.a_commit(1, sink.stage(frame, parts.who(), 2)), parts.yes)
    found = {message.key(): message for message in target.records()}
    assert found[b"n0"].value() is None
    assert (found[b"n1"].value(), found[b"n1"].partition(), found[b"n1"].headers()) == (b"n1", 1, [("h", b"v")])


def test_what_does_not_fit_is_told_before_any_moves(make: Make, rows: Rows, target: Target) -> None:
    with pytest.raises(Refused, match=r"id is none of value, key.*there is no value"):
        make(format="raw").check(rows(0, 1).schema)
    with pytest.raises(Refused, match="key is 'no', but the rows have id, name"):
        make(key="no").check(rows(0, 1).schema)
    with pytest.raises(Refused, match="has no topic not-there"):
        make(topic="not-there").prepare(fresh=True)
    with pytest.raises(Refused, match=r"cleanup.policy delete, which loses markers"):
        make(marker_topic=target.name).prepare(fresh=True)
    with pytest.raises(OptionsRefused, match=r"transactional.id, which Detent sets by itself"):
        make(properties={"transactional.id": "x"})
