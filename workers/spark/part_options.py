"""The options of kafka, jdbc, iceberg and format, as a job's specification gives them. No PySpark here.

Each field says what it is for by its description: `detent validate` and the JSON Schema are made from these.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from workers.secrets import Properties, Secret

Mode = Annotated[
    Literal["append", "error_if_exists", "overwrite"],
    Meta(
        description="What becomes of rows that are there before the job's first output: they stay; the job fails; they "
        "go with the first commit."
    ),
]
Name = Annotated[str, Meta(min_length=1)]
ServersOf = Annotated[
    str, Meta(description="Addresses of brokers, host:port with commas. Empty: the cluster that Detent itself is on.")
]
PropertiesOf = Annotated[
    Properties, Meta(description="Properties of the Kafka client (librdkafka), such as security.protocol.")
]


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all have in common: a field that is not known is an error."""


class KafkaSourceOptions(Options, frozen=True, kw_only=True):
    """Topics of Kafka, committed records only. Tasks share the partitions. An offset that is gone is an error."""

    topics: Annotated[list[Name], Meta(min_length=1, description="Which topics.")]
    bootstrap_servers: ServersOf = ""
    properties: PropertiesOf = {}
    continuous: Annotated[bool, Meta(description="Go on for ever. Otherwise: to the ends there are at start.")] = False
    start: Annotated[
        Literal["earliest", "latest"] | Annotated[int, Meta(ge=0)] | dict[str, Annotated[int, Meta(ge=0)]],
        Meta(
            description="Where a new job begins: earliest, latest, a time in milliseconds since 1970, or offsets as "
            "topic/partition: offset, for each partition."
        ),
    ] = "earliest"
    format: Annotated[
        Literal["raw", "string", "json", "avro"],
        Meta(
            description="What values are. raw: columns key, value, topic, partition, offset, timestamp. string: value "
            "as text. json, avro: a column for each field of `schema`."
        ),
    ] = "raw"
    schema: Annotated[str, Meta(description="json: the columns as Spark's DDL. avro: the record's schema as JSON.")] = (
        ""
    )
    avro_header_bytes: Annotated[
        int, Meta(ge=0, description="avro: bytes before each record. 5 for Confluent's wire format.")
    ] = 0
    columns: Annotated[
        list[Literal["key", "topic", "partition", "offset", "timestamp", "headers"]],
        Meta(description="Columns beside the value's. raw has all but headers by itself; elsewhere named kafka_…."),
    ] = []
    on_bad_record: Annotated[
        Literal["fail", "null"], Meta(description="A value that is not in the format fails the task, or is null.")
    ] = "fail"
    splits: Annotated[int, Meta(ge=0, description="Spark tasks a slice is read by. 0: one for each partition.")] = 0


class KafkaSinkOptions(Options, frozen=True, kw_only=True):
    """A topic of Kafka: each checkpoint is one transaction, with a record on `marker_topic` that tells of it."""

    topic: Annotated[Name, Meta(description="The topic. It must be there.")]
    staging: Annotated[Name, Meta(description="A directory that all workers and executors see.")]
    bootstrap_servers: ServersOf = ""
    properties: PropertiesOf = {}
    marker_topic: Annotated[
        Name, Meta(description="A compacted topic for the records of what is published; made if it is not there.")
    ] = "detent-published"
    format: Annotated[
        Literal["raw", "json"],
        Meta(
            description="raw: the columns value, and if there are any key, partition and headers, of text or bytes. "
            "json: all columns but those in `key` as one JSON object."
        ),
    ] = "json"
    key: Annotated[str, Meta(description="json: the column that becomes the record's key. Empty: no key.")] = ""
    transaction_timeout_ms: Annotated[
        int, Meta(ge=1000, description="After how long the broker gives up the transaction of a publisher that died.")
    ] = 60_000


class JdbcOptions(Options, frozen=True, kw_only=True):
    """What a JDBC source and a JDBC sink both need."""

    url: Annotated[str, Meta(pattern="^jdbc:", description="The database, such as jdbc:postgresql://host/name.")]
    table: Annotated[Name, Meta(description="The table, with its schema if that is not the default one.")]
    user: Annotated[str | Secret, Meta(description="Who logs in.")] = ""
    password: Annotated[Secret | None, Meta(description='Where the password is: {"secret": "env:NAME"}.')] = None
    driver: Annotated[str, Meta(description="The driver's class. Empty: as the URL says.")] = ""
    properties: Annotated[Properties, Meta(description="Properties of the connection.")] = {}


