"""The source `files`: parquet, csv, json or text files below a directory, each read once.

A slice is some whole files, or a part of a large one (workers/spark/row_groups.py).

Which files, and what a position means, is in workers/spark/listing.py; here they become frames.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from workers.plan import Step, options_of
from workers.spark.api import Context, Refused, Slice, Unservable
from workers.spark.files_sink import local_path, texts
from workers.spark.listing import (
    Bounded,
    Continuous,
    File,
    Listing,
    ahead,
    first_of,
    left_of,
    moved_on,
    new_since,
    values_in_the_name,
    what_is_wrong,
)
from workers.spark.options import FilesSourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader
    from pyspark.sql.types import StructType

    from workers.spark.row_groups import Part

FIRST_BYTES = 48 * 1024 * 1024
OPENING = 64 * 1024  # what a file weighs besides its bytes
MOST_FILES = 10_000  # of a slice
FEW_FILES, FEW_BYTES = 8, 1024 * 1024  # so few are worth a look at how many rows they have


class FilesSource:
    def __init__(self, context: Context, step: Step, share: int, shares: int) -> None:
        self._options = options = options_of(step, FilesSourceOptions)
        self._context, self._name = context, step.name
        self._listing = Listing(local_path(step, options.path), options.pattern, share, shares)
        self._lateness_ns = options.lateness_ms * 1_000_000
        self._most = options.slice_files or MOST_FILES
        self._left: list[File] = []  # bounded: what is still to be read, sorted
        self._known: list[File] = []  # continuous: what the last look has found
        self._look_at = 0.0
        self._schema: StructType | None = None
        self._checkpoint = 0
        self.first_goal = FIRST_BYTES

    def begin(self, position: bytes, checkpoint: int) -> bytes:
        self._checkpoint = checkpoint
        if not self._listing.path.exists():
            if position:
                raise Unservable(self._name, checkpoint, position, f"{self._listing.path} is not there any more")
            raise Refused(f"source {self._name!r}: {self._listing.path} is not there. Correct options.path.")
        if self._options.continuous:
            return position or msgspec.json.encode(Continuous())
        files = self._listing.files()
        if not position:
            self._left = sorted(files)
            return msgspec.json.encode(first_of(files))
        at = msgspec.json.decode(position, type=Bounded)
        self._left = left_of(at, files)
        if wrong := what_is_wrong(at, self._left):
            raise Unservable(self._name, checkpoint, position, wrong)
        return position

    def next_slice(self, after: bytes, goal: int) -> Slice | None:
        return self._next_new(after, goal) if self._options.continuous else self._next_left(after, goal)

    def at_end(self, position: bytes) -> bool:
        return not self._options.continuous and msgspec.json.decode(position, type=Bounded).left == 0

    def close(self) -> None:
        """Nothing is held."""

    # Which ----------------------------------------------------------------------------------------------------------

    def _next_left(self, after: bytes, goal: int) -> Slice | None:
        at = msgspec.json.decode(after, type=Bounded)
        self._left = [file for file in self._left if file.name > at.after]
        taken = self._as_many(self._left, goal)
        if not taken:
            return None
        if not all(map(self._listing.unchanged, taken)):
            there = [file for file in self._left if self._listing.unchanged(file)]
            raise Unservable(self._name, self._checkpoint, after, what_is_wrong(at, there))
        rest = self._left[len(taken) :]
        if self._is_large(taken[0]):
            part, reached = self._parts(taken[0], at.part, goal)
            if reached:
                more = ahead(Bounded(at.until, at.after, part=reached), self._left)
                return self._slice_of_part(taken[0], part, msgspec.json.encode(more))
            done = msgspec.json.encode(ahead(Bounded(at.until, taken[0].name), rest))
            return self._slice_of_part(taken[0], part, done)
        return self._slice(taken, msgspec.json.encode(ahead(Bounded(at.until, taken[-1].name), rest)))

    def _next_new(self, after: bytes, goal: int) -> Slice | None:
        at = msgspec.json.decode(after, type=Continuous)
        found = new_since(at, self._known, self._lateness_ns)
        if not found or at.partly not in ("", found[0].sum):
            if time.monotonic() < self._look_at:
                return None
            self._look_at = time.monotonic() + self._options.poll_ms / 1000
            self._known = self._listing.files()
            found = new_since(at, self._known, self._lateness_ns)
            if at.partly and (not found or found[0].sum != at.partly):
                has = f"the file that was read up to part {at.part} is gone, {len(found)} others are there"
                raise Unservable(self._name, self._checkpoint, after, has)
        taken = [file for file in self._as_many(found, goal) if self._listing.unchanged(file)]
        if not taken:  # nothing, or all of it went or changed just now
            self._known = []
            return None
        done = moved_on(at, taken, self._known, self._lateness_ns)
        if self._is_large(taken[0]):
            part, reached = self._parts(taken[0], at.part, goal)
            more = Continuous(at.time, at.recent, taken[0].sum, reached) if reached else done
            return self._slice_of_part(taken[0], part, msgspec.json.encode(more))
        return self._slice(taken, msgspec.json.encode(done))

    def _as_many(self, files: Sequence[File], goal: int) -> list[File]:
        """From the first on, until they weigh the goal: at least one. A large one is alone."""
        taken: list[File] = []
        weight = 0
        for file in files[: self._most]:
            if taken and self._is_large(file):
                break
            taken.append(file)
            weight += file.size + OPENING
            if weight >= goal or self._is_large(file):
                break
        return taken

    # Large files -----------------------------------------------------------------------------------------------------

    def _is_large(self, file: File) -> bool:
        return self._options.format == "parquet" and file.size > self._options.part_bytes

    def _parts(self, file: File, done: int, goal: int) -> tuple[Part, int]:
        """The parts of a file from there on that weigh the goal, as one; and how many are done then, 0 for all."""
        from workers.spark.row_groups import Part, parts_of

        parts = parts_of(self._listing.root / file.name, self._options.part_bytes)
        upto = done + 1
        while upto < len(parts) and sum(part.size for part in parts[done : upto + 1]) <= goal:
            upto += 1
        some = parts[done:upto]
        rows, size = sum(part.rows for part in some), sum(part.size for part in some)
        joined = Part(some[0].first, some[-1].last, rows, size)
        return joined, upto if upto < len(parts) else 0

    def _slice_of_part(self, file: File, part: Part, after: bytes) -> Slice:
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructType

        from workers.spark.row_groups import frame_of

        session, schema = self._context.session(), self._schema_by(file)
        apart = values_in_the_name(file.name)  # columns that are directories
        inside = StructType([field for field in schema if field.name not in apart])
        frame = frame_of(session, self._listing.root / file.name, part, inside)
        for name in schema.names:
            if name in apart:
                frame = frame.withColumn(name, f.lit(apart[name]).cast(schema[name].dataType))
        return Slice(frame.select(*schema.names), after, part.size, part.rows, part.size)

    # Frames ----------------------------------------------------------------------------------------------------------

    def _slice(self, files: Sequence[File], after: bytes) -> Slice:
        size = sum(file.size for file in files)
        return Slice(self._frame(files), after, size + OPENING * len(files), self._rows(files, size), size)

    def _frame(self, files: Sequence[File]) -> DataFrame:
        schema = self._schema_by(files[0])
        return self._reader().schema(schema).load([self._uri(file) for file in files])

    def _reader(self) -> DataFrameReader:
        options = self._options
        reader = self._context.session().read.format(options.format).options(**texts(options.reader))
        if self._listing.path.is_dir() and options.format != "text":
            reader = reader.option("basePath", f"file://{self._listing.path}")
        return reader

    def _schema_by(self, file: File) -> StructType:
        """As the options say, or as the first file has it that is asked for."""
        if self._schema is not None:
            return self._schema
        if self._options.schema:
            from pyspark.sql.types import StructType

            self._schema = cast(StructType, StructType.fromDDL(self._options.schema))
        else:
            self._schema = self._reader().load(self._uri(file)).schema
        return self._schema

    def _uri(self, file: File) -> str:
        """Spark takes paths as patterns: what means something in one is quoted."""
        path = str(self._listing.root / file.name)
        return "file://" + "".join(f"\\{sign}" if sign in "{}[]*?\\" else sign for sign in path)

    def _rows(self, files: Sequence[File], size: int) -> int:
        if self._options.format != "parquet" or len(files) > FEW_FILES or size > FEW_BYTES:
            return -1
        from pyarrow import parquet

        return sum(int(parquet.read_metadata(self._listing.root / file.name).num_rows) for file in files)
