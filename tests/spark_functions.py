"""Functions that jobs of the tests name."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def marked(frame: DataFrame, by: int) -> DataFrame:
    return frame.select((f.col("id") + by).alias("id"), "name")


def wrong(frame: DataFrame) -> int:
    return 1
