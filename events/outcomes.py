"""Commands and their outcomes: which record answers a command, and how two commands are told apart. Pure."""

from __future__ import annotations

import hashlib

import msgspec

from events.keys import Entity, named
from events.records import Command


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def digest_of(command: Command) -> str:
    """Of what it asks for: the same id with another content is another command."""
    return digest(command.job, msgspec.json.encode(command.action).decode())


def outcome_entity(command: Command) -> Entity:
    """Where its outcome stands. Raises UnreadableKey for a job or an id that can't be one."""
    return named("command", command.job, command.id)


def conflict_entity(command: Command) -> Entity:
    """Where the refusal stands of a command that has an id of another: next to that one's outcome."""
    return named("command", command.job, f"{digest_of(command)[:16]} {command.id[:100]}")
