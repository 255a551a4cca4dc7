"""The source `kafka` on a real broker and a real Spark: each committed record once, from any position, or an error."""

from __future__ import annotations

import io
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from events.embedded import EmbeddedBroker
from tests.connectors import parts
from tests.spark_parts import source as a_source
from workers.plan import OptionsRefused
from workers.spark.api import Refused, Unservable
from workers.spark.kafka_source import KafkaSource

pytestmark = [pytest.mark.broker, parts.SPARK_SOCKETS]


class Topic:
    """A topic of a test's own."""

    def __init__(self, servers: str, partitions: int = 2) -> None:
        self.servers, self.name = servers, f"in-{uuid.uuid4().hex[:8]}"
        self.admin = AdminClient({"bootstrap.servers": servers})
        self.wait(self.admin.create_topics([NewTopic(self.name, partitions)]))

    def wait(self, futures: dict[Any, Any]) -> None:
        for future in futures.values():
            future.result(30)

    def send(self, values: list[bytes | None], partition: int = 0, **properties: Any) -> None:
        producer = Producer({"bootstrap.servers": self.servers, **properties})
        for value in values:
            producer.produce(self.name, value, key=b"k", partition=partition, headers=[("h", b"1")])
        assert producer.flush(30) == 0

    def send_in_transaction(self, values: list[bytes], partition: int = 0, *, commit: bool = True) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "transactional.id": f"t-{uuid.uuid4().hex}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(self.name, value, partition=partition)
        if commit:
            producer.commit_transaction(30)
        else:
            producer.flush(30)
            producer.abort_transaction(30)

    def expire(self, before: int, partition: int = 0) -> None:
        self.wait(self.admin.delete_records([TopicPartition(self.name, partition, before)]))


def numbers_on_a_topic(servers: str, rows: int) -> dict[str, Any]:
    """A source of a job: ids from 0 on a topic of its own."""
    topic = Topic(servers)
    for partition in (0, 1):
        topic.send([json.dumps({"id": i}).encode() for i in range(partition, rows, 2)], partition)
    given = {"bootstrap_servers": servers, "topics": [topic.name], "format": "json", "schema": "id BIGINT"}
    return a_source(kind="kafka", **given)


@pytest.fixture
def topic(broker: EmbeddedBroker) -> Topic:
    return Topic(broker.bootstrap_servers)


@pytest.fixture
def make(topic: Topic, a_context: parts.ContextMaker) -> Iterator[Callable[..., KafkaSource]]:
    context, made = a_context(kafka={"bootstrap.servers": topic.servers}), list[KafkaSource]()

    def new(share: int = 0, shares: int = 1, **options: Any) -> KafkaSource:
        step = parts.a_step("kafka", **{"topics": [topic.name], **options})
        made.append(KafkaSource(context, step, share, shares))
        return made[-1]

    yield new
    for source in made:
        source.close()


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%d" % i for i in range(start, stop)]


def values(frame: Any) -> list[bytes]:
    return [bytes(row.value) for row in frame.select("value").collect()]


def test_every_committed_record_once_from_every_position(topic: Topic, make: Callable[..., KafkaSource]) -> None:
    topic.send(numbers(0, 40), 0)
    topic.send_in_transaction(numbers(1000, 1020), 0, commit=False)
    topic.send_in_transaction(numbers(40, 60), 0)  # its marker is the last offset
    topic.send(numbers(60, 90), 1)
    found = parts.assert_remaining_from_every_position(make, 45, values)
    assert found == Counter(numbers(0, 90))


def test_tasks_share_partitions_and_new_ones_stay_out_of_a_bounded_job(
    topic: Topic, make: Callable[..., KafkaSource]
) -> None:
    for partition in (0, 1):
        topic.send(numbers(partition * 10, partition * 10 + 10), partition)
    begun = [make(share, 2).begin(b"", 0) for share in (0, 1)]
    topic.wait(topic.admin.create_partitions([NewPartitions(topic.name, 4)]))
    for partition in (0, 2):
        topic.send(numbers(100, 105), partition)
    got = []
    for share, position in enumerate(begun):
        source = make(share, 2)
        slices = parts.read_on(source, source.begin(position, 1), 7, values)
        assert source.at_end(slices[-1][0])
        got.append(Counter(value for _, rows in slices for value in rows))
    assert not got[0] & got[1]
    assert got[0] + got[1] == Counter(numbers(0, 20)), "to the ends as they were at start"


