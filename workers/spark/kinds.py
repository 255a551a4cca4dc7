"""The kinds of sources, transforms and sinks: for each its options, and where it is made.

Modules of makers are imported when one is made: whoever only checks a specification needs no PySpark. Option structs
forbid unknown fields and live in modules that import no PySpark.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from workers.plan import OptionsRefused, Step
from workers.spark import options as o
from workers.spark import part_options as p
from workers.spark.api import Context, Sink, Source


class Kind(NamedTuple):
    options: type[msgspec.Struct]
    maker: str  # module:name


SOURCES: Mapping[str, Kind] = {
    "generator": Kind(o.GeneratorOptions, "workers.spark.generator:Generator"),
    "files": Kind(o.FilesSourceOptions, "workers.spark.files_source:FilesSource"),
    "kafka": Kind(p.KafkaSourceOptions, "workers.spark.kafka_source:KafkaSource"),
    "jdbc": Kind(p.JdbcSourceOptions, "workers.spark.jdbc_source:JdbcSource"),
    "iceberg": Kind(p.IcebergSourceOptions, "workers.spark.iceberg_source:IcebergSource"),
    "iceberg_compaction": Kind(p.CompactionSourceOptions, "workers.spark.iceberg_compaction:CompactionSource"),
    "format": Kind(p.FormatSourceOptions, "workers.spark.format_source:FormatSource"),
}

TRANSFORMS: Mapping[str, Kind] = {
    "sql": Kind(o.SqlOptions, "workers.spark.transforms:sql"),
    "python": Kind(o.PythonOptions, "workers.spark.transforms:python"),
}

SINKS: Mapping[str, Kind] = {
    "files": Kind(o.FilesSinkOptions, "workers.spark.files_sink:FilesSink"),
    "iceberg": Kind(p.IcebergSinkOptions, "workers.spark.iceberg_sink:IcebergSink"),
    "iceberg_compaction": Kind(p.CompactionSinkOptions, "workers.spark.iceberg_compaction:CompactionSink"),
    "jdbc": Kind(p.JdbcSinkOptions, "workers.spark.jdbc_sink:JdbcSink"),
    "kafka": Kind(p.KafkaSinkOptions, "workers.spark.kafka_sink:KafkaSink"),
    "console": Kind(o.ConsoleOptions, "workers.spark.console:Console"),
}


def make_source(context: Context, step: Step, share: int, shares: int) -> Source:
    source: Source = maker_of("source", SOURCES, step)(context, step, share, shares)
    return source


def make_sink(context: Context, step: Step, job: str, incarnation: int) -> Sink:
    sink: Sink = maker_of("sink", SINKS, step)(context, step, job, incarnation)
    return sink


def maker_of(what: str, kinds: Mapping[str, Kind], step: Step) -> Any:
    """Raises OptionsRefused where there is no such kind."""
    if step.kind not in kinds:
        known = ", ".join(sorted(kinds))
        raise OptionsRefused(f"{what} {step.name!r} is of kind {step.kind!r}, which is not known; there are {known}")
    module, _, name = kinds[step.kind].maker.partition(":")
    return getattr(importlib.import_module(module), name)
