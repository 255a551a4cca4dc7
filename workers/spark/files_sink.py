"""The sink `files`: parquet, csv or json in a directory, each row exactly once, whoever is killed when.

As workers/lines.py does it: a piece is a directory in `<path>/.staging/<job>-<incarnation>/` under a name that nobody
else has. Publishing moves its files to `<path>/`, each by one rename, to a name that says job, incarnation, pipeline,
checkpoint and piece: a file is in one of the two places and never in both. A mark in the staging tells of a checkpoint
that is wholly published, even when somebody has taken its files away since.

What is durable when: a file's content, then its name in staging, then the acknowledgement that names it; its new name,
then the mark, then the word that it is published. Which files a piece has goes with it on the log.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workers.engine import MayPublish
from workers.files import file_name, make_directory, sync_directory, write_durably
from workers.ledger import Identity
from workers.plan import OptionsRefused, Step, options_of
from workers.spark.api import Commit, Context, Piece, Refused, piece_name
from workers.spark.identity import digest_of
from workers.spark.options import FilesSinkOptions
from workers.spark.schemas import differences, is_flat, schema_of_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

STAGING = ".staging"
MARKS_KEPT = 50  # of a pipeline: nobody asks for a checkpoint that so many others came after
FEW_ROWS = 20_000  # so few are quicker written here than by Spark, whose commit of files has its price
TO_CLEAR, CLEARED = "to-clear", "cleared"


class FilesSink:
    def __init__(self, context: Context, step: Step, job: str, incarnation: int) -> None:  # noqa: ARG002  as all
        self._options = options_of(step, FilesSinkOptions)
        self._name, self._job = step.name, f"{file_name(job)}-{incarnation}"
        self._path = local_path(step, self._options.path)
        self._staging = self._path / STAGING / self._job
        self._unfinished: Path | None = None

    @property
    def staging(self) -> Path:
        """Where its pieces are: each a folder by its name."""
        return self._staging

    # Before data moves -----------------------------------------------------------------------------------------------

    def prepare(self, *, fresh: bool) -> None:
        mode = self._options.mode
        if fresh and mode == "error_if_exists" and (there := next(self._published(), None)) is not None:
            raise Refused(
                f"sink {self._name!r}: {self._path} holds files already, such as {there.name}, and mode is "
                "error_if_exists. Empty it, choose another path, or set mode to append or overwrite."
            )
        make_directory(self._staging)
        if fresh and mode == "overwrite" and not (self._staging / CLEARED).exists():
            write_durably(self._staging / TO_CLEAR, b"", uuid.uuid4().hex[:16])

    def check(self, schema: StructType) -> None:
        options = self._options
        missing = [name for name in options.partition_by if name not in schema.names]
        if missing:
            has = ", ".join(schema.names)
            raise Refused(f"sink {self._name!r} is partitioned by {', '.join(missing)}, but its rows have {has}")
        if options.partition_by and set(options.partition_by) == set(schema.names):
            raise Refused(f"sink {self._name!r} is partitioned by all of its columns: nothing is left to write")
        if options.format == "csv" and not is_flat(schema):
            raise Refused(f"sink {self._name!r} writes csv, which holds no arrays, maps or structs")
        compared = options.format == "parquet" and options.mode == "append"
        held = (path for path in self._published() if path.suffix == ".parquet") if compared else iter(())
        there = next(held, None)
        if there is not None and (wrong := differences(schema, schema_of_file(there), options.partition_by)):
            raise Refused(
                f"sink {self._name!r}: the rows do not fit those in {self._path} (as {there.name} has them): "
                f"{'; '.join(wrong)}. Change the transform, or write to another path."
            )

    # Staging ---------------------------------------------------------------------------------------------------------

    def stage(self, frame: DataFrame, who: Identity, rows: int) -> Sequence[Piece]:
        self._unfinished = self._staging / piece_name(who)
        pieces = self._stage_in(self._unfinished, frame, rows)
        self._unfinished = None
        return pieces

    def _stage_in(self, folder: Path, frame: DataFrame, rows: int) -> list[Piece]:
        options = self._options
        if 0 <= rows <= FEW_ROWS and options.format == "parquet" and not options.partition_by and not options.writer:
            count = self._write_here(frame, folder)
        else:
            count = self._write_by_spark(frame, folder)
        files = sorted(str(path.relative_to(folder)) for path in _data_files(folder))
        if not count:
            shutil.rmtree(folder, ignore_errors=True)
            return []
        size = sum(_sync_file(folder / file) for file in files)
        for directory in {(folder / file).parent for file in files} | {folder}:
            sync_directory(directory)
        sync_directory(self._staging)
        return [Piece(folder.name, count, size, zlib.compress(json.dumps(files).encode()))]

    def _write_here(self, frame: DataFrame, folder: Path) -> int:
        from pyarrow import parquet

        table = frame.toArrow()
        try:
            folder.mkdir()
            if table.num_rows:
                parquet.write_table(table, folder / "part.parquet")
        except OSError as error:  # pyarrow does not say where
            raise Refused(f"sink {self._name!r} can't write to {folder}: {error}", lasting=False) from error
        return int(table.num_rows)

    def _write_by_spark(self, frame: DataFrame, folder: Path) -> int:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        options = self._options
        counted = Observation()
        if options.format != "parquet":
            frame = frame.observe(counted, f.count(f.lit(1)).alias("rows"))
        writer = frame.write.format(options.format).mode("error").options(**texts(options.writer))
        if options.partition_by:
            writer = writer.partitionBy(*options.partition_by)
        writer.save(f"file://{folder}")
        if options.format != "parquet":
            return int(counted.get["rows"])
        return sum(_rows_of(path) for path in _data_files(folder))

    def discard(self, pieces: Sequence[Piece]) -> None:
        """What is unfinished goes with them: Spark may have gone on writing it for a while after it was cancelled."""
        for folder in (self._unfinished, *(self._staging / piece.name for piece in pieces)):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def remove(self) -> int:
        try:
            names = [path.name for path in self._staging.iterdir() if path.is_dir()]
            shutil.rmtree(self._staging)
            sync_directory(self._staging.parent)
        except FileNotFoundError:
            if self._staging.exists():  # somebody removes it at the same time, and is not done
                raise Refused(f"{self._staging} is being removed by somebody else", lasting=False) from None
            return 0
        return len(names)

    def close(self) -> None:
        """Nothing is held."""

    # Publishing ------------------------------------------------------------------------------------------------------

    def publish(self, commit: Commit, may_publish: MayPublish) -> int:
        mark = self._staging / f"published-{commit.pipeline}-{commit.checkpoint}-{digest_of(commit)}"
        if mark.exists() or not (commit.pieces or self._staging.exists()):
            return commit.rows
        moves = list(self._moves(commit))
        self._check_all_there(moves)
        self._clear(may_publish)
        folders = set()
        for staged, published in moves:
            self._move(staged, published, may_publish)
            folders |= {staged.parent, published.parent}
        for folder in folders:
            if folder.exists():  # staged folders may have gone with their last file, by another's hand
                sync_directory(folder)
        if commit.pieces:
            write_durably(mark, json.dumps({"rows": commit.rows}).encode(), uuid.uuid4().hex[:16])
        self._tidy(commit)
        return commit.rows

    def _moves(self, commit: Commit) -> Iterator[tuple[Path, Path]]:
        for piece in commit.pieces:
            prefix = f"{self._job}-{commit.pipeline}-{commit.checkpoint}-{piece.name}"
            for number, name in enumerate(json.loads(zlib.decompress(piece.detail))):
                folder, file = os.path.split(name)
                yield self._staging / piece.name / name, self._path / folder / f"{prefix}-{number}{_endings(file)}"

    def _check_all_there(self, moves: Sequence[tuple[Path, Path]]) -> None:
        """Before anything becomes visible. Staging is looked at first: what moves meanwhile is in the other place."""
        gone = [staged for staged, published in moves if not staged.exists() and not published.exists()]
        if gone:
            shown = ", ".join(str(path.relative_to(self._staging)) for path in gone[:3])
            if not self._staging.is_dir():  # as when a file system is not mounted: it may come back with all of them
                raise Refused(f"{self._staging} is not there, and with it {len(gone)} staged files", lasting=False)
            raise Refused(f"{len(gone)} staged files are gone from {self._staging}: {shown}")

    def _move(self, staged: Path, published: Path, may_publish: MayPublish) -> None:
        if published.exists():
            return
        if not may_publish():
            raise Refused("the worker's lease is lost", lasting=False)
        make_directory(published.parent)
        try:
            staged.rename(published)
        except FileNotFoundError:
            if not published.exists():
                raise Refused(f"{staged} has gone while it was published", lasting=False) from None

    def _clear(self, may_publish: MayPublish) -> None:
        """With mode overwrite and the job's first commit: what was there before goes."""
        note = self._staging / TO_CLEAR
        if not note.exists():
            return
        for path in list(self._published()):
            if not path.name.startswith(f"{self._job}-"):
                if not may_publish():
                    raise Refused("the worker's lease is lost", lasting=False)
                path.unlink(missing_ok=True)
        note.replace(self._staging / CLEARED)
        sync_directory(self._staging)

    def _tidy(self, commit: Commit) -> None:
        """Folders that are empty now, and what attempts before those of this checkpoint have left: checkpoints are
        published in their order, so that none is yet to come that names it."""
        newest: dict[str, int] = {}
        for piece in commit.pieces:
            shutil.rmtree(self._staging / piece.name, ignore_errors=True)
            pipeline, task, attempt, _ = piece.name.split("-")
            newest[f"{pipeline}-{task}"] = max(int(attempt), newest.get(f"{pipeline}-{task}", 0))
        for path in self._staging.iterdir() if newest and self._staging.exists() else ():
            parts = path.name.split("-")
            if len(parts) == 4 and int(parts[2]) < newest.get(f"{parts[0]}-{parts[1]}", 0):
                shutil.rmtree(path, ignore_errors=True)
        for old in self._staging.glob(f"published-{commit.pipeline}-{commit.checkpoint - MARKS_KEPT}-*"):
            old.unlink(missing_ok=True)

    def _published(self) -> Iterator[Path]:
        return _data_files(self._path)


def local_path(step: Step, path: str) -> Path:
    """The directory as the driver sees it: executors must see it there as well."""
    plain = path.removeprefix("file://")
    if "://" in plain:
        raise OptionsRefused(f"{step.name!r} has the path {path!r}; it may be a directory on a file system, /…")
    return Path(plain).absolute()


def texts(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, bool) else str(value) for name, value in options.items()}


def _data_files(folder: Path) -> Iterator[Path]:
    """Files below a folder that readers look at."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        for name in sorted(names):
            if not name.startswith((".", "_")):
                yield Path(parent) / name


def _rows_of(path: Path) -> int:
    from pyarrow import parquet

    return int(parquet.read_metadata(path).num_rows)


def _sync_file(path: Path) -> int:
    """Its size, when its content is durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        return os.fstat(handle).st_size
    finally:
        os.close(handle)


def _endings(name: str) -> str:
    """Of part-00000-….c000.snappy.parquet, .snappy.parquet: readers go by them."""
    return "".join(Path(name).suffixes[-2:])