def test_a_continuous_source_goes_on_with_new_records_and_new_partitions(
    topic: Topic, make: Callable[..., KafkaSource]
) -> None:
    source = make(continuous=True)
    position = source.begin(b"", 0)
    assert source.next_slice(position, 10) is None
    assert not source.at_end(position)
    topic.send(numbers(0, 5))
    (_, rows), (position, _) = parts.read_on(source, position, 10, values)
    assert rows == numbers(0, 5)
    topic.wait(topic.admin.create_partitions([NewPartitions(topic.name, 3)]))
    topic.send(numbers(5, 9), 2)
    again = make(continuous=True)  # as after a restart; a running one looks every few seconds
    (_, rows), _ = parts.read_on(again, again.begin(position, 1), 10, values)
    assert rows == numbers(5, 9)


def test_where_a_new_job_begins(topic: Topic, make: Callable[..., KafkaSource]) -> None:
    topic.send(numbers(0, 5), 0)
    here = f"{topic.name}/0", f"{topic.name}/1"

    def begun(start: Any) -> tuple[int, ...]:
        at = json.loads(make(start=start, continuous=True).begin(b"", 0))["next"]
        return tuple(at[name] for name in here)

    assert begun("earliest") == (0, 0)
    assert begun("latest") == (5, 0)
    assert begun(1) == (0, 0)
    assert begun(4_000_000_000_000) == (5, 0)
    assert begun({here[0]: 3, here[1]: 0}) == (3, 0)
    with pytest.raises(Refused, match=r"offset 9 of .*/0, which has offsets 0 to 5"):
        begun({here[0]: 9, here[1]: 0})
    with pytest.raises(Refused, match="names no offset for"):
        begun({here[0]: 3})
    with pytest.raises(OptionsRefused, match="topic/partition"):
        make(start={"other/0": 3})


def test_Z3_an_expired_offset_is_named_with_what_the_source_still_has(
    topic: Topic, make: Callable[..., KafkaSource]
) -> None:
    topic.send(numbers(0, 20))
    source = make()
    (_, _), (middle, _), *_ = parts.read_on(source, source.begin(b"", 0), 8, values)
    assert json.loads(middle)["next"][f"{topic.name}/0"] == 8
    topic.expire(12)
    with pytest.raises(Unservable) as caught:
        make().begin(middle, 41)
    for fact in ("checkpoint 41", f'"{topic.name}/0":8', "begins at offset 12 now"):
        assert fact in str(caught.value)
    without_end = json.dumps({"next": json.loads(middle)["next"]}).encode()
    with pytest.raises(Unservable, match="begins at offset 12 now"):
        make(continuous=True).begin(without_end, 41)


def test_Z3_offsets_that_go_while_a_slice_is_read_fail_it(topic: Topic, make: Callable[..., KafkaSource]) -> None:
    topic.send(numbers(0, 20))
    source = make(continuous=True)
    piece = source.next_slice(source.begin(b"", 0), 10)
    assert piece is not None
    topic.expire(5)
    with pytest.raises(Exception, match=r"out of range|OFFSET_OUT_OF_RANGE"):
        values(piece.frame)


def test_Z3_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(
    topic: Topic, make: Callable[..., KafkaSource], a_context: parts.ContextMaker
) -> None:
    topic.send(numbers(0, 20))
    source = make(continuous=True)
    position = parts.read_on(source, source.begin(b"", 0), 100, values)[-1][0]
    topic.wait(topic.admin.delete_topics([topic.name]))
    with pytest.raises(Unservable, match="no partition"):
        make(continuous=True).begin(position, 3)
    other = Topic(topic.servers)
    renamed = position.replace(topic.name.encode(), other.name.encode())
    shorter = KafkaSource(
        a_context(kafka={"bootstrap.servers": topic.servers}),
        parts.a_step("kafka", topics=[other.name], continuous=True), 0, 1,
    )  # fmt: skip
    with pytest.raises(Unservable, match="ends at offset 0 now"):
        shorter.begin(renamed, 3)
    shorter.close()


@pytest.mark.parametrize("position", [b"nonsense", b"{}", b'{"next":{"x":1}}'])
def test_Z3_what_is_no_position_is_refused(make: Callable[..., KafkaSource], position: bytes) -> None:
    with pytest.raises(Unservable, match="position"):
        make().begin(position, 3)


