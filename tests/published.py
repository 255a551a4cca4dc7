"""Puts what a shard in the hand (tests/shard.py) or a story (tests/scenarios) has decided onto a real log, in the same
transactions: so that what reads logs can be tried on histories that were made in a moment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coordinator.draft import Gone
from events.cluster import Cluster
from events.codec import Codec
from events.records import Event
from events.table import Raw, tombstone_headers
from events.writer import Outgoing
from tests.logs import a_writer
from tests.simulation.broker import COMMITTED, Broker, Rotten


def publish(cluster: Cluster, log: Iterable[Event | Gone], codec: Codec | None = None) -> int:
    """Write a log, transaction by transaction. Returns the offset of its last event."""
    codec, group, last = codec or Codec(), list[Outgoing](), -1
    with a_writer(cluster) as writer:
        for event in log:
            group.append(_outgoing(codec, event))
            if event.entity.startswith("cursor/"):
                last, group = writer.commit(group), []
    return last


def _outgoing(codec: Codec, event: Event | Gone) -> Outgoing:
    key = event.entity.encode()
    if isinstance(event, Event):
        return Outgoing("events", 0, key, codec.encode(event))
    return Outgoing("events", 0, key, None, tombstone_headers(event.epoch, event.incarnation))


def events_of(broker: Broker) -> list[Event | Gone]:
    """The log of a telling, without what rotted."""
    stored = broker.partition("events").stored
    return [_value(record.value) for record in stored if record.status == COMMITTED and record.value is not None]


def raws_of(broker: Broker, codec: Codec) -> list[Raw]:
    """The log of a telling as it would stand on a topic: with its own offsets, where markers and compaction leave
    some out."""
    found = []
    for offset, record in enumerate(broker.partition("events").stored):
        if record.status == COMMITTED and record.value is not None:
            event = _value(record.value)
            value = codec.encode(event) if isinstance(event, Event) else None
            headers = None if isinstance(event, Event) else tombstone_headers(event.epoch, event.incarnation)
            found.append(Raw(offset, event.entity.encode(), value, headers))
    return found


def _value(value: Any) -> Event | Gone:
    found = value.was if isinstance(value, Rotten) else value
    assert isinstance(found, Event | Gone)
    return found
