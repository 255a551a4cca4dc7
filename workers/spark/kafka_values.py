"""Kafka's records as rows of a data frame: what a value is, by the source's format, and which columns there are.

Reading and Avro are done in Spark's Python processes (workers/spark/kafka_read.py), text and JSON by Spark itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from workers.plan import OptionsRefused
from workers.secrets import Scalar
from workers.spark.api import Refused
from workers.spark.arrow_frames import arrow_frame
from workers.spark.avro_values import AvroColumns, record_fields
from workers.spark.kafka_read import Columns, Range, Reading, ddl_of
from workers.spark.part_options import KafkaSourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RAW = ("key", "value", "topic", "partition", "offset", "timestamp")
PREFIX = "kafka_"


class Values:
    """Ranges → frames, for one source."""

    def __init__(self, options: KafkaSourceOptions, step: str) -> None:
        """Raises OptionsRefused."""
        self._options, self._step = options, step
        if options.format in ("json", "avro") and not options.schema:
            raise OptionsRefused(f"{step!r} reads {options.format} and needs a schema")
        if options.format in ("raw", "string") and options.schema:
            raise OptionsRefused(f"{step!r} reads {options.format}, which has no schema")
        self._strict = options.on_bad_record == "fail"
        self._beside = list(options.columns)
        self._avro = record_fields(options.schema, step) if options.format == "avro" else []

    def check(self, session: SparkSession) -> None:
        """Whether Spark can make rows of it. Raises Refused."""
        from pyspark.errors import PySparkException

        try:
            self.frame(session, {}, [])
        except PySparkException as error:
            words = str(error).partition("\n")[0]
            raise Refused(f"the schema of {self._step!r} can't be used: {words}") from error

    def frame(
        self, session: SparkSession, properties: Mapping[str, Scalar], splits: Sequence[Sequence[Range]]
    ) -> DataFrame:
        """Lazy: it is read when Spark runs it."""
        from pyspark.sql import functions as f

        kind, beside = self._options.format, [f.col(name).alias(f"{PREFIX}{name}") for name in self._beside]
        if kind == "avro":
            return self._avro_frame(session, properties, splits)
        if kind == "raw":
            names = [*RAW, *(name for name in self._beside if name not in RAW)]
            return arrow_frame(session, splits, Reading(properties, Columns(names)), ddl_of(names))
        names = ["value", *self._beside]
        frame = arrow_frame(session, splits, Reading(properties, Columns(names)), ddl_of(names))
        text = f.col("value").cast("string")
        if kind == "string":
            return frame.select(text.alias("value"), *beside)
        mode = {"mode": "FAILFAST" if self._strict else "PERMISSIVE"}
        row = f.from_json(text, self._options.schema, mode)
        # Through what is not deterministic Spark pushes no filter: it would parse every record again for it.
        once = f.when(f.spark_partition_id() >= 0, row).alias("value")
        return frame.select(once, *beside).select("value.*", *(f"{PREFIX}{name}" for name in self._beside))

    def _avro_frame(
        self, session: SparkSession, properties: Mapping[str, Scalar], splits: Sequence[Sequence[Range]]
    ) -> DataFrame:
        from pyspark.sql.pandas.types import from_arrow_schema
        from pyspark.sql.types import StructType

        options = self._options
        batches = AvroColumns(options.schema, self._avro, options.avro_header_bytes, self._strict, self._beside)
        schema = from_arrow_schema(pa.schema(self._avro))
        beside: Any = StructType.fromDDL(ddl_of(self._beside)) if self._beside else ()
        for field in beside:
            schema = schema.add(field)
        frame = arrow_frame(session, splits, Reading(properties, batches), schema)
        return frame.withColumnsRenamed({name: f"{PREFIX}{name}" for name in self._beside})