def test_formats(topic: Topic, make: Callable[..., KafkaSource]) -> None:
    def rows(partition: int, **options: Any) -> list[Any]:
        start = {f"{topic.name}/{i}": 0 if i == partition else ends[i] for i in (0, 1)}
        source = make(start=start, **options)
        return [row for _, found in parts.read_on(source, source.begin(b"", 0), 100) for row in found]

    schema = {"type": "record", "name": "R", "fields": [
        {"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}]}  # fmt: skip
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {"id": 7, "name": None, "tags": ["a"], "at": 1000})
    topic.send([b'{"id": 1, "name": "a"}', b'{"id": 2}'], 0)
    topic.send([b"\0\0\0\0\1" + out.getvalue()], 1)
    ends = (2, 1)
    assert rows(0, format="json", schema="id BIGINT, name STRING") == [(1, "a"), (2, None)]
    assert rows(0, format="json", schema="id BIGINT", columns=["key", "offset"])[1] == (2, bytearray(b"k"), 1)
    assert rows(0, format="string")[1] == ('{"id": 2}',)
    (avro,) = rows(1, format="avro", schema=json.dumps(schema), avro_header_bytes=5, columns=["partition"])
    assert avro[:3] == (7, None, ["a"])
    assert avro[3].second == 1
    assert avro[4] == 1
    (raw,) = rows(1, columns=["headers"])
    assert (raw[0], raw[2:5], raw[6]) == (bytearray(b"k"), (topic.name, 1, 0), [("h", bytearray(b"1"))])
    with pytest.raises(Exception, match=r"is not what the schema says|MALFORMED"):
        rows(0, format="avro", schema=json.dumps(schema))
    assert rows(0, format="avro", schema=json.dumps(schema), on_bad_record="null")[0] == (None,) * 4
    with pytest.raises(Exception, match=r"MALFORMED|Malformed"):
        rows(1, format="json", schema="id BIGINT")
    assert rows(1, format="json", schema="id BIGINT", on_bad_record="null") == [(None,)]


def test_a_json_record_is_parsed_once_and_one_without_a_value_is_a_row(
    topic: Topic, make: Callable[..., KafkaSource]
) -> None:
    topic.send([b'{"id": 1}', None, b'{"id": 3}'], 0)
    source = make(format="json", schema="id BIGINT", columns=["offset"])
    taken = source.next_slice(source.begin(b"", 0), 100)
    assert taken is not None
    assert sorted(taken.frame.collect(), key=lambda row: row.kafka_offset) == [(1, 0), (None, 1), (3, 2)]
    filtered = taken.frame.filter("id % 2 = 1 AND id > 2")
    assert filtered.collect() == [(3, 2)]
    assert filtered._jdf.queryExecution().executedPlan().toString().count("from_json") == 1


@pytest.mark.parametrize(("options", "says"), [
    ({"topics": []}, "length >= 1"),
    ({"format": "json"}, "needs a schema"),
    ({"format": "raw", "schema": "id BIGINT"}, "has no schema"),
    ({"format": "avro", "schema": '{"type": "string"}'}, "no record"),
    ({"properties": {"isolation.level": "read_uncommitted"}}, "which Detent sets by itself"),
    ({"properties": {"sasl.password": "hush"}}, "written out"),
    ({"topic": "x"}, "unknown field"),
])  # fmt: skip
def test_bad_options_are_told_before_anything_is_read(
    make: Callable[..., KafkaSource], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(OptionsRefused, match=says):
        make(**options)


def test_a_topic_that_is_not_there_and_a_cluster_that_is_not_named(
    make: Callable[..., KafkaSource], a_context: parts.ContextMaker
) -> None:
    with pytest.raises(Refused, match=r"reads nowhere-to-be-found, which .* does not have"):
        make(topics=["nowhere-to-be-found"]).begin(b"", 0)
    with pytest.raises(Refused, match="the schema of 'it' can't be used"):
        make(format="json", schema="id NO_SUCH_TYPE").begin(b"", 0)
    with pytest.raises(OptionsRefused, match="needs bootstrap_servers"):
        KafkaSource(a_context(), parts.a_step("kafka", topics=["x"]), 0, 1)
