"""The source `iceberg`: the files of one snapshot, then, if it is continuous, those that later snapshots append.

A position names a batch, the files that `snapshot` has (or has more than `base`), and how many of this task's were
read, in the order of their paths. Files are dealt to tasks by their paths, and a batch never changes: so all tasks must
have the same first snapshot, which several of them can't agree on by looking, at different times. A snapshot that has
expired is Unservable. What a snapshot deletes or replaces amid a continuous source is an error, never passed over.
"""

from __future__ import annotations

import uuid
import zlib
from typing import TYPE_CHECKING

import msgspec

from workers.plan import OptionsRefused, Step, options_of
from workers.spark.api import Context, Refused, Slice, Unservable
from workers.spark.iceberg import Iceberg, Java
from workers.spark.part_options import IcebergSourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FIRST_GOAL = 64 * 1024 * 1024  # bytes of files
NONE = 0  # no snapshot: the table is empty
APPENDS = frozenset({"append", "replace"})  # replacing is compaction: the same rows in other files


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    snapshot: int
    total: int  # files of this task in the batch
    done: int = 0
    base: int = NONE  # the batch is what came after it

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)


class IcebergSource:
    def __init__(self, context: Context, step: Step, share: int, shares: int) -> None:
        self._options = options = options_of(step, IcebergSourceOptions)
        self._name, self._share, self._shares = step.name, share, shares
        if shares > 1 and not options.snapshot:
            raise OptionsRefused(
                f"{step.name!r} has {shares} tasks, which must read the same snapshot: name it (snapshot), or set "
                "parallelism to 1. One task reads a slice's files on all of Spark's cores."
            )
        self._iceberg = Iceberg(context, step, options)
        self._known: tuple[tuple[int, int], list[Java]] | None = None  # the files of a batch
        self._scan = StagedScan(self._iceberg)

    @property
    def first_goal(self) -> int:
        return FIRST_GOAL

    def begin(self, position: bytes, checkpoint: int) -> bytes:
        table = self._iceberg.table()
        if position:
            return self._resumed(table, position, checkpoint)
        if table is None:
            raise Refused(f"{self._name!r}: there is no table {self._options.table}")
        current = table.currentSnapshot()
        first = self._options.snapshot or (NONE if current is None else int(current.snapshotId()))
        if first != NONE and table.snapshot(first) is None:
            has = snapshots_there(self._iceberg, table)
            raise Refused(f"{self._name!r}: {self._options.table} has no snapshot {first}; {has}")
        if self._options.continuous and self._options.start == "latest":
            return Position(first, 0).encoded()
        return Position(first, len(self._files(table, NONE, first))).encoded()

    def next_slice(self, after: bytes, goal: int) -> Slice | None:
        at = msgspec.json.decode(after, type=Position)
        if at.done >= at.total:
            return self._next_batch(at, goal) if self._options.continuous else None
        return self._slice(self._iceberg.must(), at, goal)

    def at_end(self, position: bytes) -> bool:
        at = msgspec.json.decode(position, type=Position)
        return not self._options.continuous and at.done >= at.total

    def close(self) -> None:
        self._scan.forget()

    # Batches and slices ----------------------------------------------------------------------------------------------

    def _next_batch(self, at: Position, goal: int) -> Slice | None:
        table = self._iceberg.must()
        current = table.currentSnapshot()
        if current is None or current.snapshotId() == at.snapshot:
            return None
        batch = Position(int(current.snapshotId()), 0, 0, at.snapshot)
        files = self._files(table, batch.base, batch.snapshot)
        batch = Position(batch.snapshot, len(files), 0, batch.base)
        if files:
            return self._slice(table, batch, goal)
        nothing = self._iceberg.session.table(self._options.table).limit(0)
        return Slice(self._selected(nothing), batch.encoded(), weight=1, rows=0)  # so that the position does not age

    def _slice(self, table: Java, at: Position, goal: int) -> Slice:
        files, size, count = self._files(table, at.base, at.snapshot), 0, 0
        for task in files[at.done :]:
            if count and size + int(task.file().fileSizeInBytes()) > goal:
                break
            size += int(task.file().fileSizeInBytes())
            count += 1
        taken = files[at.done : at.done + count]
        behind = Position(at.snapshot, at.total, at.done + count, at.base)
        plain_files = all(task.deletes().isEmpty() for task in taken)
        rows = sum(int(task.file().recordCount()) for task in taken) if plain_files else -1
        return Slice(
            self._selected(self._scan.frame(table, taken)), behind.encoded(), weight=max(1, size), rows=rows, size=size
        )

    def _selected(self, frame: DataFrame) -> DataFrame:
        return frame.select(*self._options.columns) if self._options.columns else frame

    # Files -----------------------------------------------------------------------------------------------------------

    def _files(self, table: Java, base: int, snapshot: int) -> list[Java]:
        """This task's, in the order of their paths. Raises Unservable, Refused."""
        if self._known is not None and self._known[0] == (base, snapshot):
            return self._known[1]
        if snapshot == NONE:
            return []
        position = Position(snapshot, 0, 0, base).encoded()
        if table.snapshot(snapshot) is None or (base != NONE and table.snapshot(base) is None):
            raise Unservable(self._name, 0, position, snapshots_there(self._iceberg, table))
        if base == NONE:
            scan = table.newScan().useSnapshot(snapshot)
        else:
            self._check_appends(table, base, snapshot)
            scan = table.newIncrementalAppendScan().fromSnapshotExclusive(base).toSnapshot(snapshot)
        with self._iceberg.telling("planning"):
            planned = scan.planFiles()
            each, found = planned.iterator(), []
            while each.hasNext():
                task = each.next()
                path = str(task.file().location())
                if zlib.crc32(path.encode()) % self._shares == self._share:
                    found.append((path, task))
            planned.close()
        files = [task for _, task in sorted(found, key=lambda one: one[0])]
        self._known = (base, snapshot), files
        return files

    def _check_appends(self, table: Java, base: int, snapshot: int) -> None:
        util = self._iceberg.jvm.org.apache.iceberg.util.SnapshotUtil
        if not util.isAncestorOf(table, snapshot, base):
            has = f"snapshot {base} is none of those before {snapshot}: the table was rolled back"
            raise Unservable(self._name, 0, Position(snapshot, 0, 0, base).encoded(), has)
        for each in util.snapshotIdsBetween(table, base, snapshot):
            operation = str(table.snapshot(each).operation())
            if operation not in APPENDS:
                raise Refused(
                    f"{self._name!r} reads what is appended to {self._options.table}, and snapshot {each} is of the "
                    f"operation {operation!r}: rows were changed or removed, which can't be passed on"
                )

    def _resumed(self, table: Java | None, position: bytes, checkpoint: int) -> bytes:
        try:
            at = msgspec.json.decode(position, type=Position)
        except msgspec.MsgspecError as error:
            has = f"it is no position of an Iceberg source ({error})"
            raise Unservable(self._name, checkpoint, position, has) from error
        if self.at_end(position):
            return position
        if table is None:
            raise Unservable(self._name, checkpoint, position, f"there is no table {self._options.table} any more")
        needed = [at.snapshot] if at.done >= at.total else [at.snapshot, at.base]
        if any(each != NONE and table.snapshot(each) is None for each in needed):
            raise Unservable(self._name, checkpoint, position, snapshots_there(self._iceberg, table))
        return position


