"""Times as people write and read them: in the zone of this machine, and as short as can be."""

from __future__ import annotations

import re
import time
from datetime import datetime

from coordinator.explaining import clock
from coordinator.phrases import duration
from events.errors import DetentError

__all__ = ["UnknownTime", "ago", "clock", "now_ms", "parse"]
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class UnknownTime(DetentError):
    """A text that says no time."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text!r} is no time that is understood. Write 2026-11-16T10:42:03 or 10:42:03 (in this machine's zone), "
            "with an offset if you like (+00:00), or how long ago, such as 5m, 90s or 2h."
        )


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def parse(text: str, now: int | None = None) -> int:
    """Milliseconds since 1970 of a time: a date with time, a time of today, how long ago, or milliseconds. Raises
    UnknownTime."""
    now = now_ms() if now is None else now
    ago = re.fullmatch(r"-?(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)(?: ago)?", text.strip())
    if ago:
        return now - int(float(ago[1]) * UNITS_MS[ago[2]])
    if re.fullmatch(r"\d{12,}", text.strip()):
        return int(text)
    today = datetime.fromtimestamp(now / 1000).astimezone()
    for given in (text.strip(), f"{today:%Y-%m-%d}T{text.strip()}"):
        try:
            return round(datetime.fromisoformat(given).astimezone().timestamp() * 1000)
        except ValueError:
            continue
    raise UnknownTime(text)


def ago(ms: int | None, now: int | None = None) -> str:
    if not ms:
        return ""
    return f"{duration(max(0, (now_ms() if now is None else now) - ms))} ago"
