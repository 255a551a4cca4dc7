"""The story of a job, told from its history: what happened, in order, in plain sentences that somebody understands at
three in the morning. Routine is gathered (checkpoints that went well are one line), what went wrong is told in full.

Given the history of the job with the leaders and workers of its shard; pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from coordinator.deploy import WAITS
from coordinator.history import Seen
from coordinator.lifecycle import TERMINAL_JOB
from coordinator.phrases import count, duration, listing, numbers, sentence, tasks, told
from coordinator.specification import plan
from coordinator.views import View
from events.records import Checkpoint, Event, Job, Leader, Outcome, Savepoint, Specification, Task

Group = dict[tuple[str, str], list[Seen]]


class Moment(View, frozen=True):
    """One thing that happened, or several of the same."""

    time: int
    offset: int
    kind: str  # "routine", "takeover", "trouble", "command", "recovery" or "end"
    text: str


class Committed(NamedTuple):
    pipeline: int
    checkpoint: Checkpoint
    seen: Seen


def story(history: Sequence[Seen], job: str, incarnation: int) -> list[Moment]:
    """What happened to this incarnation of the job. With what led to it, and its cleanup."""
    return list(Teller(history, job, incarnation).tell())


class Teller:
    def __init__(self, history: Sequence[Seen], job: str, incarnation: int) -> None:
        self.job, self.incarnation = job, incarnation
        mine = [each for each in history if self._is_mine(each)]
        first = mine[0].offset if mine else 0
        last = mine[-1].offset if mine else -1
        ended = [each for each in mine if each.event and each.event.to in TERMINAL_JOB and each.entity.kind == "job"]
        around = [each for each in history if each.entity.kind in ("leader", "worker")]
        before = [each for each in around if each.entity.kind == "leader" and each.offset < first][-1:]
        until = ended[-1].offset if ended else max([last, *(each.offset for each in around)])
        during = [each for each in around if first < each.offset <= until]
        self.records = sorted([*before, *during, *mine], key=lambda each: each.offset)
        self.workers = {e.event.state.worker for e in mine if e.event and isinstance(e.event.state, Task)}
        bodies = [e.event.state.body for e in mine if e.event and isinstance(e.event.state, Specification)]
        self.retries = plan(bodies[-1]).env.restart.retries if bodies else 0
        self.leader = ""
        self.resigned = ""
        self.newest: dict[int, int] = {}  # the newest completed checkpoint, by pipeline
        self.committed: list[Committed] = []
        self.not_published: set[int] = set()  # checkpoints of which that was told

    def _is_mine(self, each: Seen) -> bool:
        if each.entity.job != self.job:
            return False
        if each.entity.kind == "command" and not each.incarnation:
            return self.incarnation == 0
        return each.incarnation == self.incarnation

    def tell(self) -> Iterator[Moment]:
        for (_, _, void), part in groupby(self.records, key=lambda each: (each.time, each.epoch, each.is_void)):
            group = list(part)
            if void:
                yield self._moment(group[0], "trouble", self._void(group))
                continue
            kinds: Group = {}
            for each in group:
                name = each.event.transition if each.event else "unreadable" if each.unreadable else "deleted"
                kinds.setdefault((each.entity.kind, name), []).append(each)
            self._note(group)
            told = list(self._group(kinds))
            if told:
                yield from self._flush()
                yield from told
        yield from self._flush()

    def _note(self, group: list[Seen]) -> None:
        """What later sentences need to know."""
        for each in group:
            event = each.event
            if each.entity.kind == "checkpoint" and event and isinstance(event.state, Checkpoint):
                pipeline = int(each.entity.parts[1])
                self.newest[pipeline] = event.state.id
                told = event.state.id in self.not_published
                if event.transition == "committed" and event.state.purpose == "PERIODIC" and not told:
                    self.committed.append(Committed(pipeline, event.state, each))

    def _flush(self) -> Iterator[Moment]:
        """Checkpoints that went well since the last line, as one."""
        gathered, self.committed = self.committed, []
        for pipeline in sorted({each.pipeline for each in gathered}):
            mine = [each for each in gathered if each.pipeline == pipeline]
            ids = [each.checkpoint.id for each in mine]
            longest = max(each.checkpoint.committed_at - each.checkpoint.triggered_at for each in mine)
            rows = sum(piece.rows for each in mine for ack in each.checkpoint.acks for piece in ack.staged)
            word = "Checkpoint" if len(mine) == 1 else "Checkpoints"
            verb = "was" if len(mine) == 1 else "were"
            took = f"{'within' if len(mine) == 1 else 'each within'} {duration(longest)}"
            text = f"{word} {numbers(ids)} of pipeline {pipeline} {verb} committed, {took}: {count(rows, 'row')}"
            yield self._moment(mine[-1].seen, "routine", text)

    def _moment(self, each: Seen, kind: str, text: str) -> Moment:
        return Moment(time=each.time, offset=each.offset, kind=kind, text=sentence(text))

    def _void(self, group: list[Seen]) -> str:
        return (
            f"{count(len(group), 'record')} of epoch {group[0].epoch} came after a newer leader was elected and count"
            f"{'s' if len(group) == 1 else ''} for nobody"
        )

    # Sentences -------------------------------------------------------------------------------------------------------

    def _group(self, kinds: Group) -> Iterator[Moment]:
        """What one decision, or several at the same instant, did: sentences in the order of the log."""
        told: dict[tuple[str, str], Callable[[list[Seen], Group], tuple[str, str] | None]] = {
            ("leader", "elected"): self._elected, ("leader", "resigned"): self._resigned,
            ("worker", "lost"): self._lost, ("worker", "returned"): self._returned,
            ("job", "submitted"): self._submitted, ("job", "restored"): self._submitted,
            ("task", "placed"): self._placed, ("task", "waiting"): self._waiting, ("task", "failed"): self._failed,
            ("task", "repaired"): self._failed, ("task", "stalled"): self._stalled,
            ("task", "recovered"): self._recovered, ("task", "refused"): self._refused,
            ("ready", "marked"): self._marked, ("pending", "aborted"): self._aborted,
            ("pending", "repaired"): self._aborted, ("checkpoint", "retried"): self._not_published,
            ("checkpoint", "abandoned"): self._given_up, ("checkpoint", "dropped"): self._given_up,
            ("checkpoint", "repaired"): self._repaired, ("checkpoint", "committed"): self._published,
            ("savepoint", "kept"): self._kept, ("savepoint", "failed"): self._not_kept,
            ("command", "refused"): self._command_refused, ("cleanup", "stuck"): self._stuck,
            ("cleanup", "deleted"): self._cleaned,
        }  # fmt: skip
        found = []
        for key, seen in kinds.items():
            tell = told.get(key) or (
                self._job if key[0] == "job" else self._unreadable if key[1] == "unreadable" else None
            )
            said = tell(seen, kinds) if tell else None
            if said:
                found.append(self._moment(seen[0], *said))
        yield from sorted(found, key=lambda moment: moment.offset)

    def _elected(self, seen: list[Seen], _: Group) -> tuple[str, str] | None:
        event, before = _event(seen[-1]), self.leader
        assert isinstance(event.state, Leader)
        known, resigned = event.state, self.resigned
        self.leader, self.resigned = known.coordinator, ""
        if not before:
            return "routine", f"coordinator {known.coordinator} led the job's shard (epoch {event.epoch})"
        parts = known.detect_ms + known.fence_ms + known.replay_ms
        how = known.reason or "nobody said why"
        if resigned:
            text = f"coordinator {known.coordinator} took over (epoch {event.epoch}) from {before}, which had resigned"
            return "takeover", text
        after = (
            f", {duration(parts)} after the last sign of life of {before}" if parts and before != self.leader else ""
        )
        split = (
            f"; noticed after {known.detect_ms} ms, fenced in {known.fence_ms} ms, log read in {known.replay_ms} ms"
            if parts
            else ""
        )
        again = " again" if before == known.coordinator else f" from {before}"
        return (
            "takeover",
            f"coordinator {known.coordinator} took over{again} (epoch {event.epoch}){after}: {how}{split}",
        )

    def _resigned(self, seen: list[Seen], _: Group) -> tuple[str, str]:
        known = _event(seen[-1]).state
        assert isinstance(known, Leader)
        self.resigned = known.coordinator
        to = f"; {known.successor} is to follow" if known.successor else ""
        return "takeover", f"coordinator {known.coordinator} gave its shard up: {known.reason}{to}"

    def _lost(self, seen: list[Seen], _: Group) -> tuple[str, str] | None:
        mine = [each for each in seen if str(each.entity.parts[0]) in self.workers]
        if not mine:
            return None
        said = [f"{e.entity.parts[0]} ({_reason(e)})" for e in mine]
        return "trouble", f"worker {listing(said)} was given up by the coordinator"

    def _returned(self, seen: list[Seen], _: Group) -> tuple[str, str] | None:
        mine = [str(each.entity.parts[0]) for each in seen if str(each.entity.parts[0]) in self.workers]
        return ("recovery", f"worker {listing(mine)} was heard again") if mine else None

    def _submitted(self, seen: list[Seen], kinds: Group) -> tuple[str, str]:
        event = _event(seen[-1])
        assert isinstance(event.state, Job)
        outcomes = [e.event.state for e in kinds.get(("command", "accepted"), ()) if e.event]
        by = next((o.by for o in outcomes if isinstance(o, Outcome) and o.by), "") or "somebody"
        created = len(kinds.get(("task", "created"), ()))
        shape = f"incarnation {event.incarnation}, {count(event.state.pipelines, 'pipeline')}, {count(created, 'task')}"
        if event.transition == "restored":
            return "command", f"it was restored by {by} from {event.state.origin} ({shape})"
        return "command", f"it was submitted by {by} ({shape})"

    def _placed(self, seen: list[Seen], _: Group) -> tuple[str, str]:
        again = any(_event(each).attempt > 1 for each in seen)
        by_worker: dict[str, list[tuple[int, int]]] = {}
        for each in seen:
            by_worker.setdefault(_task(each).worker, []).append(_name(each))
        where = listing(f"{tasks(names)} on {worker}" for worker, names in sorted(by_worker.items()))
        verb = "were" if len(seen) > 1 else "was"
        if not again:
            point = self._goes_on(seen)
            return "routine", f"{where} {verb} deployed" + (f", {point}" if point != "from the beginning" else "")
        attempts = listing(f"attempt {number}" for number in sorted({_event(each).attempt for each in seen}))
        going = "they go on" if len(seen) > 1 else "it goes on"
        return "recovery", f"{where} {verb} deployed again as {attempts}; {going} {self._goes_on(seen)}"

    def _goes_on(self, seen: list[Seen]) -> str:
        points = sorted({self.newest.get(_name(each)[0], 0) for each in seen})
        if not any(points):
            return "from the beginning"
        return f"from checkpoint {listing(str(point) for point in points if point)}"

    def _waiting(self, seen: list[Seen], kinds: Group) -> tuple[str, str] | None:
        waits = [each for each in seen if _task(each).reason == WAITS]
        placed = {each.entity for each in kinds.get(("task", "placed"), ())}
        left = [each for each in waits if each.entity not in placed]
        return ("trouble", f"{tasks(map(_name, left))} found no room on any worker and waited") if left else None

    def _failed(self, seen: list[Seen], kinds: Group) -> tuple[str, str]:
        lost = ("worker", "lost") in kinds
        by_reason: dict[str, list[Seen]] = {}
        for each in seen:
            by_reason.setdefault(_reason(each), []).append(each)
        parts = []
        for reason, group in by_reason.items():
            where = listing(sorted({_task(each).worker for each in group} - {""}))
            attempts = listing(str(number) for number in sorted({_event(each).attempt for each in group}))
            why = "went with it" if lost else f"failed: {reason}"
            parts.append(f"{tasks(map(_name, group))} (attempt {attempts} on {where}) {why}")
        retried = [_event(each) for each in kinds.get(("task", "retried"), ())]
        used = max((getattr(_event(e).state, "restarts", 1) for e in kinds.get(("job", "counted"), ())), default=1)
        after = ""
        if retried:
            wait = max(event.due_at for event in retried) - seen[0].time
            which = f"restart {used}" + (f" of the {self.retries} it may have" if self.retries else "")
            after = f"; a new attempt was to start {duration(wait)} later ({which})"
        return "trouble", f"{'; '.join(parts)}{after}"

    def _stalled(self, seen: list[Seen], kinds: Group) -> tuple[str, str] | None:
        given_up = {each.entity for each in kinds.get(("task", "failed"), ())}
        left = [each for each in seen if each.entity not in given_up]
        said = listing(f"{tasks([_name(e)])} on {_task(e).worker} is alive but stalled ({_reason(e)})" for e in left)
        return ("trouble", said) if left else None

    def _recovered(self, seen: list[Seen], _: Group) -> tuple[str, str]:
        return "recovery", f"{tasks(map(_name, seen))} made progress again"

    def _refused(self, seen: list[Seen], _: Group) -> tuple[str, str]:
        by = listing(sorted({_task(each).refused_by[-1] for each in seen if _task(each).refused_by}))
        return "trouble", f"worker {by} did not take {tasks(map(_name, seen))}: {_reason(seen[-1])}"

    def _marked(self, seen: list[Seen], _: Group) -> tuple[str, str]:
        one = len(seen) == 1
        return (
            "routine",
            f"{tasks(map(_name, seen))} had read all of {'its source' if one else 'their sources'} and "
            + ("was ready to close" if one else "were ready to close"),
        )

    def _aborted(self, seen: list[Seen], kinds: Group) -> tuple[str, str] | None:
        if any(("job", name) in kinds for name in ("failing", "cancelling", "quarantined", "repaired")):
            return None  # that is what is told
        state = _event(seen[-1]).state
        assert isinstance(state, Checkpoint)
        return "trouble", f"checkpoint {state.id} of pipeline {seen[-1].entity.parts[1]} was given up: {state.reason}"

    def _not_published(self, seen: list[Seen], _: Group) -> tuple[str, str]:
        state = _event(seen[-1]).state
        assert isinstance(state, Checkpoint)
        self.not_published.add(state.id)
        return "trouble", f"publishing checkpoint {state.id} failed (try {state.tries}): {state.reason}"

    def _given_up(self, seen: list[Seen], _: Group) -> tuple[str, str]:
        state = _event(seen[-1]).state
        assert isinstance(state, Checkpoint)
        return "trouble", f"checkpoint {state.id} was given up for good, nothing of it is published: {state.reason}"

    def _repaired(self, seen: list[Seen], kinds: Group) -> tuple[str, str]:
        number = getattr(_event(seen[-1]).state, "id", "?")
        return "command", f"that checkpoint {number} is published was said by {_by(kinds)} (repair)"

    def _published(self, seen: list[Seen], _: Group) -> tuple[str, str] | None:
        told = []
        for each in seen:
            state = _event(each).state
            assert isinstance(state, Checkpoint)
            if state.purpose == "PERIODIC" and state.id not in self.not_published:
                continue
            rows = sum(piece.rows for ack in state.acks for piece in ack.staged)
            name = (
                f"checkpoint {state.id}"
                if state.purpose == "PERIODIC"
                else f"the {state.purpose.lower()} checkpoint {state.id}"
            )
            tries = f" (asked for {state.tries} times)" if state.tries > 1 else ""
            tries = f" at try {state.tries}" if state.id in self.not_published else tries
            took = duration(state.committed_at - state.triggered_at)
            told.append(
                f"{name} of pipeline {each.entity.parts[1]} was committed{tries}, within {took}: {count(rows, 'row')}"
            )
        return ("routine", "; ".join(told)) if told else None

    def _kept(self, seen: list[Seen], _: Group) -> tuple[str, str]:
        state = _event(seen[-1]).state
        assert isinstance(state, Savepoint)
        points = listing(f"checkpoint {p.checkpoint} of pipeline {p.pipeline}" for p in state.points)
        return "command", f"savepoint {state.name} was kept: {points}"

    def _not_kept(self, seen: list[Seen], _: Group) -> tuple[str, str]:
        return "trouble", f"savepoint {seen[-1].entity.parts[1]} was not kept: {_reason(seen[-1])}"

    def _command_refused(self, seen: list[Seen], _: Group) -> tuple[str, str]:
        said = []
        for each in seen:
            state = _event(each).state
            assert isinstance(state, Outcome)
            said.append(f"the command {state.action} of {state.by or 'somebody'} was refused: {state.reason}")
        return "command", "; ".join(said)

    def _stuck(self, seen: list[Seen], _: Group) -> tuple[str, str]:
        return "trouble", f"what it had staged could not be removed, which is tried again: {_reason(seen[-1])}"

    def _cleaned(self, _seen: list[Seen], _: Group) -> tuple[str, str]:
        return "end", "it was cleaned up: its id is free, and its summary stays listed for a while"

    def _unreadable(self, seen: list[Seen], _: Group) -> tuple[str, str]:
        return "trouble", f"{seen[0].entity.text} can't be read at offset {seen[0].offset}: {seen[0].unreadable}"

    def _job(self, seen: list[Seen], kinds: Group) -> tuple[str, str] | None:
        """What happens to the job itself."""
        event = _event(seen[-1]) if seen[-1].event else None
        if event is None or not isinstance(event.state, Job):
            return None
        name, reason = event.transition, event.state.reason
        if name == "running":
            again = event.time != event.state.started_at
            return (
                "recovery" if again else "routine"
            ), f"all its tasks ran{' again' if again else ''}; the job was RUNNING"
        if name in ("cancelling", "savepointing", "draining", "pausing", "resumed", "repaired"):
            verbs = {"cancelling": "was cancelled by {}", "savepointing": "was told by {} to end with a savepoint",
                     "draining": "was told by {} to stop after what it had read", "pausing": "was paused by {}",
                     "resumed": "was let go on by {}", "repaired": "was ended by {} with a repair"}  # fmt: skip
            by = _by(kinds)
            told = reason and name not in ("savepointing", "draining") and not reason.endswith(f"by {by}")
            return "command", f"it {verbs[name].format(by)}" + (f": {reason}" if told else "")
        if name == "quarantined":
            return "trouble", f"the job was quarantined, all others went on: {reason.removeprefix('quarantined: ')}"
        if name == "failing":
            return "trouble", f"the job could not go on: {reason}"
        if name == "paused":
            return "end", "the job was PAUSED; its place is kept"
        if event.to in TERMINAL_JOB:
            return "end", f"the job {'was ' if event.to in ('CANCELED', 'SAVEPOINTED') else ''}{event.to}"
        return None


def _event(each: Seen) -> Event:
    assert each.event is not None
    return each.event


def _task(each: Seen) -> Task:
    state = _event(each).state
    assert isinstance(state, Task)
    return state


def _name(each: Seen) -> tuple[int, int]:
    return int(each.entity.parts[1]), int(each.entity.parts[2])


def _reason(each: Seen) -> str:
    state = _event(each).state
    reason = str(getattr(state, "reason", "") or "no reason was given")
    return told(reason, each.time)


def _by(kinds: Group) -> str:
    for each in kinds.get(("command", "accepted"), ()):
        state = _event(each).state
        if isinstance(state, Outcome) and state.by:
            return state.by
    return "somebody"
