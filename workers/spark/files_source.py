"""The source `files`: parquet, csv, json or text files below a directory, each read once, whole files at a time.

Which files, and what a position means, is in workers/spark/listing.py; here they become frames.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
    what_is_wrong,
)
from workers.spark.options import FilesSourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

FIRST_BYTES = 8 * 1024 * 1024
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
        taken = _as_many(self._left, goal, self._most)
        if not taken:
            return None
        if not all(map(self._listing.unchanged, taken)):
            there = [file for file in self._left if self._listing.unchanged(file)]
            raise Unservable(self._name, self._checkpoint, after, what_is_wrong(at, there))
        reached = ahead(Bounded(at.until, taken[-1].name), self._left[len(taken) :])
        return self._slice(taken, msgspec.json.encode(reached))

    def _next_new(self, after: bytes, goal: int) -> Slice | None:
        at = msgspec.json.decode(after, type=Continuous)
        found = new_since(at, self._known, self._lateness_ns)
        if not found:
            if time.monotonic() < self._look_at:
                return None
            self._look_at = time.monotonic() + self._options.poll_ms / 1000
            self._known = self._listing.files()
            found = new_since(at, self._known, self._lateness_ns)
        taken = [file for file in _as_many(found, goal, self._most) if self._listing.unchanged(file)]
        if not taken:  # nothing, or all of it went or changed just now
            self._known = []
            return None
        reached = moved_on(at, taken, self._known, self._lateness_ns)
        return self._slice(taken, msgspec.json.encode(reached))

    # Frames ----------------------------------------------------------------------------------------------------------

    def _slice(self, files: Sequence[File], after: bytes) -> Slice:
        size = sum(file.size for file in files)
        return Slice(self._frame(files), after, size + OPENING * len(files), self._rows(files, size), size)

    def _frame(self, files: Sequence[File]) -> DataFrame:
        options = self._options
        reader = self._context.session().read.format(options.format).options(**texts(options.reader))
        if self._listing.path.is_dir() and options.format != "text":
            reader = reader.option("basePath", f"file://{self._listing.path}")
        if self._schema is None and not options.schema:
            self._schema = reader.load(self._uri(files[0])).schema
        return reader.schema(options.schema or self._schema or "").load([self._uri(file) for file in files])

    def _uri(self, file: File) -> str:
        """Spark takes paths as patterns: what means something in one is quoted."""
        path = str(self._listing.root / file.name)
        return "file://" + "".join(f"\\{sign}" if sign in "{}[]*?\\" else sign for sign in path)

    def _rows(self, files: Sequence[File], size: int) -> int:
        if self._options.format != "parquet" or len(files) > FEW_FILES or size > FEW_BYTES:
            return -1
        from pyarrow import parquet

        return sum(int(parquet.read_metadata(self._listing.root / file.name).num_rows) for file in files)


def _as_many(files: Sequence[File], goal: int, most: int) -> list[File]:
    """From the first on, until they weigh the goal: at least one."""
    taken: list[File] = []
    weight = 0
    for file in files[:most]:
        taken.append(file)
        weight += file.size + OPENING
        if weight >= goal:
            break
    return taken
