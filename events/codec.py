"""Records to bytes and back: Avro single-object encoding, or Confluent's wire format for services that use it.

Encodes with the schemas of this version; decodes what any version wrote, given its schema. Whatever the
bytes are, decoding ends in a record or in a typed error that says where they stand.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeVar

import fastavro
import msgspec
from fastavro.schema import SchemaParseException, fingerprint, to_parsing_canonical_form
from fastavro.types import Schema as ParsedSchema

import schemas
from events import records
from events.encoding import Encode, Encoders, long
from events.errors import DetentError, EncodingError, Place, UnknownSchema, UnreadableRecord
from events.structs import make_ready
from schemas import Schema

SINGLE_OBJECT = b"\xc3\x01"
CONFLUENT = b"\x00"
BODY = len(SINGLE_OBJECT) + 8  # where the record begins in single-object encoding
TOP_LEVEL = ("Event", "Command", "Order", "Report", "Heartbeat", "Beat", "DeadLetter")

R = TypeVar("R", bound=records.Record)
make_ready(records.Record)  # threads that read their first records together find all types as they are to be

# Everything fastavro and msgspec raise on bytes that are not what the schema says.
UNREADABLE = (
    EOFError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    OverflowError,
    MemoryError,
    struct.error,
    msgspec.ValidationError,
    fastavro.read.SchemaResolutionError,
)


def fingerprint_of(schema: Schema) -> bytes:
    """The eight bytes that single-object encoding puts in front of a record."""
    hexadecimal = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
    return bytes.fromhex(hexadecimal)


class Header(NamedTuple):
    """What can be seen of an event without decoding it."""

    epoch: int
    logic: int
    incarnation: int
    attempt: int
    due_at: int


def peek(value: bytes) -> Header:
    """The first fields of an event's envelope, if it is one. Raises ValueError when they are not there."""
    return Header(*_numbers(value, len(Header._fields)))


def peek_time(value: bytes) -> int:
    """When an event was decided: its seventh field, without decoding the rest. Raises ValueError when it is not
    there."""
    return _numbers(value, 7)[6]


def _numbers(value: bytes, count: int) -> list[int]:
    if value[:2] != SINGLE_OBJECT:
        raise ValueError("not in single-object encoding")
    numbers, at = [], BODY
    try:
        for _ in range(count):
            shift = n = 0
            while (byte := value[at]) & 128:
                n |= (byte & 127) << shift
                shift, at = shift + 7, at + 1
            n |= byte << shift
            at += 1
            numbers.append(n >> 1 ^ -(n & 1))
    except IndexError:
        raise ValueError("truncated within its first fields") from None
    return numbers


class Registry(Protocol):
    """A schema registry of Confluent's kind: numbers for schemas."""

    def id_of(self, name: str, schema: Schema) -> int: ...

    def schema_of(self, schema_id: int) -> Schema: ...


class SchemaBook:
    """The schemas that records may have been written with, by fingerprint: this version's and those of the log."""

    def __init__(self) -> None:
        self.own: dict[str, Schema] = {
            name: schemas.self_contained(f"{schemas.NAMESPACE}.{name}") for name in TOP_LEVEL
        }
        self.parsed: dict[str, ParsedSchema] = {
            name: fastavro.parse_schema(schema) for name, schema in self.own.items()
        }
        self.fingerprints: dict[str, bytes] = {name: fingerprint_of(schema) for name, schema in self.own.items()}
        self._by_fingerprint: dict[bytes, tuple[str, ParsedSchema]] = {
            self.fingerprints[name]: (name, parsed) for name, parsed in self.parsed.items()
        }

    def add(self, schema: Schema) -> bytes:
        """Make the records of another version's schema readable. Returns its fingerprint."""
        try:
            parsed = fastavro.parse_schema(schema)
            name = str(schema["name"]).rsplit(".", 1)[-1]
            key = fingerprint_of(schema)
        except (SchemaParseException, KeyError, TypeError, ValueError) as error:
            raise DetentError(
                f"a schema on the schemas topic can't be used: {error} (in {json.dumps(schema)[:200]})"
            ) from error
        self._by_fingerprint.setdefault(key, (name, parsed))
        return key

    def __len__(self) -> int:
        return len(self._by_fingerprint)

    def find(self, key: bytes) -> tuple[str, ParsedSchema] | None:
        return self._by_fingerprint.get(key)

    def event_prefixes(self, epoch: int) -> tuple[bytes, ...]:
        """How an event of this epoch begins, whatever schema of ours it was written with."""
        events = (key for key, (name, _) in self._by_fingerprint.items() if name == "Event")
        return tuple(SINGLE_OBJECT + key + long(epoch) for key in events)


