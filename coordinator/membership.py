"""Who may lead a shard, and who should: from what coordinators say of themselves. No lock, no agreement: fencing
decides, this only keeps them from fencing each other in turns, and spreads shards evenly.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from events.records import Beat


@dataclass(frozen=True, slots=True)
class Member:
    """A coordinator that lives, as far as is known here: its last beat, and since when it has been heard."""

    beat: Beat
    since_ms: int
    heard_ms: int

    def follows(self, shard: int) -> bool:
        return shard in self.beat.standing_by or any(led.shard == shard for led in self.beat.shards)

    def leads(self, shard: int) -> bool:
        return any(led.shard == shard for led in self.beat.shards)


def candidates(members: Mapping[str, Member], shard: int, logic: int) -> list[str]:
    """Those who could lead the shard at once, in the same order for everyone who knows the same."""
    return sorted(name for name, member in members.items() if member.follows(shard) and member.beat.logic >= logic)


def rank(name: str, among: Iterable[str], shard: int) -> int:
    """Whose turn it is: 0 goes first. Every shard begins with another one, so that they spread."""
    order = sorted({*among, name})
    return (order.index(name) - shard) % len(order)


def preferred(among: list[str], shard: int) -> str:
    """Who should lead the shard when all are well; empty when nobody is there."""
    return among[shard % len(among)] if among else ""
