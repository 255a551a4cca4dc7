"""Whether rows fit a table of a database: by names, and by types as Spark sees both. Pure but for PySpark's types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

# Each goes into itself and into those behind it.
WIDENING = ("tinyint", "smallint", "int", "bigint", "decimal", "double")
ALIKE = (("float", "double"), ("timestamp", "timestamp_ntz"), ("timestamp_ntz", "timestamp"), ("date", "timestamp"))


def misfits(rows: StructType, table: StructType, keys: Sequence[str]) -> list[str]:
    """What is wrong, as clauses."""
    has = {field.name: field for field in table}
    found = [f"the table has no column {field.name}" for field in rows if field.name not in has]
    both = [(field.name, field.dataType, has[field.name].dataType) for field in rows if field.name in has]
    found += [
        f"{name} is {one.simpleString()}, not {other.simpleString()}"
        for name, one, other in both
        if not _fits(one, other)
    ]
    given = set(rows.names)
    return found + [f"the rows have no {key}, which is a key column" for key in keys if key not in given]


def _fits(given: DataType, wanted: DataType) -> bool:
    one, other = (kind.simpleString().partition("(")[0] for kind in (given, wanted))
    if one == other or (one, other) in ALIKE or (one.startswith("varchar") and other == "string"):
        return True
    return one in WIDENING and other in WIDENING and WIDENING.index(one) <= WIDENING.index(other)