class Codec:
    """Encodes and decodes the records of Detent's topics. Give it `refresh` to learn of schemas written since,
    and a registry to read (and, if `confluent` is set, to write) Confluent's wire format."""

    def __init__(
        self,
        book: SchemaBook | None = None,
        *,
        refresh: Callable[[], None] | None = None,
        registry: Registry | None = None,
        confluent: bool = False,
    ) -> None:
        if confluent and registry is None:
            raise DetentError("Confluent's wire format needs a schema registry: set registry, or leave confluent off")
        self.book = book or SchemaBook()
        self.registry = registry
        self._refresh = refresh
        self._confluent = confluent
        self._compiled = Encoders()
        self._encoders: dict[str, Encode] = {}
        self._registered: dict[int, tuple[str, ParsedSchema]] = {}

    def encode(self, record: records.Record) -> bytes:
        name = type(record).__name__
        return (self._encoders.get(name) or self._encoder(name))(record)

    def encode_all(self, batch: Iterable[records.Record], name: str) -> list[bytes]:
        """Encodes records of one type: what the hot path uses."""
        return list(map(self._encoders.get(name) or self._encoder(name), batch))

    def _encoder(self, name: str) -> Encode:
        if name not in self.book.own:
            raise EncodingError(name, f"only {', '.join(TOP_LEVEL)} stand on a topic by themselves")
        if self._confluent and self.registry is not None:
            frame = CONFLUENT + struct.pack(">I", self.registry.id_of(name, self.book.own[name]))
        else:
            frame = SINGLE_OBJECT + self.book.fingerprints[name]
        encode = self._encoders[name] = self._compiled.record(self.book.own[name], frame)
        return encode

    def decode(self, value: bytes | None, kind: type[R], place: Place) -> R:
        """The record that the bytes hold. Raises UnreadableRecord, naming the place, when they hold none."""
        if value is None:
            raise UnreadableRecord(place, f"it has no value, where {kind.__name__} is expected")
        name, writer, body = self._frame(value, place)
        if name != kind.__name__:
            raise UnreadableRecord(place, f"it holds {name}, where {kind.__name__} is expected")
        own = self.book.parsed[name]
        stream = io.BytesIO(body)
        try:
            fields = fastavro.schemaless_reader(stream, writer, None if writer is own else own, return_record_name=True)
            if not isinstance(fields, dict):
                raise ValueError("no record")
            for field, content in fields.items():
                if type(content) is tuple:  # a branch of a union, with its name
                    fields[field] = content[1] | {"type": content[0].rsplit(".", 1)[-1]}
            record = msgspec.convert(fields, kind)
        except UNREADABLE as error:
            raise UnreadableRecord(
                place, f"its bytes do not hold a {name}: {str(error) or type(error).__name__}"
            ) from error
        if stream.tell() != len(body):
            raise UnreadableRecord(place, f"{len(body) - stream.tell()} bytes follow its {name}")
        return record

    def peek(self, value: bytes) -> Header:
        """The first fields of an event, without decoding it. Raises ValueError when it is none that can be decoded:
        whatever stands in the place of its epoch must not be taken for one."""
        header = peek(value)
        key = value[len(SINGLE_OBJECT) : BODY]
        found = self._find(key)
        if found is None or found[0] != "Event":
            raise ValueError(f"its schema (fingerprint {key.hex()}) is not known, or is no event's")
        return header

    def _find(self, key: bytes) -> tuple[str, ParsedSchema] | None:
        found = self.book.find(key)
        if found is None and self._refresh is not None:
            self._refresh()
            found = self.book.find(key)
        return found

    def _frame(self, value: bytes, place: Place) -> tuple[str, ParsedSchema, bytes]:
        """Which schema wrote it, and its body."""
        if value[:2] == SINGLE_OBJECT and len(value) >= BODY:
            key = value[2:BODY]
            found = self._find(key)
            if found is None:
                raise UnknownSchema(place, f"its schema (fingerprint {key.hex()}) is not on the schemas topic")
            return *found, value[BODY:]
        if value[:1] == CONFLUENT and len(value) >= 5:
            return *self._from_registry(struct.unpack(">I", value[1:5])[0], place), value[5:]
        raise UnreadableRecord(place, f"it starts with {value[:10].hex() or 'nothing'}, which is no encoding of ours")

    def _from_registry(self, schema_id: int, place: Place) -> tuple[str, ParsedSchema]:
        if schema_id not in self._registered:
            if self.registry is None:
                raise UnknownSchema(place, f"it names schema {schema_id} of a registry, and no registry is configured")
            try:
                schema = self.registry.schema_of(schema_id)
            except LookupError as error:
                raise UnknownSchema(place, f"the registry has no schema {schema_id}: {error}") from error
            found = self.book.find(self.book.add(schema))
            if found is None:
                raise UnknownSchema(place, f"schema {schema_id} of the registry is no record")
            self._registered[schema_id] = found
        return self._registered[schema_id]
