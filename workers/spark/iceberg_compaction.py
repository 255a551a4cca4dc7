"""Optimizing an Iceberg table: its small files, and those with deletes, are written anew as fewer large ones.

The source deals out groups of files of one snapshot; the files that a slice replaces travel with its rows, as metadata
of a column. The sink stages the new files as the sink `iceberg` does, and publishes a rewrite: old files out, new files
in, in one snapshot that carries the checkpoint's identity. When somebody has changed or removed an old file meanwhile,
Iceberg refuses it, and the table stays as it is.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from workers.plan import OptionsRefused, Step, options_of
from workers.spark.api import Context, Refused, Slice, Unservable
from workers.spark.iceberg import Iceberg, Java
from workers.spark.iceberg_sink import IcebergSink, Listed
from workers.spark.iceberg_source import StagedScan, snapshots_there
from workers.spark.part_options import CompactionSinkOptions, CompactionSourceOptions, IcebergSinkOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

FIRST_GOAL = 128 * 1024 * 1024  # bytes of files
REPLACES = "detent.replaces"  # in the metadata of the rows' first column


class Position(msgspec.Struct, frozen=True):
    snapshot: int
    total: int  # groups of this task
    done: int = 0


class CompactionSource:
    """Groups of files of one snapshot. Bounded."""

    def __init__(self, context: Context, step: Step, share: int, shares: int) -> None:
        self._options = options = options_of(step, CompactionSourceOptions)
        self._name, self._share, self._shares = step.name, share, shares
        if shares > 1 and not options.snapshot:
            raise OptionsRefused(f"{step.name!r} has {shares} tasks: name the snapshot, or set parallelism to 1")
        self._iceberg = Iceberg(context, step, options)
        self._scan = StagedScan(self._iceberg)
        self._known: tuple[int, list[list[Java]]] | None = None

    @property
    def first_goal(self) -> int:
        return FIRST_GOAL

    def begin(self, position: bytes, checkpoint: int) -> bytes:
        table = self._iceberg.table()
        if table is None:
            raise Refused(f"{self._name!r}: there is no table {self._options.table}")
        if position:
            try:
                at = msgspec.json.decode(position, type=Position)
            except msgspec.MsgspecError as error:
                raise Unservable(self._name, checkpoint, position, f"it is no position of it ({error})") from error
            if at.done < at.total and table.snapshot(at.snapshot) is None:
                raise Unservable(self._name, checkpoint, position, snapshots_there(self._iceberg, table))
            return position
        current = table.currentSnapshot()
        if current is None:
            return msgspec.json.encode(Position(0, 0))
        snapshot = self._options.snapshot or int(current.snapshotId())
        if table.snapshot(snapshot) is None:
            raise Refused(f"{self._name!r}: no snapshot {snapshot}; {snapshots_there(self._iceberg, table)}")
        return msgspec.json.encode(Position(snapshot, len(self._groups(table, snapshot))))

    def next_slice(self, after: bytes, goal: int) -> Slice | None:
        at = msgspec.json.decode(after, type=Position)
        if at.done >= at.total:
            return None
        table = self._iceberg.must()
        taken: list[Java] = []
        groups, done = self._groups(table, at.snapshot), at.done
        while done < at.total and (not taken or _size(taken) + _size(groups[done]) <= goal):
            taken += groups[done]
            done += 1
        replaced = {"snapshot": at.snapshot, "files": [str(task.file().location()) for task in taken]}
        frame = self._scan.frame(table, taken)
        frame = frame.withMetadata(frame.columns[0], {REPLACES: json.dumps(replaced)})
        behind = msgspec.json.encode(Position(at.snapshot, at.total, done))
        return Slice(frame, behind, weight=max(1, _size(taken)), size=_size(taken))

    def at_end(self, position: bytes) -> bool:
        at = msgspec.json.decode(position, type=Position)
        return at.done >= at.total

    def close(self) -> None:
        self._scan.forget()

    def _groups(self, table: Java, snapshot: int) -> list[list[Java]]:
        """The same in every process: files by partition and path, cut where they make a large one."""
        if self._known is None or self._known[0] != snapshot:
            self._known = snapshot, [group for group in self._all_groups(table, snapshot) if self._is_mine(group)]
        return self._known[1]

    def _is_mine(self, group: Sequence[Java]) -> bool:
        return zlib.crc32(str(group[0].file().location()).encode()) % self._shares == self._share

    def _all_groups(self, table: Java, snapshot: int) -> Iterator[list[Java]]:
        target, found = self._options.target_file_size_bytes, []
        with self._iceberg.telling("planning"):
            planned = table.newScan().useSnapshot(snapshot).planFiles()
            each = planned.iterator()
            while each.hasNext():
                task = each.next()
                file = task.file()
                if int(file.fileSizeInBytes()) < 0.75 * target or not task.deletes().isEmpty():
                    found.append(((int(file.specId()), str(file.partition()), str(file.location())), task))
            planned.close()
        found.sort(key=lambda one: one[0])
        group: list[Java] = []
        partition = None
        for (spec, part, _), task in found:
            if group and ((spec, part) != partition or _size(group) + int(task.file().fileSizeInBytes()) > target):
                yield from self._worthwhile(group)
                group = []
            group.append(task)
            partition = (spec, part)
        yield from self._worthwhile(group)

    def _worthwhile(self, group: list[Java]) -> Iterator[list[Java]]:
        if len(group) >= self._options.min_input_files or any(not task.deletes().isEmpty() for task in group):
            yield group


class CompactionSink(IcebergSink):
    """The table is that of the source, and is never made."""

    _counts_without_rows = True  # files whose rows are all deleted go as well

    def _options_of(self, step: Step) -> IcebergSinkOptions:
        given = options_of(step, CompactionSinkOptions)
        return IcebergSinkOptions(table=given.table, catalog=given.catalog, writer=given.writer, create=False)

    def check(self, schema: StructType) -> None:
        _replaces(schema, self._name)
        super().check(schema)

    def _replaced(self, frame: DataFrame) -> tuple[list[str], int]:
        return _replaces(frame.schema, self._name)

    def _update(self, table: Java, listed: Sequence[Listed]) -> Java:
        snapshot = listed[0].snapshot
        if table.snapshot(snapshot) is None:
            raise Refused(f"sink {self._name!r}: snapshot {snapshot}, whose files were written anew, has expired")
        wanted, jvm = {path for one in listed for path in one.replaces}, self._iceberg.jvm
        old, new = jvm.java.util.HashSet(), jvm.java.util.HashSet()
        planned = table.newScan().useSnapshot(snapshot).planFiles()
        each = planned.iterator()
        while each.hasNext():
            file = each.next().file()
            if str(file.location()) in wanted:
                old.add(file)
        planned.close()
        for file in self._iceberg.files_of(table, [described for one in listed for described in one.adds]):
            new.add(file)
        sequence = table.snapshot(snapshot).sequenceNumber()
        return table.newRewrite().validateFromSnapshot(snapshot).rewriteFiles(old, new, sequence)


def _replaces(schema: StructType, sink: str) -> tuple[list[str], int]:
    for field in schema:
        if REPLACES in field.metadata:
            found = json.loads(field.metadata[REPLACES])
            return found["files"], found["snapshot"]
    raise Refused(f"sink {sink!r} is for the source iceberg_compaction, alone: nothing tells which files it replaces")


def _size(tasks: Sequence[Java]) -> int:
    return sum(int(task.file().fileSizeInBytes()) for task in tasks)
