"""A whole log decided again, decision by decision, and where today's logic decides otherwise, the difference field by
field: before an upgrade, and after an incident.

What workers said is not on the log, and where a task is placed depends on it. So workers that have tasks, or get some,
are taken to be there with room, and differences that only tell which worker was chosen, or that none had room, are
left out. Given events and inputs; pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from coordinator.core import Input, Timer
from coordinator.draft import Gone
from coordinator.rerun import Difference, rerun
from coordinator.state import Heard, State, entity_of, fold
from coordinator.verify import Finding
from events.records import Checkpoint, Cleanup, Command, Event, Heartbeat, Report, Task

Inputs = Callable[[str, int], Command | Report | None]  # what stands at an offset of an input, if it is still there
PLENTY = 1_000_000
SOFT_FIELDS = ("state.worker", "state.instance", "state.held_by", "state.held_tries", "state.refused_by", "state.tries",
               "state.reason", "due_at")  # fmt: skip
PLACING = frozenset({"placed", "waiting", "ordered", "begun", "repeated", "scheduled"})


class Rerunner:
    """Give it every transaction's events, in order."""

    def __init__(self, shard: int, shards: int, inputs: Inputs) -> None:
        self.shard, self._inputs = shard, inputs
        self.state = State(shard, shards=shards)
        self.decided = self.skipped = 0  # decisions that were made again; those whose input is not known any more
        self.findings: list[Finding] = []

    def add(self, events: Sequence[tuple[int, Event | Gone]]) -> None:
        for group in _decisions(events):
            self._again(group)
            for _, event in group:
                fold(self.state, entity_of(event.entity), event if isinstance(event, Event) else None)

    def _again(self, group: Sequence[tuple[int, Event | Gone]]) -> None:
        first = next((event for _, event in group if isinstance(event, Event)), None)
        if first is None or first.cause.kind not in ("INPUT", "TIMER") or first.entity.startswith("cursor/"):
            return
        given = self._given(first)
        if given is None:
            self.skipped += 1
            return
        self.decided += 1
        recorded = [event for _, event in group if isinstance(event, Event)]
        self._hear(first, recorded)
        all_found = rerun(self.state, given, first.time, first.cause, recorded, deletions=False)
        placed = {each.entity for each in all_found if _is_placing(each)}
        found = [each for each in all_found if each.entity not in placed and not _is_soft(each)]
        self.state.heard.clear()
        offset = group[0][0]
        self.findings += [self._finding(offset, first, each) for each in found]

    def _given(self, first: Event) -> Input | None:
        if first.cause.kind == "INPUT":
            return self._inputs(first.cause.topic, first.cause.offset)
        known = self.state.get(entity_of(first.cause.note))
        return Timer(first.cause.note, known.due_at) if known is not None and known.due_at else None

    def _hear(self, first: Event, recorded: Sequence[Event]) -> None:
        """The workers that must have been there."""
        instances = dict.fromkeys([worker for worker in self.state.tasks_on if worker], "")
        for event in recorded:
            state = event.state
            if isinstance(state, Task) and state.worker:
                instances[state.worker] = state.instance
            elif isinstance(state, Checkpoint | Cleanup):
                instances |= {worker: instances.get(worker, "") for worker in state.held_by}
        for worker, instance in instances.items():
            said = Heartbeat(worker=worker, instance=instance, time=first.time, slots=PLENTY)
            self.state.heard[worker] = Heard(said, first.time)

    def _finding(self, offset: int, first: Event, each: Difference) -> Finding:
        cause = first.cause
        why = (
            f"{cause.topic}/{cause.partition}@{cause.offset}" if cause.kind == "INPUT" else f"deadline of {cause.note}"
        )
        return Finding(
            shard=self.shard,
            offset=offset,
            key=each.entity or first.entity,
            kind="difference",
            what=f"decided again on {why}: {each}",
            field=each.field,
            recorded=repr(each.recorded),
            computed=repr(each.computed),
        )


def _decisions(events: Sequence[tuple[int, Event | Gone]]) -> Iterator[list[tuple[int, Event | Gone]]]:
    """Events of one decision stand together, with one cause and one time. A deletion belongs to what is around it."""
    group: list[tuple[int, Event | Gone]] = []
    current: tuple[object, int] | None = None
    for offset, event in events:
        if isinstance(event, Event):
            mine = (event.cause, event.time)
            if current is not None and mine != current:
                yield group
                group = []
            current = mine
        group.append((offset, event))
    if group:
        yield group


def _is_placing(each: Difference) -> bool:
    """Whether one side found a worker, or room on it, and the other did not."""
    return each.field == "transition" and {each.recorded, each.computed} - {None} <= PLACING


def _is_soft(each: Difference) -> bool:
    """Whether it tells only which worker it was."""
    return each.entity.startswith(("task/", "checkpoint/", "cleanup/")) and each.field.startswith(SOFT_FIELDS)
