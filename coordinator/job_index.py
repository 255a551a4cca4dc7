"""All jobs of all shards in the order in which they are listed, newest submission first, and by state: so that a page
of ten thousand costs what is on the page. Pure; not for several threads at once.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import NamedTuple

from coordinator.lifecycle import TERMINAL_JOB
from events.records import Event, Job, Summary

ENDED, RUNNING = "ended", "running"  # groups that can be asked for like states


class Listed(NamedTuple):
    """A place in the list. The order of the fields is the order of the list."""

    submitted: int  # negative: the newest comes first
    job: str
    incarnation: int

    @property
    def key(self) -> tuple[str, int]:
        return self.job, self.incarnation


class JobIndex:
    def __init__(self) -> None:
        self._all: list[Listed] = []
        self._by: dict[str, list[Listed]] = {}  # by state, and the two groups
        self._known: dict[tuple[str, int], tuple[Listed, str]] = {}
        self._sources: dict[tuple[str, int], dict[str, tuple[int, str]]] = {}  # what the job, or its summary, says
        self._incarnations: dict[str, set[int]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def load(self, events: Iterable[Event | None]) -> None:
        """Many at once: sorted once."""
        for event in events:
            if event is not None:
                self._say(event)
        self._all, self._by, self._known, self._incarnations = [], {}, {}, {}
        for key, said in self._sources.items():
            submitted, state = said.get("Job") or said["Summary"]
            listed = Listed(-submitted, *key)
            for order in self._lists(state):
                order.append(listed)
            self._known[key] = (listed, state)
            self._incarnations.setdefault(key[0], set()).add(key[1])
        for order in (self._all, *self._by.values()):
            order.sort()

    def _say(self, event: Event) -> None:
        if isinstance(event.state, Job | Summary):
            kind = type(event.state).__name__
            state = event.to if isinstance(event.state, Job) else event.state.reason.partition(":")[0]
            said = self._sources.setdefault((event.job, event.incarnation), {})
            said[kind] = (event.state.submitted_at, state)

    def note(self, before: Event | None, after: Event | None) -> None:
        """A job or a summary has changed, come or gone."""
        for event in (before, after):
            if event is None or not isinstance(event.state, Job | Summary):
                continue
            key = (event.job, event.incarnation)
            if event is after:
                self._say(event)
            elif after is None or (after.job, after.incarnation) != key:
                self._sources.get(key, {}).pop(type(event.state).__name__, None)
            self._place(key, self._sources.get(key, {}))

    def _place(self, key: tuple[str, int], said: dict[str, tuple[int, str]]) -> None:
        """The job itself says it better than its summary."""
        best = said.get("Job") or said.get("Summary")
        if best is None:
            self._sources.pop(key, None)
            wanted = None
        else:
            wanted = (Listed(-best[0], *key), best[1])
        known = self._known.get(key)
        if known == wanted:
            return
        if known is not None:
            for order in self._lists(known[1]):
                del order[bisect_left(order, known[0])]
            del self._known[key]
            self._forget(key)
        if wanted is not None:
            for order in self._lists(wanted[1]):
                insort(order, wanted[0])
            self._known[key] = wanted
            self._incarnations.setdefault(key[0], set()).add(key[1])

    def _forget(self, key: tuple[str, int]) -> None:
        numbers = self._incarnations[key[0]]
        numbers.discard(key[1])
        if not numbers:
            del self._incarnations[key[0]]

    def _lists(self, state: str) -> list[list[Listed]]:
        group = ENDED if state in TERMINAL_JOB else RUNNING
        return [self._all, self._by.setdefault(state, []), self._by.setdefault(group, [])]

    def counts(self) -> dict[str, int]:
        """How many jobs there are in each state."""
        return {state: len(order) for state, order in sorted(self._by.items()) if order and state.isupper()}

    def total(self, group: str) -> int:
        return len(self._by.get(group, ()))

    def find(
        self, states: Iterable[str] = (), search: str = "", start: int = 0, limit: int = 50
    ) -> tuple[list[Listed], int]:
        """A page, and how many there are in all. A state is one of the life cycle, or `running`, or `ended`."""
        wanted = list(dict.fromkeys(states))
        if not wanted:
            order = self._all
        elif len(wanted) == 1:
            order = self._by.get(wanted[0], [])
        else:
            groups = {ENDED: TERMINAL_JOB, RUNNING: self._by.keys() - TERMINAL_JOB - {ENDED, RUNNING}}
            covered = {state for group in wanted for state in groups.get(group, ())}
            order = sorted(each for state in wanted if state not in covered for each in self._by.get(state, ()))
        if search:
            order = [each for each in order if search in each.job]
        return order[start : start + limit], len(order)

    def names(self) -> list[str]:
        return list(self._incarnations)

    def newest(self, job: str) -> int:
        """The newest incarnation of an id; 0 where there is none."""
        return max(self._incarnations.get(job, ()), default=0)
