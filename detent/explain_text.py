"""An explanation as lines of text, for terminals and files alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from coordinator.explain import Explanation
from coordinator.waits import Wait

When = Callable[[int], str]


def explanation_lines(said: Explanation, when: When) -> Iterator[str]:
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
        for moment in said.story:
            mark = {"takeover": "↻", "trouble": "!", "recovery": "+", "end": "■"}.get(moment.kind, "·")
            yield f"  {when(moment.time)}  {mark} {moment.text}"
    if said.ignored:
        yield ""
        yield "Late or ignored"
        for each in said.ignored:
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
