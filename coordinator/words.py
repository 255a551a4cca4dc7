"""Words from outside: names that a key can hold, and texts cut to what every record can hold. What comes in may be as
large as the broker lets it; what is made of it stands in several records, next to other things. Pure."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from events.errors import UnreadableKey
from events.keys import check_name

MAX_TEXT = 4000
T = TypeVar("T", bound=msgspec.Struct)


def is_name(text: str) -> bool:
    try:
        check_name(text)
    except UnreadableKey:
        return False
    return True


def short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text):,} characters)"


def shortened(record: T) -> T:
    """The record with its `reason` cut, if it has one that is too long."""
    reason = getattr(record, "reason", "")
    return record if len(reason) <= MAX_TEXT else msgspec.structs.replace(record, reason=short(reason))
