"""The schemas: documented, the one source of the typed records, and readable across all versions both ways."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import schemas
import schemas.generate
from events import records
from events.codec import BODY, TOP_LEVEL, Codec, SchemaBook
from events.errors import Place, UnreadableRecord
from tests import golden
from tests.strategies import record_of

HERE = Place("events", 0, 7)


def test_records_py_is_what_the_schemas_say() -> None:
    assert schemas.generate.TARGET.read_text() == schemas.generate.render(), "run `make records`"


@pytest.mark.parametrize("name", schemas.files())
def test_every_record_and_field_is_documented(name: str) -> None:
    schema = schemas.files()[name]
    assert schema["doc"].endswith(".")
    assert all(field["doc"].endswith((".", "?")) for field in schema["fields"])


def test_the_envelope_begins_with_what_readers_peek_at() -> None:
    names = [field["name"] for field in schemas.files()["detent.Event"]["fields"]]
    assert names[:5] == ["epoch", "logic", "incarnation", "attempt", "due_at"]


def test_every_schema_is_used_by_a_topic() -> None:
    used = set()
    for name in TOP_LEVEL:
        used |= {part.split('"')[0] for part in json.dumps(schemas.self_contained(f"detent.{name}")).split('"name": "')}
    assert {name.removeprefix("detent.") for name in schemas.files()} <= used


GOLDEN_RECORDS = [
    (folder.name, line["record"], line)
    for folder in golden.versions()
    for line in map(json.loads, (folder / "records.jsonl").read_text().splitlines())
]


def test_there_are_golden_files() -> None:
    assert {record for _, record, _ in GOLDEN_RECORDS} == set(TOP_LEVEL)


def book_of(version: str) -> SchemaBook:
    book = SchemaBook()
    for schema in json.loads((golden.GOLDEN / version / "schemas.json").read_text()).values():
        book.add(schema)
    return book


def without_new_fields(new: Any, old: Any) -> Any:
    """What an earlier version knew of a value."""
    if isinstance(new, dict) and isinstance(old, dict):
        return {key: without_new_fields(value, old[key]) for key, value in new.items() if key in old}
    if isinstance(new, list) and isinstance(old, list):
        return [without_new_fields(a, b) for a, b in zip(new, old, strict=True)]
    return new


@pytest.mark.parametrize(("version", "record", "line"), GOLDEN_RECORDS)
def test_this_version_reads_what_earlier_ones_wrote(version: str, record: str, line: dict[str, Any]) -> None:
    codec = Codec(book_of(version))
    decoded = codec.decode(bytes.fromhex(line["encoded"]), getattr(records, record), HERE)
    assert without_new_fields(json.loads(msgspec.json.encode(decoded)), line["decoded"]) == line["decoded"]


@pytest.mark.parametrize("folder", golden.versions(), ids=lambda folder: folder.name)
@pytest.mark.parametrize("name", TOP_LEVEL)
@given(data=st.data())
def test_earlier_versions_read_what_this_one_writes(folder: Path, name: str, data: st.DataObject) -> None:
    old = fastavro.parse_schema(json.loads((folder / "schemas.json").read_text())[name])
    codec = Codec()
    record = data.draw(record_of(name))
    body = io.BytesIO(codec.encode(record)[BODY:])
    fields = fastavro.schemaless_reader(body, codec.book.parsed[name], old)
    assert isinstance(fields, dict)
    for field, value in fields.items():
        ours = getattr(record, schemas.python_name(field))
        assert isinstance(value, dict | list) or value == ours


def evolved(name: str, change: Any) -> SchemaBook:
    """A book of a version in which a schema has been changed."""
    book = SchemaBook()
    book.own[name] = json.loads(json.dumps(book.own[name]))
    change(book.own[name])
    book.parsed[name] = fastavro.parse_schema(book.own[name])
    book.fingerprints[name] = book.add(book.own[name])
    return book


def later_encoding(book: SchemaBook, name: str, record: records.Record, **more: Any) -> bytes:
    """What a later version would write, by fastavro."""
    fields = {f["name"]: getattr(record, schemas.python_name(f["name"]), None) for f in book.own[name]["fields"]}
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, book.parsed[name], fields | more)
    return b"\xc3\x01" + book.fingerprints[name] + stream.getvalue()


@given(record_of("DeadLetter"), st.text(max_size=5))
def test_evolution_a_field_with_a_default_is_readable_both_ways(letter: records.DeadLetter, severity: str) -> None:
    new = {"name": "severity", "type": "string", "default": "HIGH", "doc": "New."}
    book = evolved("DeadLetter", lambda schema: schema["fields"].append(new))
    written = later_encoding(book, "DeadLetter", letter, severity=severity)
    assert Codec(book_with(book.own["DeadLetter"])).decode(written, records.DeadLetter, HERE) == letter
    ours = io.BytesIO(Codec().encode(letter)[BODY:])
    later = fastavro.schemaless_reader(ours, SchemaBook().parsed["DeadLetter"], book.parsed["DeadLetter"])
    assert isinstance(later, dict)
    assert later["severity"] == "HIGH"


def book_with(schema: schemas.Schema) -> SchemaBook:
    book = SchemaBook()
    book.add(schema)
    return book


def test_evolution_a_new_kind_of_entity_is_named_not_guessed() -> None:
    """An older version can't read an entity it has never heard of: it says so and takes it for nothing else."""
    novelty = {"type": "record", "name": "Novelty", "namespace": "detent", "fields": [{"name": "n", "type": "long"}]}
    book = evolved("Event", lambda schema: schema["fields"][-1]["type"].append(novelty))
    event = golden.samples("Event", golden.random.Random(1))[0]
    cause = {f: getattr(event.cause, f) for f in event.cause.__struct_fields__}
    written = later_encoding(book, "Event", event, state=("detent.Novelty", {"n": 1}), cause=cause)
    with pytest.raises(UnreadableRecord, match="events/0 at offset 7"):
        Codec(book_with(book.own["Event"])).decode(written, records.Event, HERE)


def test_evolution_a_removed_field_would_be_seen() -> None:
    """The check of both directions can fail: a field without a default can't go."""
    book = evolved("Beat", lambda schema: schema["fields"].pop(0))
    beat = golden.samples("Beat", golden.random.Random(1))[0]
    shards = [{"shard": led.shard, "epoch": led.epoch} for led in beat.shards]
    written = later_encoding(book, "Beat", beat, shards=shards)
    with pytest.raises(UnreadableRecord, match="coordinator"):
        Codec(book_with(book.own["Beat"])).decode(written, records.Beat, HERE)
