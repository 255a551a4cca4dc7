"""The codec: round trips, byte for byte what fastavro writes, and a typed error for anything else."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import fastavro
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from events import records
from events.codec import BODY, CONFLUENT, SINGLE_OBJECT, TOP_LEVEL, Codec, SchemaBook, fingerprint_of, peek
from events.confluent import ConfluentRegistry
from events.encoding import long
from events.errors import DetentError, EncodingError, Place, UnknownSchema, UnreadableRecord
from tests.strategies import CODEC, an_event, record_of

HERE = Place("reports", 3, 41)
RECORDS = st.sampled_from(TOP_LEVEL).flatmap(record_of)


def as_fastavro_wants(value: Any) -> Any:
    if isinstance(value, records.Record):
        fields = {f.encode_name: as_fastavro_wants(getattr(value, f.name)) for f in msgspec.structs.fields(type(value))}
        branches = ("state", "action", "happening")
        return fields | {
            f: (f"detent.{type(getattr(value, f)).__name__}", fields[f])
            for f in branches
            if f in fields and isinstance(getattr(value, f), records.Record)
        }
    if isinstance(value, tuple):
        return [as_fastavro_wants(item) for item in value]
    return value


@given(RECORDS)
def test_what_is_encoded_is_decoded(record: records.Record) -> None:
    assert CODEC.decode(CODEC.encode(record), type(record), HERE) == record


@given(RECORDS)
def test_the_bytes_are_fastavros(record: records.Record) -> None:
    name = type(record).__name__
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, CODEC.book.parsed[name], as_fastavro_wants(record))
    assert CODEC.encode(record) == SINGLE_OBJECT + CODEC.book.fingerprints[name] + stream.getvalue()


@given(RECORDS, st.data())
def test_damaged_bytes_end_in_a_record_or_a_typed_error(record: records.Record, data: st.DataObject) -> None:
    encoded = bytearray(CODEC.encode(record))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(encoded) - 1))
        encoded[at] = data.draw(st.integers(0, 255))
    damaged = bytes(encoded[: data.draw(st.integers(0, len(encoded)))])
    try:
        assert isinstance(CODEC.decode(damaged, type(record), HERE), type(record))
    except UnreadableRecord as error:
        assert error.place == HERE
        assert "reports/3 at offset 41" in str(error)


@given(st.binary(max_size=200), st.sampled_from(TOP_LEVEL))
def test_bytes_that_are_not_ours(garbage: bytes, name: str) -> None:
    with pytest.raises(UnreadableRecord) as caught:
        CODEC.decode(garbage, getattr(records, name), HERE)
    assert caught.value.place == HERE


@given(RECORDS.filter(lambda r: len(CODEC.encode(r)) > BODY), st.data())
def test_a_truncated_record(record: records.Record, data: st.DataObject) -> None:
    encoded = CODEC.encode(record)
    with pytest.raises(UnreadableRecord):
        CODEC.decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))], type(record), HERE)


@given(RECORDS)
def test_more_bytes_than_the_record(record: records.Record) -> None:
    with pytest.raises(UnreadableRecord, match="1 bytes follow"):
        CODEC.decode(CODEC.encode(record) + b"\0", type(record), HERE)


def test_a_record_of_another_kind_and_none_at_all() -> None:
    command = CODEC.encode(records.Command(id="1", job="a", action=records.Cancel()))
    with pytest.raises(UnreadableRecord, match="holds Command, where Report is expected"):
        CODEC.decode(command, records.Report, HERE)
    with pytest.raises(UnreadableRecord, match="no value, where Report is expected"):
        CODEC.decode(None, records.Report, HERE)


def test_an_unknown_fingerprint_is_looked_up_once_more_then_named() -> None:
    asked = []
    codec = Codec(refresh=lambda: asked.append(True))
    with pytest.raises(UnknownSchema, match=r"fingerprint 6162636465666768.* is not on the schemas topic"):
        codec.decode(SINGLE_OBJECT + b"abcdefgh" + b"body", records.Event, HERE)
    assert asked == [True]


@given(record_of("Event"))
def test_the_first_fields_can_be_seen_without_decoding(event: records.Event) -> None:
    assert CODEC.peek(CODEC.encode(event)) == (event.epoch, event.logic, event.incarnation, event.attempt, event.due_at)


@pytest.mark.parametrize(
    "value", [b"", b"\xc3\x01", b"\xc3\x01abcdefgh", b"\xc3\x01abcdefgh\x80\x80", b"\0garbage12345"]
)
def test_peeking_at_what_is_no_event(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"truncated|single-object"):
        peek(value)


def test_B5_what_has_no_known_schema_has_no_epoch() -> None:
    """Or garbage that looks like an epoch would void everything that comes after it."""
    garbage = b"\xc3\x01 what is this?"
    assert peek(garbage).epoch == 16
    command = CODEC.encode(records.Command(id="c", job="a", by="x" * 20, action=records.Cancel()))
    for value in (garbage, command):
        with pytest.raises(ValueError, match="is not known, or is no event's"):
            CODEC.peek(value)


def test_events_of_an_epoch_begin_alike_and_no_others_do() -> None:
    for epoch in (0, 1, 63, 64, 8191, 8192, 2**40):
        prefixes = CODEC.book.event_prefixes(epoch)
        encoded = CODEC.encode(an_event("job/a", epoch, 1, 1, 1, records.Task()))
        assert encoded.startswith(prefixes)
        for other in (epoch + 1, epoch + 64, epoch + 128, epoch + 2**20):
            assert not CODEC.encode(an_event("job/a", other, 1, 1, 1, records.Task())).startswith(prefixes)


def test_the_fingerprint_is_avros() -> None:
    """The example that Avro's own tests carry for CRC-64-AVRO: the schema "int", little-endian."""
    assert fingerprint_of("int") == bytes.fromhex("8f5c393f1ad57572")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (records.Beat(coordinator="c", instance="i", time=2**63), "does not fit 64 bits"),
        (records.ShardLed(shard=1, epoch=1), "stand on a topic by themselves"),
        (records.Beat(coordinator=7, instance="i", time=1), "does not fit its schema"),  # type: ignore[arg-type]
        (records.Command(id="1", job="a", action=records.Task()), "does not fit its schema"),  # type: ignore[arg-type]
    ],
)
def test_a_record_that_does_not_fit_its_schema(record: records.Record, says: str) -> None:
    with pytest.raises(EncodingError, match=says):
        CODEC.encode(record)


