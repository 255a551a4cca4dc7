"""Avro values of Kafka records → Arrow columns, by one given schema, in Spark's Python processes."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import fastavro
import pyarrow as pa
from confluent_kafka import Message

from events.errors import DetentError
from workers.plan import OptionsRefused
from workers.spark.kafka_read import COLUMNS

PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "uuid": pa.string(),
}


class BadValue(DetentError):
    """A value that is not what the schema says."""


def record_fields(text: str, step: str) -> list[pa.Field]:
    """The columns of the schema's record. Raises OptionsRefused."""
    try:
        schema = fastavro.parse_schema(json.loads(text), expand=True)
        if not isinstance(schema, dict) or schema.get("type") != "record":
            raise ValueError("it is no record")
        return [pa.field(field["name"], _arrow(field["type"])) for field in schema["fields"]]
    except Exception as error:  # whatever the parser stumbles over
        raise OptionsRefused(f"the schema of {step!r} is no Avro record that rows can be had from: {error}") from error


def _arrow(kind: Any) -> pa.DataType:
    if isinstance(kind, list):
        others = [one for one in kind if one != "null"]
        if len(others) != 1:
            raise ValueError(f"the union {kind} has more than one type besides null")
        return _arrow(others[0])
    name = kind["type"] if isinstance(kind, dict) else kind
    if isinstance(kind, dict):
        logical = kind.get("logicalType")
        if logical == "decimal":
            return pa.decimal128(kind["precision"], kind.get("scale", 0))
        if logical in LOGICAL:
            return LOGICAL[logical]
        if isinstance(name, dict | list):
            return _arrow(name)
        if name == "record":
            return pa.struct([pa.field(field["name"], _arrow(field["type"])) for field in kind["fields"]])
        if name == "array":
            return pa.list_(_arrow(kind["items"]))
        if name == "map":
            return pa.map_(pa.string(), _arrow(kind["values"]))
    if name not in PLAIN:
        raise ValueError(f"{name!r} is of no known type, or within itself")
    return PLAIN[name]


class AvroColumns:
    """Messages of one partition → an Arrow batch: a column for each field of the record, then those beside it."""

    def __init__(self, text: str, fields: Sequence[pa.Field], skip: int, strict: bool, beside: Sequence[str]) -> None:
        self._text, self._fields, self._skip, self._strict = text, list(fields), skip, strict
        self._beside = list(beside)
        self._schema: Any = None

    def __call__(self, messages: list[Message]) -> pa.RecordBatch:
        if self._schema is None:  # parsed once in each process
            self._schema = fastavro.parse_schema(json.loads(self._text))
        rows = list(map(self._row, messages))
        values = pa.array(rows, pa.struct(self._fields))
        beside = [COLUMNS[name](messages) for name in self._beside]
        names = [*(field.name for field in self._fields), *self._beside]
        return pa.RecordBatch.from_arrays([*values.flatten(), *beside], names=names)

    def _row(self, message: Message) -> Any:
        value = message.value()
        if value is None:
            return None
        try:
            return fastavro.schemaless_reader(io.BytesIO(value[self._skip :]), self._schema, None)
        except Exception as error:  # whatever the bytes make of it
            if not self._strict:
                return None
            at = f"{message.topic()}/{message.partition()} at offset {message.offset()}"
            raise BadValue(f"the value on {at} is not what the schema says: {error}") from error
