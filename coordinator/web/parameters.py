"""What addresses of the API take, said once: names, pages, moments, and how long a read may wait for a write."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Path, Query
from pydantic import BeforeValidator

from coordinator.web.problems import Refused
from events.keys import MAX_NAME_BYTES

# A slash within a name, as the doorway hands it on: the router would take it for the end of the name.
SLASH = "\ue000"
MOST_LISTED = 1000
PAGE = 50  # jobs, where nothing is said
LARGEST = 2**53 - 1
WAIT_MS = 10_000
AFTER = r"^[0-9]{1,5}:[0-9]{1,15}$"
AT = re.compile(r"(?P<shard>[0-9]{1,5}):(?P<offset>[0-9]{1,15})")


def _name(given: object) -> object:
    return given.replace(SLASH, "/") if isinstance(given, str) else given


JobName = Annotated[
    str, BeforeValidator(_name), Path(min_length=1, max_length=MAX_NAME_BYTES, description="The job's id.")
]
CommandName = Annotated[
    str, BeforeValidator(_name), Path(min_length=1, max_length=MAX_NAME_BYTES, description="The command's id.")
]
Incarnation = Annotated[int, Query(ge=0, le=LARGEST, description="Which job of this id; 0: the newest.")]
Start = Annotated[int, Query(ge=0, le=LARGEST, description="How many to leave out from the beginning.")]
Limit = Annotated[int, Query(ge=0, le=MOST_LISTED, description="The most to answer.")]
Search = Annotated[str, Query(max_length=MAX_NAME_BYTES, description="Part of the job's id.")]
At = Annotated[
    str | None,
    Query(
        max_length=40,
        description="The state as it was: milliseconds since 1970 UTC, an ISO 8601 time, or shard:offset of an event.",
    ),
]
After = Annotated[
    str | None,
    Query(
        pattern=AFTER,
        description="Wait until this command (shard:offset, from the answer to it) is decided on and known here.",
    ),
]
WaitMs = Annotated[int, Query(ge=0, le=60_000, description="How long `after` may wait.", alias="waitMs")]


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of the log: a time, or right after an event."""

    time: int | None = None
    shard: int | None = None
    offset: int | None = None


def moment_of(at: str | None) -> Moment | None:
    if at is None or at == "":
        return None
    if place := AT.fullmatch(at):
        return Moment(shard=int(place["shard"]), offset=int(place["offset"]))
    if re.fullmatch(r"[0-9]{1,15}", at):
        return Moment(time=int(at))
    try:
        time = datetime.fromisoformat(at)
    except ValueError as error:
        reason = f"at is {at!r}; it may be milliseconds since 1970 UTC, an ISO 8601 time, or shard:offset"
        raise Refused(422, "Not understood", reason) from error
    given = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return Moment(time=max(0, round(given.timestamp() * 1000)))


def place_of(after: str) -> tuple[int, int]:
    """Shard and offset."""
    shard, _, offset = after.partition(":")
    return int(shard), int(offset)