@given(st.integers(-(2**63), 2**63 - 1))
def test_variable_length_integers_are_fastavros(n: int) -> None:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, "long", n)
    assert long(n) == stream.getvalue()


# Confluent's wire format ----------------------------------------------------------------------------------------------


def test_confluents_wire_format_is_read_next_to_our_own() -> None:
    registry = ConfluentRegistry({"url": "mock://detent"}, prefix="detent")
    service, coordinator = Codec(registry=registry, confluent=True), Codec(registry=registry)
    command = records.Command(id="1", job="a", by="me", action=records.Submit(specification="{}"))
    encoded = service.encode(command)
    assert encoded[:1] == CONFLUENT
    assert coordinator.decode(encoded, records.Command, HERE) == command
    assert coordinator.decode(coordinator.encode(command), records.Command, HERE) == command
    unknown = CONFLUENT + struct.pack(">I", 999) + encoded[5:]
    with pytest.raises(UnknownSchema, match="the registry has no schema 999"):
        coordinator.decode(unknown, records.Command, HERE)
    with pytest.raises(UnknownSchema, match="no registry is configured"):
        Codec().decode(encoded, records.Command, HERE)
    with pytest.raises(DetentError, match="needs a schema registry"):
        Codec(confluent=True)


@pytest.mark.parametrize("schema", ['{"type": "nonsense", "name": "x"}', "[1]", '"int"', "null", '{"name": "x"}'])
def test_a_schema_that_is_none_is_refused_when_it_is_learned(schema: str) -> None:
    with pytest.raises(DetentError, match="can't be used"):
        SchemaBook().add(json.loads(schema))
