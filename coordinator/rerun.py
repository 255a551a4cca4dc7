"""Deciding again: whether today's logic would decide what the log says was decided, and where not, the difference field
by field. For replays after an incident, and before an upgrade.

A decision depends on the state before it, soft state (`heard`, `led_since`, `lease_ms`) included: what the caller does
not know of that shows up as a difference. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from coordinator.core import Input, decide
from coordinator.draft import Gone
from coordinator.state import State
from events.records import Cause, Event

# Who wrote an event and as which of its shard, not what was decided.
NOT_DECIDED = frozenset({"logic", "sequence"})


class Difference(NamedTuple):
    """One field of one event. A whole event that only one side has is the field "transition" against None."""

    entity: str
    field: str
    recorded: Any
    computed: Any

    def __str__(self) -> str:
        return f"{self.entity} {self.field}: recorded {self.recorded!r}, now {self.computed!r}"


def rerun(
    before: State, given: Input, now: int, cause: Cause, recorded: Sequence[Event | Gone], *, deletions: bool = True
) -> tuple[Difference, ...]:
    """Decide on an input again, in the state before it, and compare with the events that were recorded then. The cursor
    that ends a transaction is no part of a decision. Without `deletions` they are left out on both sides: on the log
    they say no cause. Equal: nothing."""
    was = [event for event in recorded if not event.entity.startswith("cursor/")]
    try:
        computed = decide(before, given, now, cause).events
    except Exception as error:  # noqa: BLE001  that it can't be decided any more is a difference like others
        return (Difference("", "decision", f"{len(was)} events", f"{type(error).__name__}: {error}"),)
    if not deletions:
        was = [event for event in was if isinstance(event, Event)]
        computed = tuple(event for event in computed if isinstance(event, Event))
    return tuple(_differences(was, computed))


def _differences(recorded: Sequence[Event | Gone], computed: Sequence[Event | Gone]) -> Iterator[Difference]:
    """Event by event of each entity, so that one that is missing does not shift all that follow."""
    one, other = _by_entity(recorded), _by_entity(computed)
    for entity in dict.fromkeys([*one, *other]):
        was, now = one.get(entity, []), other.get(entity, [])
        for index in range(max(len(was), len(now))):
            left = was[index] if index < len(was) else None
            right = now[index] if index < len(now) else None
            yield from _compare(entity, left, right)


def _by_entity(events: Sequence[Event | Gone]) -> dict[str, list[Event | Gone]]:
    found: dict[str, list[Event | Gone]] = {}
    for event in events:
        found.setdefault(event.entity, []).append(event)
    return found


def _compare(entity: str, recorded: Event | Gone | None, computed: Event | Gone | None) -> Iterator[Difference]:
    if isinstance(recorded, Event) and isinstance(computed, Event):
        one, other = dict(_fields("", recorded)), dict(_fields("", computed))
        for field in dict.fromkeys([*one, *other]):
            if field not in NOT_DECIDED and one.get(field) != other.get(field):
                yield Difference(entity, field, one.get(field), other.get(field))
    elif recorded != computed:
        yield Difference(entity, "transition", _transition(recorded), _transition(computed))


def _transition(event: Event | Gone | None) -> str | None:
    if event is None:
        return None
    return event.transition if isinstance(event, Event) else "deleted"


def _fields(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every leaf of a record by its path, such as `state.acks[0].position`."""
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from _fields(f"{name}.{field.rstrip('_')}".lstrip("."), getattr(value, field))
    elif isinstance(value, tuple) and value:
        for index, item in enumerate(value):
            yield from _fields(f"{name}[{index}]", item)
    else:
        yield name, value
