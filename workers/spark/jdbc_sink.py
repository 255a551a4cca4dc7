"""The sink `jdbc`: a table of a database, each row exactly once, by one database transaction for each checkpoint.

A piece is a table of its own beside the target, `detent_…`, that Spark writes. Publishing copies the pieces of a
checkpoint into the target and inserts the marker row, in one transaction: the marker's key lets only one land. Who
comes second, or again, finds the marker. Tables of pieces are dropped afterwards; `remove` takes what was left.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workers.engine import MayPublish
from workers.ledger import Identity
from workers.plan import OptionsRefused, Step, options_of
from workers.spark.api import Commit, Context, Piece, Refused, piece_name
from workers.spark.identity import digest_of
from workers.spark.jdbc import Database, DatabaseRefused, Transaction
from workers.spark.jdbc_fit import misfits
from workers.spark.part_options import JdbcSinkOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

SEQUENCE = "detent_seq"  # a row's place in its piece: the last of several with the same key counts
BATCH_ROWS = "5000"
MARKERS_KEPT = 50  # of a pipeline: nobody asks for a checkpoint that so many others came after
MARKER = {"job": "VARCHAR(250)", "incarnation": "BIGINT", "pipeline": "INTEGER", "sink": "VARCHAR(100)",
          "checkpoint": "BIGINT", "pieces": "VARCHAR(16)"}  # fmt: skip
MARKER_KEY = ", ".join(MARKER)
OF_SINK = "job = ? AND incarnation = ? AND sink = ?"


class JdbcSink:
    def __init__(self, context: Context, step: Step, job: str, incarnation: int) -> None:
        self._options = options = options_of(step, JdbcSinkOptions)
        self._name, self._job, self._incarnation = step.name, job, incarnation
        if (options.mode == "upsert") != bool(options.key_columns):
            raise OptionsRefused(f"sink {step.name!r}: key_columns are for mode upsert, which needs them")
        self._database = Database(context, step, options)
        if options.mode == "upsert" and not self._database.dialect.upsert:
            raise OptionsRefused(f"sink {step.name!r}: upsert is not there for {options.url.split(':')[1]}; use append")
        schema, dot, _ = options.table.rpartition(".")
        self._schema = schema.strip('"`')
        self._beside = f"{schema}{dot}"  # pieces and target are in the same schema
        digest = hashlib.sha256(f"{job}\0{incarnation}\0{step.name}".encode()).hexdigest()
        self._prefix = f"detent_{digest[:16]}_"

    # Before data moves -----------------------------------------------------------------------------------------------

    def prepare(self, *, fresh: bool) -> None:
        self._make_markers()
        there = self._is_there()
        if not there and not self._options.create:
            raise Refused(
                f"sink {self._name!r}: there is no table {self._options.table}. Make it, or set create to true."
            )
        if there and fresh and self._options.mode == "error_if_exists":
            with self._database.transaction() as transaction:
                one = transaction.one(f"SELECT 1 FROM {self._options.table} {self._database.dialect.nth(0)}")
            if one is not None:
                raise Refused(
                    f"sink {self._name!r}: {self._options.table} holds rows already, and mode is error_if_exists. "
                    "Empty it, choose another table, or set mode to append, upsert or overwrite."
                )

    def check(self, schema: StructType) -> None:
        options, session = self._options, self._database.session
        if not self._is_there():
            self._create(schema)
        reader = session.read.format("jdbc").options(**self._database.spark_options)
        with self._database.telling("looking at the table"):
            table = reader.option("dbtable", options.table).load().schema
        if wrong := misfits(schema, table, options.key_columns):
            raise Refused(
                f"sink {self._name!r}: the rows do not fit {options.table}: {'; '.join(wrong)}. Change the "
                "transform, or the table."
            )

    def _create(self, schema: StructType) -> None:
        empty = self._database.session.createDataFrame([], schema)
        writer = empty.write.format("jdbc").options(**self._database.spark_options)
        try:
            with self._database.telling("making the table"):
                writer.option("dbtable", self._options.table).mode("ignore").save()
        except DatabaseRefused:
            if not self._is_there():  # another task may have been quicker
                raise

    def _make_markers(self) -> None:
        look = f"SELECT 1 FROM {self._markers} WHERE 1 = 0"
        try:
            with self._database.transaction() as transaction:
                transaction.one(look)
        except DatabaseRefused:
            columns = ", ".join(f"{name} {kind} NOT NULL" for name, kind in MARKER.items())
            make = f"CREATE TABLE {self._markers} ({columns}, rows_published BIGINT, PRIMARY KEY ({MARKER_KEY}))"
            with contextlib.suppress(DatabaseRefused), self._database.transaction() as transaction:
                transaction.run(make)
                transaction.commit()
            with self._database.transaction() as transaction:  # made here, or by somebody else meanwhile; or an error
                transaction.one(look)

    def _is_there(self) -> bool:
        try:
            with self._database.transaction() as transaction:  # of its own: some give it up with the first error
                transaction.one(f"SELECT 1 FROM {self._options.table} WHERE 1 = 0")
        except DatabaseRefused as error:
            if error.state.startswith("42") or not error.state:
                return False
            raise
        return True

    # Staging ---------------------------------------------------------------------------------------------------------

    def stage(self, frame: DataFrame, who: Identity, rows: int) -> Sequence[Piece]:  # noqa: ARG002  as all
        from pyspark.sql import functions as f

        name, quoted = piece_name(who), self._database.dialect.quoted
        table = self._table_of(name)
        columns = ", ".join(map(quoted, frame.columns))
        with self._database.transaction() as transaction:
            nothing = f"CAST(0 AS {self._database.dialect.bigint}) AS {quoted(SEQUENCE)}"
            transaction.run(
                f"CREATE TABLE {table} AS SELECT {columns}, {nothing} FROM {self._options.table} WHERE 1 = 0"
            )
            transaction.commit()
        writer = frame.withColumn(SEQUENCE, f.monotonically_increasing_id()).write.format("jdbc").mode("append")
        options = {**self._database.spark_options, "dbtable": table, "batchsize": BATCH_ROWS}
        with self._database.telling("writing a piece"):
            writer.options(**options).save()
        with self._database.transaction() as transaction:
            found = transaction.one(f"SELECT COUNT(*), COUNT(DISTINCT {quoted(SEQUENCE)}) FROM {table}")
        assert found is not None
        count, different = int(found[0] or 0), int(found[1] or 0)
        if count != different:  # a Spark task that was run again although it had committed
            raise Refused(f"sink {self._name!r}: Spark wrote {count - different} rows twice", lasting=False)
        piece = Piece(name, count)
        if not count:
            self.discard([piece])
            return []
        return [piece]

    def discard(self, pieces: Sequence[Piece]) -> None:
        if not pieces:
            return
        with self._database.transaction() as transaction:
            for piece in pieces:
                transaction.run(f"DROP TABLE IF EXISTS {self._table_of(piece.name)}")
            transaction.commit()

    def remove(self) -> int:
        try:
            self._forget()
        except DatabaseRefused as error:
            if not error.state.startswith("42"):  # the table of markers was never made
                raise
        with self._database.transaction() as transaction:
            left = transaction.tables(self._schema, f"{self._prefix}%")
            for table in left:
                transaction.run(f"DROP TABLE IF EXISTS {self._beside}{table}")
            transaction.commit()
        return len(left)

    def _forget(self) -> None:
        with self._database.transaction() as transaction:
            transaction.run(f"DELETE FROM {self._markers} WHERE {OF_SINK}", *self._of_sink)
            transaction.commit()

    def close(self) -> None:
        """Connections are closed as soon as they are not needed."""

    # Publishing ------------------------------------------------------------------------------------------------------

    def publish(self, commit: Commit, may_publish: MayPublish) -> int:
        if not commit.pieces:
            return 0
        if not self._is_published(commit):
            try:
                self._publish(commit, may_publish)
            except DatabaseRefused as error:
                if not self._is_published(commit):  # by somebody else, or after all
                    raise self._judged(error, commit) from error
        self.discard(commit.pieces)
        return commit.rows

    def _publish(self, commit: Commit, may_publish: MayPublish) -> None:
        with self._database.transaction() as transaction:
            if self._database.dialect.patience:
                transaction.run(self._database.dialect.patience)
            # First the marker: whoever else publishes the same waits here, and finds it.
            first = self._is_first(transaction, commit)
            places = ", ".join("?" for _ in MARKER)
            insert = f"INSERT INTO {self._markers} ({MARKER_KEY}, rows_published) VALUES ({places}, ?)"
            transaction.run(insert, *self._key_of(commit), commit.rows)
            if first and self._options.mode == "overwrite":
                transaction.run(f"DELETE FROM {self._options.table}")
            for piece in commit.pieces:
                self._copy(transaction, piece)
            old = f"DELETE FROM {self._markers} WHERE {OF_SINK} AND checkpoint < ?"
            transaction.run(old, *self._of_sink, commit.checkpoint - MARKERS_KEPT)
            if not may_publish():
                raise Refused("the worker's lease is lost", lasting=False)
            transaction.commit()

    def _copy(self, transaction: Transaction, piece: Piece) -> None:
        options, quoted, table = self._options, self._database.dialect.quoted, self._table_of(piece.name)
        names = [name for name in transaction.columns(f"SELECT * FROM {table} WHERE 1 = 0") if name != SEQUENCE]
        columns = ", ".join(map(quoted, names))
        if options.mode != "upsert":
            copied = transaction.run(f"INSERT INTO {options.table} ({columns}) SELECT {columns} FROM {table}")
            if copied != piece.rows:
                raise Refused(
                    f"sink {self._name!r}: {table} has {copied} rows, and {piece.rows} were staged", lasting=True
                )
            return
        keys = ", ".join(map(quoted, options.key_columns))
        newest = f"SELECT MAX({quoted(SEQUENCE)}) FROM {table} GROUP BY {keys}"
        transaction.run(
            f"INSERT INTO {options.table} ({columns}) SELECT {columns} FROM {table} WHERE {quoted(SEQUENCE)} IN "
            f"({newest}) {self._database.dialect.upserting(options.key_columns, names)}"
        )

    def _is_published(self, commit: Commit) -> bool:
        with self._database.transaction() as transaction:
            conditions = " AND ".join(f"{name} = ?" for name in MARKER)
            found = transaction.one(f"SELECT 1 FROM {self._markers} WHERE {conditions}", *self._key_of(commit))
            return found is not None

    def _judged(self, error: DatabaseRefused, commit: Commit) -> Refused:
        """A target that is gone may come back; a piece that is gone does not."""
        if not error.state.startswith("42"):
            return error
        with self._database.transaction() as transaction:
            there = {name.lower() for name in transaction.tables(self._schema, f"{self._prefix}%")}
        gone = [piece.name for piece in commit.pieces if self._table_of(piece.name).rpartition(".")[2] not in there]
        return Refused(str(error), lasting=bool(gone))

    def _is_first(self, transaction: Transaction, commit: Commit) -> bool:
        """Whether nothing was published to this sink before. (Later ones are of a Detent whose log is gone.)"""
        before = f"SELECT 1 FROM {self._markers} WHERE {OF_SINK} AND checkpoint < ?"
        return transaction.one(before, *self._of_sink, commit.checkpoint) is None

    @property
    def _of_sink(self) -> tuple[str, int, str]:
        return self._job, self._incarnation, self._name

    def _key_of(self, commit: Commit) -> tuple[str | int, ...]:
        whose = (self._job, self._incarnation, commit.pipeline, self._name)
        return (*whose, commit.checkpoint, digest_of(commit))

    # Names -----------------------------------------------------------------------------------------------------------

    @property
    def _markers(self) -> str:
        return f"{self._beside}{self._options.marker_table}"

    def _table_of(self, piece: str) -> str:
        return f"{self._beside}{self._prefix}{piece.replace('-', '_')}"