class JdbcSourceOptions(JdbcOptions, frozen=True, kw_only=True):
    """A table of a database, read in ranges of a key column that has an index and no nulls. Tasks share it by
    `key % tasks`."""

    key_column: Annotated[Name, Meta(description="Rows are read in its order. Unique, or nearly so.")]
    share_by: Annotated[
        str, Meta(description="An SQL expression, a whole number, to share rows by. Empty: the key, if it is a number.")
    ] = ""
    columns: Annotated[list[Name], Meta(description="Which columns. Empty: all.")] = []
    where: Annotated[str, Meta(description="An SQL condition that rows must meet.")] = ""
    continuous: Annotated[
        bool, Meta(description="Go on for ever, by growing keys. Otherwise: to the highest key there is at start.")
    ] = False


class JdbcSinkOptions(JdbcOptions, frozen=True, kw_only=True):
    """A table of a database: each checkpoint is one transaction, with a row in `marker_table` that tells of it."""

    mode: Annotated[
        Literal["append", "upsert", "error_if_exists", "overwrite"],
        Meta(
            description="append: rows are added. upsert: rows replace those with the same key. error_if_exists: the "
            "table must be empty. overwrite: rows that are there go with the first commit."
        ),
    ] = "append"
    key_columns: Annotated[list[Name], Meta(description="upsert: a unique key of the table.")] = []
    create: Annotated[bool, Meta(description="Make the table if it is not there, as the rows are.")] = False
    marker_table: Annotated[Name, Meta(description="Made if it is not there.")] = "detent_published"


class IcebergOptions(Options, frozen=True, kw_only=True):
    """What an Iceberg source and an Iceberg sink both need."""

    table: Annotated[str, Meta(pattern=r"^[^.]+(\.[^.]+){2,}$", description="catalog.namespace.table")]
    catalog: Annotated[
        Properties,
        Meta(
            description="Properties of Iceberg's catalog, such as type and warehouse. Empty: the catalog is in "
            "worker.spark.conf."
        ),
    ] = {}


class IcebergSourceOptions(IcebergOptions, frozen=True, kw_only=True):
    """An Iceberg table: one snapshot, or what is appended from then on. Files are dealt to the tasks."""

    continuous: Annotated[
        bool, Meta(description="After the snapshot, go on with what is appended. Otherwise: the snapshot alone.")
    ] = False
    snapshot: Annotated[int, Meta(ge=0, description="Which snapshot. 0: the table's current one at start.")] = 0
    start: Annotated[
        Literal["snapshot", "latest"],
        Meta(description="Where a continuous job begins: with the snapshot's rows, or with what comes after it."),
    ] = "snapshot"
    columns: Annotated[list[Name], Meta(description="Which columns. Empty: all.")] = []


class IcebergSinkOptions(IcebergOptions, frozen=True, kw_only=True):
    """An Iceberg table: each checkpoint is one snapshot that carries its identity."""

    mode: Mode = "append"
    create: Annotated[bool, Meta(description="Make the table if it is not there, as the rows are.")] = True
    partition_by: Annotated[
        list[Name], Meta(description="When it is made: partitions, such as `day(at)` or `bucket(16, id)`.")
    ] = []
    table_properties: Annotated[dict[str, str], Meta(description="When it is made: its properties.")] = {}
    writer: Annotated[
        dict[str, str], Meta(description="Options of Iceberg's writer, such as target-file-size-bytes.")
    ] = {}


class CompactionSourceOptions(IcebergOptions, frozen=True, kw_only=True):
    """Small files of an Iceberg table, and those with deletes, to be written anew by the sink iceberg_compaction."""

    target_file_size_bytes: Annotated[
        int, Meta(ge=1, description="How large files should be. Those below three quarters of it are small.")
    ] = 512 * 1024 * 1024
    min_input_files: Annotated[int, Meta(ge=1, description="How many small files of a partition are worth it.")] = 2
    snapshot: Annotated[int, Meta(ge=0, description="Which snapshot. 0: the table's current one at start.")] = 0


class CompactionSinkOptions(IcebergOptions, frozen=True, kw_only=True):
    """Replaces the files that the source iceberg_compaction has read, in one snapshot for each checkpoint."""

    writer: Annotated[
        dict[str, str], Meta(description="Options of Iceberg's writer, such as target-file-size-bytes.")
    ] = {}


class FormatSourceOptions(Options, frozen=True, kw_only=True):
    """Any batch format of Spark, read in ranges of a key column: a number, a date or a timestamp, without nulls. What
    has been read must not change. Tasks share rows by the key's hash."""

    format: Annotated[Name, Meta(description="The format's name, as for spark.read.format.")]
    key_column: Annotated[Name, Meta(description="Rows are read in its order.")]
    options: Annotated[Properties, Meta(description="The format's options.")] = {}
    path: Annotated[str, Meta(description="What is loaded, for formats that have a path.")] = ""
    schema: Annotated[str, Meta(description="The columns as Spark's DDL, for formats that need it.")] = ""
    continuous: Annotated[
        bool, Meta(description="Go on for ever, by growing keys. Otherwise: to the highest key there is at start.")
    ] = False
    poll_ms: Annotated[int, Meta(ge=100, description="How often a continuous source looks for higher keys.")] = 1000
