"""The options of generator, files, console, sql and python, as a job's specification gives them. No PySpark here.

Each field says what it is for by its description: `detent validate` and the JSON Schema are made from these.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Rows = Annotated[int, Meta(ge=0)]
Format = Literal["parquet", "csv", "json", "text"]


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all have in common: a field that is not known is an error."""


class GeneratorOptions(Options, frozen=True):
    """Made-up rows: `id` counts from `start`; each column is a Spark SQL expression of `id` (and `seed`)."""

    rows: Annotated[int, Meta(ge=-1, description="How many rows all tasks make together. -1: without end.")] = -1
    start: Annotated[int, Meta(description="The first id.")] = 0
    rate: Annotated[float, Meta(ge=0, description="Rows a second, of all tasks together. 0: as fast as it goes.")] = 0.0
    seed: Annotated[int, Meta(description="Named `seed` in the columns' expressions.")] = 0
    slice_rows: Annotated[int, Meta(ge=0, description="The most rows of a slice. 0: by the time that slices take.")] = 0
    columns: Annotated[
        dict[str, str], Meta(description="Columns besides id: a name and a Spark SQL expression of id and seed.")
    ] = {}


class FilesSourceOptions(Options, frozen=True):
    """Files below a directory, each read once. Files never change; new ones appear whole (written aside, renamed)."""

    path: Annotated[str, Meta(min_length=1, description="A directory that all workers and executors see, or a file.")]
    format: Annotated[Format, Meta(description="What the files are.")] = "parquet"
    pattern: Annotated[str, Meta(description="Which names count, as a glob.")] = "*"
    continuous: Annotated[bool, Meta(description="Go on looking for new files. Otherwise: those there at start.")] = (
        False
    )
    poll_ms: Annotated[int, Meta(ge=10, description="How often a continuous source looks for new files.")] = 1000
    lateness_ms: Annotated[
        int, Meta(ge=0, description="How much older than the newest file read a new file may be, when continuous.")
    ] = 60_000
    slice_files: Annotated[
        int, Meta(ge=0, description="The most files of a slice. 0: by the time that slices take.")
    ] = 0
    part_bytes: Annotated[
        int, Meta(ge=1, description="Parquet files larger than this are read in parts of about this size.")
    ] = 128 * 1024 * 1024
    schema: Annotated[str, Meta(description="The columns as Spark's DDL. Empty: as the first file has them.")] = ""
    reader: Annotated[dict[str, Any], Meta(description="Options of Spark's reader, such as header.")] = {}


class FilesSinkOptions(Options, frozen=True):
    """Files in a directory that all workers and executors see."""

    path: Annotated[str, Meta(min_length=1, description="The directory. It is made if it is not there.")]
    format: Annotated[Literal["parquet", "csv", "json"], Meta(description="What is written.")] = "parquet"
    partition_by: Annotated[list[str], Meta(description="Columns that become directories, column=value.")] = []
    mode: Annotated[
        Literal["append", "error_if_exists", "overwrite"],
        Meta(
            description="What becomes of files that are there before the job's first output: they stay; the job fails; "
            "they go with the first commit."
        ),
    ] = "append"
    writer: Annotated[dict[str, Any], Meta(description="Options of Spark's writer, such as compression.")] = {}


class ConsoleOptions(Options, frozen=True):
    """Rows of committed checkpoints on the worker's stdout."""

    limit: Annotated[int, Meta(ge=0, description="How many rows of a checkpoint's piece are shown.")] = 20


class SqlOptions(Options, frozen=True):
    """Spark SQL. Each step in `from` is a view by its name, and `input` is all of them together."""

    query: Annotated[
        str | list[str],
        Meta(description="A query, or several: each later one sees the one before as the view `previous`."),
    ]


class PythonOptions(Options, frozen=True):
    """A function DataFrame -> DataFrame of a module that worker.allowed_modules names."""

    function: Annotated[str, Meta(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*$", description="module:name")]
    arguments: Annotated[dict[str, Any], Meta(description="Keyword arguments that it is called with.")] = {}
