"""The sink `kafka`: records on a topic, each exactly once, by one producer transaction for each checkpoint.

Pieces are parquet files in a staging directory. Publishing opens a producer under the sink's transactional id, which
fences whoever else is at it and ends what that one left open; then it looks for the checkpoint's marker on the marker
topic; and only when there is none it writes all records and the marker, in one transaction. A commit without a definite
answer throws the producer away, and the next try begins at the first step (see events/writer.py for why).
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from events.errors import Fenced, OutcomeUnknown, RecordTooLarge, TransactionAborted
from events.writer import Outgoing, TransactionalWriter
from workers.engine import MayPublish
from workers.ledger import Identity
from workers.plan import Step, options_of
from workers.secrets import Secrets
from workers.spark.api import Commit, Context, Piece, Refused
from workers.spark.files_sink import FilesSink, local_path
from workers.spark.identity import identity_of, owner_of
from workers.spark.kafka_client import cluster_of, partitions_of, properties_of
from workers.spark.kafka_markers import MARKERS_KEPT, Markers
from workers.spark.part_options import KafkaSinkOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

RAW = {"value": ("string", "binary"), "key": ("string", "binary"), "partition": ("int",),
       "headers": ("array<struct<key:string,value:binary>>",)}  # fmt: skip
BATCH_ROWS = 10_000
ANY_PARTITION = -1


class KafkaSink:
    def __init__(self, context: Context, step: Step, job: str, incarnation: int) -> None:
        self._options = options = options_of(step, KafkaSinkOptions)
        self._name = step.name
        properties = properties_of(
            context, step.name, options.bootstrap_servers, options.properties, Secrets(step.name)
        )
        self._cluster = cluster_of(properties)
        staging = local_path(step, options.staging)
        self._files = FilesSink(context, Step(step.name, "files", options={"path": str(staging)}), job, incarnation)
        self._staged = self._files.staging
        self._owner = owner_of(job, incarnation, step.name)
        # Another Detent may have a job of that name on the same cluster: it stages elsewhere.
        apart = hashlib.sha256(str(staging).encode()).hexdigest()[:8]
        self._transactional_id = f"detent-{self._owner}{apart}"
        self._markers = Markers(self._cluster, options.marker_topic, self._owner)

    # Before data moves -----------------------------------------------------------------------------------------------

    def prepare(self, *, fresh: bool) -> None:
        with self._markers.asking() as consumer:
            if not partitions_of(consumer, self._cluster, [self._options.topic]):
                raise Refused(
                    f"sink {self._name!r}: {self._cluster.bootstrap_servers} has no topic {self._options.topic}. Make "
                    "it with as many partitions as it needs."
                )
        self._markers.make()
        self._files.prepare(fresh=fresh)

    def check(self, schema: StructType) -> None:
        if self._options.format == "json":
            if self._options.key and self._options.key not in schema.names:
                has = ", ".join(schema.names)
                raise Refused(f"sink {self._name!r}: key is {self._options.key!r}, but the rows have {has}")
            return
        wrong = [f"{field.name} is none of {', '.join(RAW)}" for field in schema if field.name not in RAW]
        wrong += [
            f"{field.name} is {field.dataType.simpleString()}, not {' or '.join(RAW[field.name])}"
            for field in schema
            if field.name in RAW and field.dataType.simpleString() not in RAW[field.name]
        ]
        if "value" not in schema.names:
            wrong.append("there is no value")
        if wrong:
            raise Refused(f"sink {self._name!r}: the rows are no records of Kafka: {'; '.join(wrong)}")

    # Staging ---------------------------------------------------------------------------------------------------------

    def stage(self, frame: DataFrame, who: Identity, rows: int) -> Sequence[Piece]:
        return self._files.stage(self._records(frame), who, rows)

    def _records(self, frame: DataFrame) -> DataFrame:
        """Columns of Kafka's records, key and value as bytes."""
        from pyspark.sql import functions as f

        if self._options.format == "raw":
            texts = [name for name in ("key", "value") if name in frame.columns]
            return frame.withColumns({name: f.col(name).cast("binary") for name in texts})
        key = self._options.key
        value = f.to_json(f.struct(*(name for name in frame.columns if name != key)), {"ignoreNullFields": "false"})
        columns = [value.cast("binary").alias("value")]
        return frame.select(*columns, *([f.col(key).cast("string").cast("binary").alias("key")] if key else []))

    def discard(self, pieces: Sequence[Piece]) -> None:
        self._files.discard(pieces)

    def remove(self) -> int:
        if left := self._markers.known():
            with self._writer() as writer:
                writer.commit([self._markers.forgotten(key) for key in left])
        return self._files.remove()

    def close(self) -> None:
        """Nothing is held."""

    # Publishing ------------------------------------------------------------------------------------------------------

    def publish(self, commit: Commit, may_publish: MayPublish) -> int:
        if not commit.pieces:
            return 0
        try:
            self._publish(commit, may_publish)
        except RecordTooLarge as error:
            raise Refused(f"sink {self._name!r}: {error}") from error
        except (Fenced, OutcomeUnknown, TransactionAborted) as error:
            raise Refused(f"sink {self._name!r}: {error}", lasting=False) from error
        self._files.discard(commit.pieces)
        return commit.rows

    def _publish(self, commit: Commit, may_publish: MayPublish) -> None:
        identity = identity_of(commit, self._name)
        with self._writer() as writer:  # nobody else can commit from here on, and what they began has ended
            known = self._markers.known()
            if identity in known:
                return
            if gone := self._gone(commit):
                if identity in self._markers.known():
                    return  # somebody who came later has fenced us, published it, and removed what was staged
                shown = ", ".join(gone[:3])
                raise Refused(f"sink {self._name!r}: {len(gone)} staged files are gone from {self._staged}: {shown}")
            old = [key for key, checkpoint in known.items() if checkpoint < commit.checkpoint - MARKERS_KEPT]
            writer.commit_stream(self._outgoing(commit, identity, old, may_publish))

    def _writer(self) -> TransactionalWriter:
        return TransactionalWriter(
            self._cluster, self._transactional_id, transaction_timeout_ms=self._options.transaction_timeout_ms
        )

    def _outgoing(
        self, commit: Commit, identity: str, old: Sequence[str], may_publish: MayPublish
    ) -> Iterator[Outgoing]:
        """The marker comes last: other publishers read its partition, and wait for whoever has begun to write there."""
        from pyarrow import parquet

        for piece in commit.pieces:
            for name in _files_of(piece):
                with parquet.ParquetFile(self._staged / piece.name / name) as file:
                    for batch in file.iter_batches(BATCH_ROWS):
                        yield from self._of(batch.to_pydict())
        for key in old:
            yield self._markers.forgotten(key)
        yield self._markers.marker(identity, commit)
        if not may_publish():
            raise Refused("the worker's lease is lost", lasting=False)

    def _of(self, columns: dict[str, list[Any]]) -> Iterator[Outgoing]:
        values = columns["value"]
        nothing = [None] * len(values)
        keys, headers = columns.get("key", nothing), columns.get("headers", nothing)
        partitions = columns.get("partition", nothing)
        for value, key, partition, given in zip(values, keys, partitions, headers, strict=True):
            told = None if given is None else [(each["key"], each["value"]) for each in given]
            where = ANY_PARTITION if partition is None else partition
            yield Outgoing(self._options.topic, where, key, value, told)

    def _gone(self, commit: Commit) -> list[str]:
        """Files of its pieces that are not there."""
        return [
            f"{piece.name}/{name}"
            for piece in commit.pieces
            for name in _files_of(piece)
            if not (self._staged / piece.name / name).exists()
        ]


def _files_of(piece: Piece) -> list[str]:
    """As the sink `files` names them."""
    found: list[str] = json.loads(zlib.decompress(piece.detail))
    return found
