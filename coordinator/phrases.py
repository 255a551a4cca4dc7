"""Words for people: durations, numbers, lists, and tasks by name. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

STALLED = "STALLED: "  # how the reason of a stalled task begins on the log
NAMED = 6  # of many things only the first are named


def duration(ms: float) -> str:
    """As somebody would say it: 118 ms, 2.3 s, 4 min 10 s, 3 h 5 min, 2 days."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(int(ms // 1000), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} days"


def count(number: int, what: str, many: str = "") -> str:
    return f"{number:,} {what if number == 1 else many or what + 's'}"


def listing(items: Iterable[str], limit: int = NAMED) -> str:
    """a, b and c; of many: a, b, c and 12 more."""
    found = list(items)
    if len(found) > limit:
        return f"{', '.join(found[:limit])} and {len(found) - limit:,} more"
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}" if found else "nothing"


def numbers(found: Sequence[int]) -> str:
    """Numbers in order, runs of them as from to: 1, 3 to 7 and 9."""
    parts, run = list[str](), list[int]()
    for number in sorted(found):
        if run and number == run[-1] + 1:
            run.append(number)
            continue
        parts += _run(run)
        run = [number]
    return listing(parts + _run(run))


def _run(run: list[int]) -> list[str]:
    if len(run) < 3:
        return [str(number) for number in run]
    return [f"{run[0]} to {run[-1]}"]


def tasks(found: Iterable[tuple[int, int]]) -> str:
    """Task 0/1, tasks 0/0 and 0/2, tasks 0/0 to 0/99, by pipeline and number."""
    known = sorted(set(found))
    parts = []
    for pipeline in sorted({pipeline for pipeline, _ in known}):
        mine = [task for number, task in known if number == pipeline]
        if len(mine) > 2 and mine[-1] - mine[0] + 1 == len(mine):
            parts.append(f"{pipeline}/{mine[0]} to {pipeline}/{mine[-1]}")
        else:
            parts += [f"{pipeline}/{task}" for task in mine]
    return f"task{'s' if len(known) > 1 else ''} {listing(parts)}"


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    text = text.strip()
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?…" else ".")


def told(reason: str, at: int) -> str:
    """A reason as people read it: times in it as how long ago that was then."""

    def since(found: re.Match[str]) -> str:
        return f"no progress for {duration(max(0, at - int(found[1])))}"

    return re.sub(r"no progress since (\d+)", since, reason.removeprefix(STALLED))
