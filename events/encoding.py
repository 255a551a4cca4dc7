"""Turns a record's schema into a Python function that encodes it: Avro binary, at the speed the log is written.

fastavro reads a dictionary through a generic writer, which costs more than sending the bytes does
(docs/log.md has the figures); this reads the typed record and nothing else. Its output is fastavro's, byte
for byte, which a property test holds it to. It encodes only what this version writes: reading, and with
it everything about other versions, is fastavro's alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from events.errors import EncodingError
from schemas import Schema, python_name

Encode = Callable[[Any], bytes]

# Variable-length integers of up to 14 bits: as the last group, and as one that more groups follow.
LAST = [bytes([z]) if z < 128 else bytes([z & 127 | 128, z >> 7]) for z in range(1 << 14)]
MORE = [bytes([z & 127 | 128, z >> 7 | 128]) for z in range(1 << 14)]


def long(n: int, bits: int = 64) -> bytes:
    """A zigzag variable-length integer."""
    z = n << 1 if n >= 0 else -n * 2 - 1
    if z >> bits:
        raise OverflowError(f"{n} does not fit {bits} bits")
    groups = b""
    while z >= 1 << 14:
        groups += MORE[z & 16383]
        z >>= 14
    return groups + LAST[z]


def int_(n: int) -> bytes:
    return long(n, 32)


def string(s: str) -> bytes:
    return bytes_(s.encode())


def bytes_(b: bytes) -> bytes:
    return long(len(b)) + b


def array(items: tuple[Any, ...], encode: Encode) -> bytes:
    return b"".join((long(len(items)), *map(encode, items), b"\0")) if items else b"\0"


def mapping(items: dict[str, Any], encode: Encode) -> bytes:
    if not items:
        return b"\0"
    return b"".join((long(len(items)), *(string(k) + encode(v) for k, v in items.items()), b"\0"))


class Encoders:
    """Compiles each record of a schema once. Holds the compiled functions by full name."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {
            "LAST": LAST, "long": long, "int_": int_, "string": string, "bytes_": bytes_,
            "array": array, "mapping": mapping, "join": b"".join,
        }  # fmt: skip

    def record(self, schema: Schema, prefix: bytes = b"") -> Encode:
        """The function that encodes a record of this schema, each result starting with the prefix."""
        function = self._function(schema, prefix)

        def encode(record: Any) -> bytes:
            try:
                return function(record)
            except (TypeError, AttributeError, KeyError, ValueError, OverflowError) as error:
                raise EncodingError(type(record).__name__, f"{error} (in {record!r:.400})") from error

        return encode

    def _function(self, schema: Schema, prefix: bytes) -> Encode:
        name = f"encode_{schema['name']}{'_framed' if prefix else ''}"
        parts = [repr(prefix)] if prefix else []
        for field in schema["fields"]:
            parts += self._expressions(field["type"], f"r.{python_name(field['name'])}")
        body = parts[0] if len(parts) == 1 else f"join(({', '.join(parts)}))"
        exec(f"def {name}(r):\n    return {body}\n", self.scope)  # its text comes from our own schemas only
        encode: Encode = self.scope[name]
        return encode

    def _expressions(self, kind: Any, value: str) -> list[str]:
        """What encodes a value: expressions whose results are written one after the other."""
        if kind in ("long", "int"):
            slow = "int_" if kind == "int" else "long"
            return [f"(LAST[n << 1] if -1 < (n := {value}) < 8192 else {slow}(n))"]
        if kind == "string":
            return [f"(LAST[n << 1] if (n := len(b := {value}.encode())) < 8192 else long(n))", "b"]
        if kind == "bytes":
            return [f"bytes_({value})"]
        if kind == "boolean":
            return [f"(b'\\1' if {value} else b'\\0')"]
        if isinstance(kind, list):
            return [self._union(kind, value)]
        if isinstance(kind, str) or kind["type"] == "record":
            return [f"{self._nested(kind)}({value})"]
        if kind["type"] in ("array", "map"):
            item = self._lambda(kind["items" if kind["type"] == "array" else "values"])
            return [f"{'array' if kind['type'] == 'array' else 'mapping'}({value}, {item})"]
        raise EncodingError(str(kind), "this kind of schema is not used by Detent's records")

    def _nested(self, schema: Schema | str) -> str:
        """The function of a record within a record; Avro writes a record out once and names it from then on."""
        if isinstance(schema, str):
            return f"encode_{schema.rsplit('.', 1)[-1]}"
        name = f"encode_{schema['name']}"
        if name not in self.scope:
            self._function(schema, b"")
        return name

    def _lambda(self, kind: Any) -> str:
        expressions = self._expressions(kind, "v")
        return f"(lambda v: {expressions[0] if len(expressions) == 1 else 'join((' + ', '.join(expressions) + '))'})"

    def _union(self, branches: list[Any], value: str) -> str:
        """A branch is chosen by the value's type, never by trying."""
        table = f"union_{len(self.scope)}"
        if "null" in branches:
            other = next(b for b in branches if b != "null")
            index = {b: repr(LAST[i << 1]) for i, b in enumerate(branches)}
            some = self._lambda(other)
            return f"({index['null']} if (u := {value}) is None else {index[other]} + {some}(u))"
        functions = [self._nested(branch) for branch in branches]
        self.scope[table] = {
            name.removeprefix("encode_"): (LAST[i << 1], self.scope[name]) for i, name in enumerate(functions)
        }
        return f"(t := {table}[(u := {value}).__class__.__name__])[0], t[1](u)"
