"""Entity keys and shards: which bytes name an entity, and which partition a job lives on.

A key is readable text, `kind/part/part`, the same in every language. Parts that users choose are
percent-encoded, so a key parses in exactly one way and every entity has exactly one key.
"""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from events.errors import DetentError, UnreadableKey

# What follows each kind: `str` is a name somebody chose, `int` a number.
KINDS: dict[str, tuple[type[str] | type[int], ...]] = {
    "job": (str,),
    "specification": (str,),
    "pipeline": (str, int),
    "task": (str, int, int),
    "ready": (str, int, int),
    "ack": (str, int, int),  # a task's part of the checkpoint in flight
    "pending": (str, int),  # the checkpoint in flight
    "checkpoint": (str, int),  # the latest completed checkpoint
    "savepoint": (str, str),
    "command": (str, str),
    "cleanup": (str, int),  # job and incarnation: only its owner's, ever
    "summary": (str, int),  # job and incarnation: it outlives the job's other keys
    "leader": (int,),
    "cursor": (int,),
    "worker": (str,),
}
WITHOUT_JOB = frozenset({"leader", "cursor", "worker"})
MAX_NAME_BYTES = 512
MAX_NUMBER = 2**63 - 1
# Most names are such as percent-encoding leaves alone: to see that costs less than to encode them.
PLAIN = re.compile(f"[A-Za-z0-9_.~-]{{1,{MAX_NAME_BYTES}}}").fullmatch


class Entity(NamedTuple):
    """One entity of the log. `named` and `parse` make it."""

    kind: str
    parts: tuple[Any, ...]  # names and numbers, as KINDS says
    text: str
    job: str  # that it belongs to; empty where it belongs to none

    @property
    def key(self) -> bytes:
        return self.text.encode()


@functools.lru_cache(maxsize=262_144, typed=True)
def named(kind: str, *parts: str | int) -> Entity:
    """Such as `named("task", "orders", 0, 2)`. The same few entities are named again and again: each is checked and
    written out once."""
    return _made(kind, parts)


def _made(kind: str, parts: tuple[str | int, ...]) -> Entity:
    wanted = KINDS.get(kind)
    if wanted is None or len(wanted) != len(parts):
        raise UnreadableKey(repr((kind, *parts)).encode(), "no such kind, or a wrong number of parts")
    for part, of in zip(parts, wanted, strict=True):
        if not isinstance(part, of) or isinstance(part, bool):
            raise UnreadableKey(repr(parts).encode(), f"{part!r} should be {of.__name__}")
        check_name(part) if isinstance(part, str) else check_number(part)
    text = "/".join((kind, *map(_written, parts)))
    return Entity(kind, parts, text, "" if kind in WITHOUT_JOB else str(parts[0]))


def _written(part: str | int) -> str:
    if isinstance(part, int):
        return str(part)
    return part if PLAIN(part) else quote(part, safe="")


def check_name(name: str) -> None:
    if PLAIN(name):
        return
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise UnreadableKey(repr(name).encode(), "a name must be valid Unicode") from error
    if not 0 < size <= MAX_NAME_BYTES:
        raise UnreadableKey(name.encode(), f"a name has 1 to {MAX_NAME_BYTES} bytes, this one {size}")


def check_number(number: int) -> None:
    if not 0 <= number <= MAX_NUMBER:
        raise UnreadableKey(str(number).encode(), "a number in a key is 0 or more and fits 64 bits")


def parse(key: bytes) -> Entity:
    """The entity a key names. Anything that `Entity.key` would not write is refused."""
    try:
        kind, *parts = key.decode("ascii").split("/")
        paired = zip(parts, KINDS[kind], strict=True)
        read = [_name(part) if want is str else int(part) for part, want in paired]
    except (UnicodeDecodeError, KeyError, ValueError) as error:
        raise UnreadableKey(key, f"expected kind/part/part with one of the kinds {', '.join(KINDS)}") from error
    entity = _made(kind, tuple(read))
    if entity.key != key:
        raise UnreadableKey(key, f"it should be written {entity.text}")
    return entity


def _name(part: str) -> str:
    return part if PLAIN(part) else unquote(part, errors="strict")


def order_key(worker: str, job: str, pipeline: int, task: int) -> bytes:
    """The key of orders: the newest order for a worker's task is the one that counts."""
    return "/".join((quote(worker, safe=""), quote(job, safe=""), str(pipeline), str(task))).encode()


def order_prefix(worker: str) -> bytes:
    """What the keys of a worker's orders begin with, and no other's."""
    return f"{quote(worker, safe='')}/".encode()


def parse_order_key(key: bytes) -> tuple[str, str, int, int]:
    """Worker, job, pipeline and task that an order is for; the last two are -1 where it is for all."""
    try:
        worker, job, pipeline, task = key.decode("ascii").split("/")
        parsed = unquote(worker, errors="strict"), unquote(job, errors="strict"), int(pipeline), int(task)
    except (UnicodeDecodeError, ValueError) as error:
        raise UnreadableKey(key, "expected worker/job/pipeline/task") from error
    if order_key(*parsed) != key:
        raise UnreadableKey(key, f"it should be written {order_key(*parsed).decode()}")
    return parsed


def murmur2(data: bytes) -> int:
    """Kafka's own 32-bit hash of a key, as its default partitioner uses it, so that services in any
    language which leave partitioning to their client reach the right shard."""
    mask, m, length = 0xFFFFFFFF, 0x5BD1E995, len(data)
    h = (0x9747B28C ^ length) & mask
    whole = length - length % 4
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    if whole < length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


@functools.lru_cache(maxsize=65536)
def shard_of(name: str, shards: int) -> int:
    """The partition of a job (or, for orders, of a worker)."""
    if shards < 1:
        raise DetentError(f"a cluster has at least one shard, not {shards}")
    return (murmur2(name.encode()) & 0x7FFFFFFF) % shards
