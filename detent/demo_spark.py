"""The demo on Spark: orders from Parquet files and from a Kafka topic, through SQL, into one Iceberg table. The check
reads the source and the table's files with pyarrow and a plain Kafka consumer: neither Spark nor Detent is asked."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from detent.demo_play import ENV, JOB, RowsDiffer
from detent.jobs import Job
from events.cluster import Cluster
from events.errors import DetentError

TOPIC = "demo-orders"
NAMESPACE, TABLE = "sales", "orders"
PARTITIONS = 2
FILES = 24
DELETED = 2  # of an entry in a manifest
COUNTRIES = ("no", "de", "br", "jp", "us")
SPREAD, DEAREST = 7919, 10_007  # what an order costs: scattered, the same every time
COLUMNS = "id bigint, cents bigint, country string"
QUERY = "select id, '{origin}' as origin, cents, upper(country) as country from {source}"


# Two workers on one small machine: one core and a small heap for each. For a JVM that lives a minute or two, code that
# is compiled quickly beats code that is compiled well: a third less CPU.
SETTINGS = {
    "worker.spark.master": "local[1]",
    "worker.spark.conf.spark.driver.memory": "640m",
    "worker.spark.conf.spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "worker.spark.conf.spark.sql.shuffle.partitions": "1",
}


class SparkPlay:
    """`rows` orders, a quarter of them from Kafka."""

    def __init__(self, directory: Path, rows: int) -> None:
        self.rows, self._in, self._warehouse = rows, directory / "orders", directory / "warehouse"
        self._of_kafka = rows // 4
        self.settings: Mapping[str, str] = SETTINGS
        self._cluster: Cluster | None = None
        of_files = rows - self._of_kafka
        self.says = (
            f"{of_files:,} orders from Parquet and {self._of_kafka:,} from Kafka, through SQL, into one Iceberg table"
        )

    def prepare(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._write_files(self.rows - self._of_kafka)
        self._write_topic(cluster, self.rows - self._of_kafka, self._of_kafka)

    def _write_files(self, rows: int) -> None:
        self._in.mkdir(parents=True)
        for number in range(FILES):
            ids = pa.array(range(number * rows // FILES, (number + 1) * rows // FILES), pa.int64())
            scattered = pc.multiply(ids, SPREAD)
            table = pa.table(
                {
                    "id": ids,
                    "cents": remainder(scattered, DEAREST),
                    "country": pa.array(COUNTRIES).take(remainder(ids, len(COUNTRIES))),
                }
            )
            pq.write_table(table, self._in / f"orders-{number:02}.parquet")

    def _write_topic(self, cluster: Cluster, first: int, rows: int) -> None:
        new = NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)
        admin = cluster.admin()  # held: what it was asked is lost with it
        admin.create_topics([new])[TOPIC].result(timeout=30)
        producer: Producer = cluster.producer(linger_ms=50, queue_buffering_max_messages=1_000_000)
        for i in range(first, first + rows):
            cents, country = i * SPREAD % DEAREST, COUNTRIES[i % len(COUNTRIES)]
            value = f'{{"id":{i},"cents":{cents},"country":"{country}"}}'
            while True:
                try:
                    producer.produce(TOPIC, value, partition=i % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
        cluster.flush(producer, "writing the demo's orders", 60)

    def job(self) -> Job:
        job = Job(JOB).env(**ENV)
        job = job.source("files", "files", parallelism=2, path=str(self._in), slice_files=1)
        job = job.source("topic", "kafka", parallelism=2, topics=[TOPIC], format="json", schema=COLUMNS)
        for source in ("files", "topic"):
            query = QUERY.format(origin=source, source=source)
            job = job.transform(f"{source}_orders", "sql", from_=source, query=query)
        catalog = {"type": "hadoop", "warehouse": str(self._warehouse)}
        return job.sink("table", "iceberg", table=f"lake.{NAMESPACE}.{TABLE}", catalog=catalog)

    def check(self) -> str:
        """As multisets, by id, and by the sum of what they are worth."""
        files = iceberg_files(self._warehouse / NAMESPACE / TABLE)
        table = pa.concat_tables([pq.read_table(file, columns=["id", "cents"]) for file in files])
        source = pa.concat_tables([pq.read_table(self._in, columns=["id", "cents"]), self._topic_table()])
        found, wanted = table["id"].sort(), source["id"].sort()
        worth, was_worth = pc.sum(table["cents"]).as_py(), pc.sum(source["cents"]).as_py()
        if not found.combine_chunks().equals(wanted.combine_chunks()) or worth != was_worth:
            distinct = pc.count_distinct(table["id"]).as_py()
            raise RowsDiffer(
                f"the table does not match the source: {len(found):,} rows, {distinct:,} different, worth {worth:,}; "
                f"the source has {len(wanted):,}, worth {was_worth:,}"
            )
        told = f"{len(found):,} rows in {len(files)} files, worth {worth:,} cents"
        return f"{told}: each of the source's is there, exactly once"

    def _topic_table(self) -> pa.Table:
        orders = list(self._topic_orders())
        return pa.table(
            {"id": pa.array([o["id"] for o in orders], pa.int64()), "cents": pa.array([o["cents"] for o in orders])}
        )

    def _topic_orders(self) -> Iterator[dict[str, int]]:
        assert self._cluster is not None, "prepare comes first"
        consumer = self._cluster.consumer(enable_partition_eof=False)
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        left, heard = self._of_kafka, time.monotonic()
        try:
            while left:
                for message in consumer.consume(10_000, 1.0):
                    if message.error() is None:
                        left, heard = left - 1, time.monotonic()
                        yield json.loads(message.value() or b"")
                if time.monotonic() - heard > 30:
                    raise DetentError(f"{left:,} orders of the topic {TOPIC} can't be read any more")
        finally:
            consumer.close()


def iceberg_files(table: Path) -> list[str]:
    """The data files of the newest snapshot, as Iceberg's own metadata names them."""
    version = (table / "metadata/version-hint.text").read_text().strip()
    metadata = json.loads((table / f"metadata/v{version}.metadata.json").read_text())
    (current,) = [s for s in metadata["snapshots"] if s["snapshot-id"] == metadata["current-snapshot-id"]]
    manifests = [entry["manifest_path"] for entry in _avro(current["manifest-list"])]
    entries = [entry for manifest in manifests for entry in _avro(manifest)]
    return [_local(entry["data_file"]["file_path"]) for entry in entries if entry["status"] != DELETED]


def _avro(path: str) -> list[Any]:
    with Path(_local(path)).open("rb") as file:
        return list(fastavro.reader(file))


def _local(path: str) -> str:
    return path.removeprefix("file://").removeprefix("file:")


def remainder(numbers: pa.Array, by: int) -> pa.Array:
    return pc.subtract(numbers, pc.multiply(pc.divide(numbers, by), by))
