"""An explanation as lines of text, for terminals and files alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from coordinator.explain import Explanation
from coordinator.ignored import Ignored
from coordinator.phrases import count
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
        yield from _ignored(said, when, everything)
    for note in said.notes:
        yield ""
        yield note


def _ignored(said: Explanation, when: When, everything: bool) -> Iterator[str]:
    """What was late in full; what was merely said again by the number: workers repeat what they are not sure of."""
    told = [each for each in said.ignored if everything or each.kind != "again"]
    shown = told if everything else told[-LATE:]
    if len(shown) < len(told):
        yield f"  … {len(told) - len(shown):,} earlier ones"
    for each in shown:
        yield f"  {when(each.last_at)}  {each.text}"
    again: dict[str, list[Ignored]] = {}
    for each in said.ignored if not everything else ():
        if each.kind == "again":
            again.setdefault(each.worker, []).append(each)
    for worker, group in sorted(again.items()):
        number = sum(each.count for each in group)
        yield f"  {worker} repeated {count(number, 'report')} that had been heard, which is as it should be."


def _wait(wait: Wait, when: When) -> Iterator[str]:
    times = [f"since {when(wait.since)}" if wait.since else "", f"until {when(wait.until)}" if wait.until else ""]
    said = ", ".join(time for time in times if time)
    yield f"  {wait.what}" + (f" ({said})" if said else "")
    if wait.moves:
        yield f"    → {wait.moves}"
