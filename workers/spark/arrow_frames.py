"""Data frames whose rows are made in Spark's Python processes, as Arrow batches, one Spark task for each split.

It is what `mapInArrow` does. The public method asks for pandas, which nothing of this needs; a Python data source would
do as well, but planning one costs Spark two new Python processes, some tenths of a second for every slice.
"""

from __future__ import annotations

import sys
import zipimport
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def arrow_frame(
    session: SparkSession,
    splits: Sequence[Any],
    read: Callable[[Any], Iterable[pa.RecordBatch]],
    schema: StructType | str,
) -> DataFrame:
    """`read` and the splits are pickled: values only. Lazy."""

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    yield from read(splits[index])
        finally:
            forget_archives()

    numbers = session.range(0, len(splits), 1, max(1, len(splits)))
    if not hasattr(numbers, "_jdf"):  # Spark Connect
        return numbers.mapInArrow(rows, schema)
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    made = UserDefinedFunction(rows, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column: Any = made(numbers["id"])
    java: Any = numbers
    return ClassicFrame(java._jdf.mapInArrow(column._jc, False, None), session)


def forget_archives() -> None:
    """Spark's Python processes have PySpark in an archive, and at each task Python looks again at all packages of it
    that were imported: 0.2 s on a small machine. What it has forgotten it looks at when it imports from there."""
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]
            zipimport._zip_directory_cache.pop(finder.archive, None)  # type: ignore[attr-defined]
