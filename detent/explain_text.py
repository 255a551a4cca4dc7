"""An explanation as lines of text, for terminals and files alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from coordinator.explain import Explanation
from coordinator.waits import Wait

When = Callable[[int], str]


FIRST, LAST, LATE = 10, 40, 20  # of a long life the beginning and the end are told


def explanation_lines(said: Explanation, when: When, *, everything: bool = False) -> Iterator[str]:
    """Of a long story the middle is left out, unless everything is wanted."""
    yield said.headline
    yield ""
    yield "Why"
    for number, link in enumerate(said.why):
        yield f"  {'└ ' if number else ''}{link}"
    if said.waits:
        yield ""
        yield "What it waits for"
        for wait in said.waits:
            yield from _wait(wait, when)
    if said.story:
        yield ""
        yield "What happened"
        skipped = 0 if everything else max(0, len(said.story) - FIRST - LAST)
        for number, moment in enumerate(said.story):
            if skipped and number == FIRST:
                yield f"  … {skipped:,} more; --all tells them, `detent log {said.job}` every transition"
            if not skipped or not FIRST <= number < FIRST + skipped:
                mark = {"takeover": "↻", "trouble": "!", "recovery": "+", "end": "■"}.get(moment.kind, "·")
                yield f"  {when(moment.time)}  {mark} {moment.text}"
    if said.ignored:
        yield ""
        yield "Late or ignored"
        shown = said.ignored if everything else said.ignored[-LATE:]
        if len(shown) < len(said.ignored):
            yield f"  … {len(said.ignored) - len(shown):,} earlier ones"
        for each in shown:
            yield f"  {when(each.last_at)}  {each.text}"
    for note in said.notes:
        yield ""
        yield note


def _wait(wait: Wait, when: When) -> Iterator[str]:
    times = [f"since {when(wait.since)}" if wait.since else "", f"until {when(wait.until)}" if wait.until else ""]
    said = ", ".join(time for time in times if time)
    yield f"  {wait.what}" + (f" ({said})" if said else "")
    if wait.moves:
        yield f"    → {wait.moves}"
