"""Large parquet files in parts: ranges of row groups, read by pyarrow in Spark's Python workers.

Spark's own reader takes whole files. A file too large for one slice is cut here at its row groups, so that a checkpoint
never waits for all of it. Cutting follows from the file and the size of parts alone: the same in every attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyarrow import parquet
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT = "detent_row_groups"


class Part(NamedTuple):
    """Row groups `first` up to but not `last`."""

    first: int
    last: int
    rows: int
    size: int


def parts_of(path: Path, part_bytes: int) -> list[Part]:
    """At least one row group each, and no more than the bytes where that is possible."""
    about = parquet.read_metadata(path)
    found: list[Part] = []
    first = rows = size = 0
    for number in range(about.num_row_groups):
        group = about.row_group(number)
        weight = sum(group.column(column).total_compressed_size for column in range(group.num_columns))
        if number > first and size + weight > part_bytes:
            found.append(Part(first, number, rows, size))
            first, rows, size = number, 0, 0
        rows += group.num_rows
        size += weight
    return [*found, Part(first, about.num_row_groups, rows, size)]


def frame_of(session: SparkSession, path: Path, part: Part, schema: StructType | str) -> DataFrame:
    session.dataSource.register(RowGroups)
    reader = session.read.format(FORMAT).schema(schema)
    return reader.options(path=str(path), first=part.first, last=part.last).load()


class RowGroups(DataSource):
    """The Python data source: one partition for each row group."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader(self.options, schema)


class Group(InputPartition):
    def __init__(self, number: int) -> None:
        self.number = number


class Reader(DataSourceReader):
    def __init__(self, options: Any, schema: StructType) -> None:
        self._path = str(options["path"])
        self._groups = range(int(options["first"]), int(options["last"]))
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [Group(number) for number in self._groups]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from pyspark.sql.pandas.types import to_arrow_schema

        assert isinstance(partition, Group)
        wanted = to_arrow_schema(self._schema)
        with parquet.ParquetFile(self._path) as file:
            columns = [name for name in wanted.names if name in file.schema_arrow.names]
            for batch in file.iter_batches(row_groups=[partition.number], columns=columns, batch_size=65_536):
                yield from _fitted(batch, wanted).to_batches()


def _fitted(batch: Any, wanted: Any) -> Any:
    """With the wanted columns and types: what the file does not have is null."""
    import pyarrow

    table = pyarrow.Table.from_batches([batch])
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pyarrow.nulls(table.num_rows, field.type)
        for field in wanted
    ]
    return pyarrow.Table.from_arrays(columns, schema=wanted)
