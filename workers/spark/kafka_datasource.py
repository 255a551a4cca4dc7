"""Ranges of offsets as a data source of Spark, `detent-kafka`, for whoever reads them by hand.

Planning one costs Spark two new Python processes; Detent's own slices go a shorter way (workers/spark/arrow_frames.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from workers.spark.kafka_read import Columns, Range, ddl_of, read_ranges

NAME = "detent-kafka"


class KafkaRanges(DataSource):
    """Options, all JSON: `properties` of the client, `splits` (lists of ranges, one for each Spark task) and `columns`.

    To be registered by session.dataSource.register(KafkaRanges)."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return ddl_of(json.loads(self.options["columns"]))

    def reader(self, schema: StructType) -> DataSourceReader:
        return RangesReader(self.options["properties"], self.options["splits"], schema.names)


class RangesReader(DataSourceReader):
    def __init__(self, properties: str, splits: str, columns: list[str]) -> None:
        self._properties, self._columns = json.loads(properties), columns
        self._splits = [[Range(*each) for each in split] for split in json.loads(splits)]

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(split) for split in self._splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_ranges(self._properties, partition.value, Columns(self._columns))
