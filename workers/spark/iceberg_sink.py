"""The sink `iceberg`: a table, each row exactly once, by one snapshot for each checkpoint.

A piece is a folder of data files below the table's data, with a list of them, which no snapshot knows. Publishing
appends the files of all pieces in one commit whose summary carries the checkpoint's identity, and which is refused when
a snapshot before it carries the same. Files that are published stay where they are; `remove` takes the others, and asks
the table before it takes any.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from workers.engine import MayPublish
from workers.files import file_name
from workers.ledger import Identity
from workers.plan import Step, options_of
from workers.spark.api import Commit, Context, Piece, Refused, piece_name
from workers.spark.iceberg import Iceberg, Java, identity_in, plain, sync_local
from workers.spark.identity import identity_of, owner_of
from workers.spark.part_options import IcebergSinkOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

LIST = "_detent_staged.json"  # in a piece's folder, from when it is staged until it is published
DONE = "_detent_published"  # from then on, until the job is removed
BASE = "_detent_base.json"  # the snapshot before the job, for mode overwrite


class Listed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a piece adds to the table, and what it replaces."""

    adds: list[str]
    replaces: list[str] = []
    snapshot: int = 0


class IcebergSink:
    def __init__(self, context: Context, step: Step, job: str, incarnation: int) -> None:
        self._options = self._options_of(step)
        self._name = step.name
        self._owner = owner_of(job, incarnation, step.name)
        digest = hashlib.sha256(self._owner.encode()).hexdigest()[:8]
        self._folder_name = f"detent-{file_name(job)}-{incarnation}-{digest}"
        self._iceberg = Iceberg(context, step, self._options, shared=True)

    # Before data moves -----------------------------------------------------------------------------------------------

    def prepare(self, *, fresh: bool) -> None:
        table, options = self._iceberg.table(), self._options
        if table is None:
            if not options.create:
                raise Refused(
                    f"sink {self._name!r}: there is no table {options.table}. Make it, or set create to true."
                )
            return
        current = table.currentSnapshot()
        if fresh and options.mode == "error_if_exists" and current is not None and _records(current) != 0:
            raise Refused(
                f"sink {self._name!r}: {options.table} holds rows already, and mode is error_if_exists. Empty it, "
                "choose another table, or set mode to append or overwrite."
            )
        if fresh and options.mode == "overwrite" and current is not None:
            base = json.dumps({"snapshot": current.snapshotId()})
            self._iceberg.write_text(table, f"{self._folder(table)}/{BASE}", base)

    def check(self, schema: StructType) -> None:
        table = self._iceberg.table()
        if table is None:
            self._create(schema)
            table = self._iceberg.must()
        missing = [field.name() for field in table.schema().columns() if field.name() not in schema.names]
        if missing:
            raise Refused(
                f"sink {self._name!r}: the rows have no {', '.join(missing)}, which {self._options.table} has"
            )
        jvm = self._iceberg.jvm
        try:
            with self._iceberg.telling("comparing"):
                given = jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
                wanted = table.schema()
                written = jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(wanted, given)
                jvm.org.apache.iceberg.types.TypeUtil.validateWriteSchema(wanted, written, False, False)
        except Refused as refused:
            why = str(refused).rpartition("Problems:")[2].strip(" *") if "Problems:" in str(refused) else str(refused)
            raise Refused(f"sink {self._name!r}: the rows do not fit {self._options.table}: {why}") from refused

    def _create(self, schema: StructType) -> None:
        options, session = self._options, self._iceberg.session
        columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in schema)
        parts = f" PARTITIONED BY ({', '.join(options.partition_by)})" if options.partition_by else ""
        given = ", ".join(f"{_text(name)} = {_text(value)}" for name, value in options.table_properties.items())
        properties = f" TBLPROPERTIES ({given})" if given else ""
        try:
            with self._iceberg.telling(f"making {options.table}"):
                session.sql(f"CREATE NAMESPACE IF NOT EXISTS {options.table.rpartition('.')[0]}")
                session.sql(f"CREATE TABLE IF NOT EXISTS {options.table} ({columns}) USING iceberg{parts}{properties}")
        except Refused as refused:
            if self._iceberg.table() is None:  # another task may have been quicker
                raise Refused(str(refused)) from refused

    # Staging ---------------------------------------------------------------------------------------------------------

    def stage(self, frame: DataFrame, who: Identity, rows: int) -> Sequence[Piece]:  # noqa: ARG002  as all
        table, name = self._iceberg.must(), piece_name(who)
        folder = f"{self._folder(table)}/{name}"
        try:
            with self._iceberg.telling("writing a piece"):
                files = self._iceberg.write_apart(frame, table, folder, self._options.writer)
            if not files and not self._counts_without_rows:
                return []
            sync_local([str(file.location()) for file in files])
            listed = Listed(self._iceberg.described(table, files), *self._replaced(frame))
            self._iceberg.write_text(table, f"{folder}/{LIST}", msgspec.json.encode(listed).decode())
        except BaseException:
            self._iceberg.delete_below(table, folder)
            raise
        size = sum(int(file.fileSizeInBytes()) for file in files)
        return [Piece(name, sum(int(file.recordCount()) for file in files), size)]

    def discard(self, pieces: Sequence[Piece]) -> None:
        table = self._iceberg.table() if pieces else None
        for piece in pieces if table is not None else ():
            self._iceberg.delete_below(table, f"{self._folder(table)}/{piece.name}")

    def remove(self) -> int:
        table = self._iceberg.table()
        if table is None:  # what belonged to it went with it, or is out of reach
            return 0
        pieces: dict[str, list[str]] = {}
        prefix = plain(self._folder(table)) + "/"
        for path in self._iceberg.list_below(table, self._folder(table)):
            pieces.setdefault(plain(path).removeprefix(prefix).split("/")[0], []).append(path)
        undecided = {name: paths for name, paths in pieces.items() if f"{prefix}{name}/{DONE}" not in map(plain, paths)}
        known = self._known_below(prefix) if undecided else set()
        removed = 0
        for name, paths in pieces.items():
            gone = [path for path in paths if name in undecided and plain(path) not in known]
            marks = [path for path in paths if path.endswith((DONE, BASE)) and path not in gone]
            for path in (*gone, *marks):
                table.io().deleteFile(path)
            removed += bool(gone) and name != BASE
        if removed and not known and len(undecided) == len(pieces):
            self._iceberg.delete_below(table, self._folder(table))  # folders that are empty now
        return removed

    def _known_below(self, prefix: str) -> set[str]:
        """Files that any snapshot of the table has."""
        frame = self._iceberg.session.table(f"{self._options.table}.all_data_files").select("file_path")
        with self._iceberg.telling("looking for files that the table has"):
            paths = [plain(row.file_path) for row in frame.where(frame.file_path.contains(prefix)).collect()]
        return set(paths)

    def close(self) -> None:
        """Nothing is held."""

    # Publishing ------------------------------------------------------------------------------------------------------

    def publish(self, commit: Commit, may_publish: MayPublish) -> int:
        if not commit.pieces:
            return 0
        table, identity = self._iceberg.must(), identity_of(commit, self._name)
        if not self._iceberg.is_published(table, identity):
            listed = self._listed(table, commit)
            if listed is None:
                table.refresh()
                if not self._iceberg.is_published(table, identity):  # by somebody else, meanwhile
                    raise Refused(f"sink {self._name!r}: staged files are gone from {self._folder(table)}")
            else:
                update = self._update(table, listed)
                if not may_publish():
                    raise Refused("the worker's lease is lost", lasting=False)
                self._iceberg.commit(update, identity)
        for piece in commit.pieces:
            folder = f"{self._folder(table)}/{piece.name}"
            self._iceberg.write_text(table, f"{folder}/{DONE}", identity)
            table.io().deleteFile(f"{folder}/{LIST}")
        return commit.rows

    def _listed(self, table: Java, commit: Commit) -> list[Listed] | None:
        found = []
        for piece in commit.pieces:
            text = self._iceberg.read_text(table, f"{self._folder(table)}/{piece.name}/{LIST}")
            if text is None:
                return None
            found.append(msgspec.json.decode(text, type=Listed))
        return found

    # What a sink that replaces files does otherwise (workers/spark/iceberg_compaction.py) -----------------------------

    _counts_without_rows = False

    def _options_of(self, step: Step) -> IcebergSinkOptions:
        return options_of(step, IcebergSinkOptions)

    def _replaced(self, frame: DataFrame) -> tuple[list[str], int]:  # noqa: ARG002
        """The files that the piece replaces, and the snapshot that has them."""
        return [], 0

    def _update(self, table: Java, listed: Sequence[Listed]) -> Java:
        files = self._iceberg.files_of(table, [each for one in listed for each in one.adds])
        if self._options.mode == "overwrite" and self._is_first(table):
            everything = self._iceberg.jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue()
            update = table.newOverwrite().overwriteByRowFilter(everything)
            for file in files:
                update.addFile(file)
            return update
        update = table.newAppend()
        for file in files:
            update.appendFile(file)
        return update

    def _is_first(self, table: Java) -> bool:
        """Whether nothing of this job came after the snapshot that it began with."""
        base = json.loads(self._iceberg.read_text(table, f"{self._folder(table)}/{BASE}") or "{}").get("snapshot")
        for snapshot in self._iceberg.ancestors(table):
            if snapshot.snapshotId() == base:
                return True
            if (identity_in(snapshot) or "").startswith(self._owner):
                return False
        return True

    def _folder(self, table: Java) -> str:
        data = table.properties().get("write.data.path") or f"{table.location().rstrip('/')}/data"
        return f"{str(data).rstrip('/')}/{self._folder_name}"


def _records(snapshot: Java) -> int:
    return int(snapshot.summary().get("total-records") or -1)


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