class StagedScan:
    """Reads chosen files and no others, with the deletes that belong to them. One slice at a time."""

    def __init__(self, iceberg: Iceberg) -> None:
        self._iceberg = iceberg
        self._staged: tuple[Java, str] | None = None

    def frame(self, table: Java, files: list[Java]) -> DataFrame:
        """Lazy; the one before must have been read."""
        self.forget()
        jvm, name = self._iceberg.jvm, uuid.uuid4().hex
        tasks = jvm.java.util.ArrayList()
        for task in files:
            tasks.add(task)
        jvm.org.apache.iceberg.spark.ScanTaskSetManager.get().stageTasks(table, name, tasks)
        jvm.org.apache.iceberg.spark.SparkTableCache.get().add(name, table)
        self._staged = table, name
        with self._iceberg.telling("reading"):
            return self._iceberg.session.read.format("iceberg").load(name)

    def forget(self) -> None:
        if self._staged is not None:
            (table, name), self._staged = self._staged, None
            spark = self._iceberg.jvm.org.apache.iceberg.spark
            spark.ScanTaskSetManager.get().removeTasks(table, name)
            spark.SparkTableCache.get().remove(name)


def snapshots_there(iceberg: Iceberg, table: Java) -> str:
    kept = [str(snapshot.snapshotId()) for snapshot in iceberg.ancestors(table)]
    return f"the table has the snapshots {', '.join(kept[:10])} now" if kept else "the table has no snapshot now"
