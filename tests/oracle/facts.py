"""What the oracle's judges share: findings, how things are named, the inputs, and the facts that the events yield."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any, NamedTuple
from urllib.parse import unquote

from events import records as r
from events.codec import Codec
from events.errors import Place, UnreadableRecord
from tests.oracle.log import Log, Record


class Finding(NamedTuple):
    rule: str
    place: str  # topic/partition@offset
    what: str

    def __str__(self) -> str:
        return f"[{self.rule}] {self.place}: {self.what}"


class Attempt(NamedTuple):
    """One attempt of one task of one incarnation of a job."""

    job: str
    incarnation: int
    pipeline: int
    task: int
    attempt: int


class Pipe(NamedTuple):
    """A pipeline of one incarnation of a job."""

    job: str
    incarnation: int
    pipeline: int


@functools.lru_cache(maxsize=65536)
def parts_of(key: str) -> tuple[str, tuple[str, ...]]:
    """The kind of an entity, and what follows it in its key."""
    kind, *parts = key.split("/")
    return kind, tuple(unquote(part) for part in parts)


def decoded(codec: Codec, record: Record, kind: type[Any]) -> Any:
    """The record, or None where it can't be read."""
    try:
        return codec.decode(record.value, kind, Place(record.topic, record.partition, record.offset))
    except UnreadableRecord:
        return None


class Inputs:
    """Commands and reports as they stand on their topics, by partition and offset."""

    def __init__(self, log: Log, codec: Codec) -> None:
        self.commands: dict[tuple[int, int], r.Command | None] = {
            (x.partition, x.offset): decoded(codec, x, r.Command) for x in log.of("commands")
        }
        self.reports: dict[tuple[int, int], r.Report | None] = {
            (x.partition, x.offset): decoded(codec, x, r.Report) for x in log.of("reports")
        }

    def command(self, event: r.Event) -> r.Command | None:
        cause = event.cause
        found = self.commands.get((cause.partition, cause.offset))
        return found if cause.kind == "INPUT" and cause.topic == "commands" else None

    def report(self, event: r.Event) -> r.Report | None:
        cause = event.cause
        found = self.reports.get((cause.partition, cause.offset))
        return found if cause.kind == "INPUT" and cause.topic == "reports" else None


class Facts:
    """What the log says, gathered for what is judged beside it: orders, starts and output."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.specifications: dict[tuple[str, int], str] = {}
        self.jobs: dict[str, r.Event] = {}  # the newest of each that there is
        self.last: dict[tuple[str, int], r.Event] = {}  # the last word on each incarnation, gone or not
        self.cleaned: set[tuple[str, int]] = set()
        self.drained: set[tuple[str, int]] = set()  # ended before their sources did, as they were told to
        self.committed: dict[Pipe, dict[int, int]] = {}  # rows of each task whose output is published
        self.completed: dict[Pipe, dict[int, int]] = {}  # … whose output is decided on
        self.named: dict[tuple[Pipe, int], set[str]] = {}  # staged output that a completed checkpoint names
        self.placed: dict[Attempt, tuple[str, int, bytes]] = {}  # worker, and where it begins
        self.ran: dict[Attempt, str] = {}
        self.lost_words: set[str] = set()  # jobs of which something could not be read
