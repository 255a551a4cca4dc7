"""Kafka → parquet for bench.dataplane: orders as JSON on a topic, and three or four ways to read them.

plain: PySpark with Detent's own data source for ranges of offsets, in one go. detent: a job. streaming: Structured
Streaming over the same reading, in as many slices as Detent took. connector: Spark's own, where its jars can be had.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from bench.data_jobs import CORES, Detent
from bench.harness import progress
from events.cluster import Cluster
from events.topics import answered
from workers.spark.kafka_datasource import NAME, KafkaRanges
from workers.spark.kafka_read import Columns, Range, ddl_of, read_ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id LONG, customer LONG, amount DOUBLE, text STRING"
QUERY = "SELECT id, customer, amount * 1.2 AS gross, upper(text) AS text FROM input WHERE customer % 10 <> 3"
PARTITIONS = 4
STREAM = "bench-kafka-stream"


class Topic:
    """A topic with so many orders."""

    def __init__(self, cluster: Cluster, records: int) -> None:
        self.servers, self.name, self.records = cluster.bootstrap_servers, f"orders-{uuid.uuid4().hex[:8]}", records
        admin = cluster.admin()
        made = admin.create_topics([NewTopic(self.name, PARTITIONS)])
        answered(cluster, "making the topic", 30, lambda: next(iter(made.values())).result(30))
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 20, "compression.type": "lz4",
                             "queue.buffering.max.messages": 1_000_000})  # fmt: skip
        for number in range(records):
            if number % 10_000 == 0:
                progress(f"writing the topic: {number:,} of {records:,}")
                while len(producer) > 500_000:
                    producer.poll(0.1)
            customer = number * 2654435761 & 0xFFFFF
            value = b'{"id":%d,"customer":%d,"amount":%d.5,"text":"order of %d"}' % (
                number, customer, number & 0xFFFF, customer)  # fmt: skip
            producer.produce(self.name, value, partition=number % PARTITIONS)
        producer.flush(60)
        progress("")

    @property
    def ends(self) -> list[int]:
        return [len(range(partition, self.records, PARTITIONS)) for partition in range(PARTITIONS)]


class KafkaContest:
    """Each way writes its rows to a folder and tells the seconds that took."""

    def __init__(self, spark: SparkSession, workers: Detent, topic: Topic, *, connector: bool) -> None:
        self._spark, self._workers, self._topic = spark, workers, topic
        self.slices = CORES
        spark.dataSource.register(KafkaRanges)
        spark.dataSource.register(KafkaStream)
        self.contenders: dict[str, Callable[[Path], float]] = {
            "plain": self.plain, "detent": self.detent, "streaming": self.streaming}  # fmt: skip
        if connector:
            self.contenders["connector"] = self.connector

    def plain(self, out: Path) -> float:
        began = time.monotonic()
        splits = [[(self._topic.name, partition, 0, end)] for partition, end in enumerate(self._topic.ends)]
        given = {"columns": '["value"]', "splits": json.dumps(splits), "properties": json.dumps(self._properties)}
        self._queried(self._spark.read.format(NAME).options(**given).load()).write.parquet(str(out))
        return time.monotonic() - began

    def detent(self, out: Path) -> float:
        options = {"topics": [self._topic.name], "format": "json", "schema": SCHEMA, "splits": 1}
        took, name = self._workers.run({
            "env": {"parallelism": CORES},
            "source": [{"name": "orders", "kind": "kafka", "options": options}],
            "transform": [{"name": "query", "kind": "sql", "from": ["orders"], "options": {"query": QUERY}}],
            "sink": [{"name": "out", "kind": "files", "from": ["query"], "options": {"path": str(out)}}],
        })  # fmt: skip
        acks = [ack for checkpoint in self._workers.checkpoints(name) for ack in checkpoint.acks]
        self.slices = sum(len(ack.staged) for ack in acks)
        return took

    def streaming(self, out: Path) -> float:
        began = time.monotonic()
        slices = max(1, math.ceil(self.slices / CORES))  # Detent's tasks each have their own, a trigger is for all
        given = {"servers": self._topic.servers, "topic": self._topic.name, "ends": json.dumps(self._topic.ends),
                 "most": str(math.ceil(max(self._topic.ends) / slices))}  # fmt: skip
        rows = self._queried(self._spark.readStream.format(STREAM).options(**given).load())
        writer = rows.writeStream.format("parquet").option(
            "checkpointLocation", str(out.with_name(f"{out.name}-state"))
        )
        query = writer.trigger(processingTime="0 seconds").start(str(out))
        try:
            while not self._is_done(query):
                time.sleep(0.01)
        finally:
            query.stop()
        return time.monotonic() - began

    def connector(self, out: Path) -> float:
        began = time.monotonic()
        ends = json.dumps({self._topic.name: {str(number): end for number, end in enumerate(self._topic.ends)}})
        given = {"kafka.bootstrap.servers": self._topic.servers, "subscribe": self._topic.name,
                 "startingOffsets": "earliest", "endingOffsets": ends}  # fmt: skip
        rows = self._spark.read.format("kafka").options(**given).load().select("value")
        self._queried(rows).write.parquet(str(out))
        return time.monotonic() - began

    @property
    def _properties(self) -> dict[str, str]:
        return {"bootstrap.servers": self._topic.servers}

    def _queried(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        parsed = rows.select(f.from_json(f.col("value").cast("string"), SCHEMA).alias("value")).select("value.*")
        parsed.createOrReplaceTempView("input")
        return self._spark.sql(QUERY)

    def _is_done(self, query: Any) -> bool:
        if query.exception() is not None:
            raise RuntimeError(f"the stream has ended: {query.exception()}")
        return sum(int(each["numInputRows"]) for each in query.recentProgress) >= self._topic.records


def named(ends: Sequence[int]) -> dict[str, int]:
    return {str(number): end for number, end in enumerate(ends)}


class KafkaStream(DataSource):
    """The same reading as a stream, in slices of at most so many records of each partition."""

    @classmethod
    def name(cls) -> str:
        return STREAM

    def schema(self) -> str:
        return ddl_of(["value"])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002  as Spark calls it
        return StreamReader(dict(self.options))


class StreamReader(DataSourceStreamReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._topic, self._most = options["topic"], int(options["most"])
        self._properties = {"bootstrap.servers": options["servers"]}
        self._ends: list[int] = json.loads(options["ends"])
        self._next = [0] * len(self._ends)

    def initialOffset(self) -> dict[str, int]:
        return named([0] * len(self._ends))

    def latestOffset(self) -> dict[str, int]:
        self._next = [min(end, at + self._most) for at, end in zip(self._next, self._ends, strict=True)]
        return named(self._next)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(Range(self._topic, int(name), start[name], end[name])) for name in end]

    def read(self, partition: InputPartition) -> Any:
        return read_ranges(self._properties, [partition.value], Columns(["value"]))
