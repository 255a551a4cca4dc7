"""Whether rows fit files that are there: Spark's types against those in a parquet file, as far as readers care."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
from pyarrow import parquet

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def schema_of_file(path: Path) -> pyarrow.Schema:
    return parquet.read_schema(path)


def is_flat(schema: StructType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    return not any(isinstance(field.dataType, ArrayType | MapType | StructType | VariantType) for field in schema)


def differences(rows: StructType, there: pyarrow.Schema, apart: Sequence[str]) -> list[str]:
    """What differs, as clauses; columns `apart` are in the directories' names."""
    from pyspark.sql.pandas.types import to_arrow_schema

    mine = {field.name: _alike(field.type) for field in to_arrow_schema(rows) if field.name not in apart}
    theirs = {field.name: _alike(field.type) for field in there}
    found = [f"{name} is new" for name in mine if name not in theirs]
    found += [f"{name} is missing" for name in theirs if name not in mine]
    both = [name for name in mine if name in theirs]
    return found + [f"{name} is {mine[name]}, not {theirs[name]}" for name in both if mine[name] != theirs[name]]


def _alike(kind: pyarrow.DataType) -> str:
    """A type without what does not matter to who reads: units and zones of times, names and nulls of members."""
    if pyarrow.types.is_timestamp(kind):
        return "timestamp"
    if pyarrow.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {_alike(field.type)}' for field in kind)}>"
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        return f"list<{_alike(kind.value_type)}>"
    if pyarrow.types.is_map(kind):
        return f"map<{_alike(kind.key_type)}, {_alike(kind.item_type)}>"
    return str(kind).removeprefix("large_")
