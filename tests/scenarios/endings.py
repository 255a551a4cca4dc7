"""How a story must end, and what must have been seen: each line of a story is checked by one function here, which says
what is wrong, or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase

from coordinator.state import entity_of
from events.records import Checkpoint, Deploy, Event, Task
from tests.scenarios.conditions import ENTITY, TASK
from tests.scenarios.phrases import Phrases
from tests.scenarios.stage import Stage
from tests.simulation.broker import COMMITTED
from tests.simulation.data import sizes

ENDINGS = Phrases("expectation")
TIMES = r"(?:once|(\d+) times|(at least once))"


def transitions(stage: Stage, pattern: str, transition: str) -> list[Event]:
    assert stage.trace is not None
    return [e for e in stage.trace.told_events() if fnmatchcase(e.entity, pattern) and e.transition == transition]


@ENDINGS.means(r"(\w+) ends ([A-Z]+(?:, then [A-Z]+)*)")
def ends(stage: Stage, job: str, wanted: str) -> str:
    found = [state for (name, _), state in sorted(stage.checker.ended.items()) if name == job]
    return "" if found == wanted.split(", then ") else f"it ended {found}"


def rows_of(stage: Stage, job: str) -> tuple[Counter[tuple[int, int, int]], dict[tuple[int, int], int]]:
    """All rows published under the id, and how many each task has to read."""
    rows: Counter[tuple[int, int, int]] = Counter()
    for (name, _), published in stage.data.published.items():
        for (_, _, pipeline, task, number), times in published.items() if name == job else ():
            rows[pipeline, task, number] += times
    body = next(body for (name, _), body in sorted(stage.checker.specifications.items()) if name == job)
    return rows, sizes(body)


@ENDINGS.means(r"every row of (\w+) is published once")
def every_row_once(stage: Stage, job: str) -> str:
    rows, wanted = rows_of(stage, job)
    expected = Counter((pipeline, task, n) for (pipeline, task), total in wanted.items() for n in range(total))
    return "" if rows == expected else f"missing {list(expected - rows)[:5]}, too many {list(rows - expected)[:5]}"


@ENDINGS.means(r"the rows of (\w+) are published once, without a gap")
def rows_without_a_gap(stage: Stage, job: str) -> str:
    rows, wanted = rows_of(stage, job)
    for pipeline, task in wanted:
        numbers = sorted(n for p, t, n in rows.elements() if (p, t) == (pipeline, task))
        if numbers != list(range(len(numbers))):
            return f"task {pipeline}/{task} has {numbers[:50]}"
    return "" if rows else "nothing is published"


@ENDINGS.means(r"nothing of (\w+) is published")
def nothing_published(stage: Stage, job: str) -> str:
    rows, _ = rows_of(stage, job)
    return f"{len(rows)} rows are" if rows else ""


@ENDINGS.means(rf"{TASK} needs (\d+) attempts?")
def needs_attempts(stage: Stage, job: str, pipeline: str, task: str, attempts: str) -> str:
    started = [who for who in stage.starts if (who.job, who.pipeline, who.task) == (job, int(pipeline), int(task))]
    return "" if len(started) == int(attempts) else f"started were {started}"


@ENDINGS.means(r"no attempt is started twice")
def started_once(stage: Stage) -> str:
    twice = [who for who, times in stage.starts.items() if times > 1]
    return f"{twice} were" if twice else ""


@ENDINGS.means(r"command (\S+) is (ACCEPTED|REFUSED)(?: because .*“(.+)”.*)?")
def command_is(stage: Stage, command: str, wanted: str, words: str | None) -> str:
    outcome = stage.checker.outcomes[command]
    reason = getattr(outcome.state, "reason", "")
    return "" if outcome.to == wanted and (words or "") in reason else f"it is {outcome.to}: {reason}"


@ENDINGS.means(rf"{ENTITY} is never (\w+)")
def never(stage: Stage, pattern: str, transition: str) -> str:
    found = transitions(stage, pattern, transition)
    return f"it was, at {found[0].time}: {found[0].cause}" if found else ""


@ENDINGS.means(rf"{ENTITY} is (\w+) {TIMES}")
def so_often(stage: Stage, pattern: str, transition: str, times: str | None, some: str | None) -> str:
    found = len(transitions(stage, pattern, transition))
    good = found >= 1 if some else found == int(times or 1)
    return "" if good else f"it was {found} times"


@ENDINGS.means(rf"{ENTITY} is (\w+) saying “(.+)”")
def saying(stage: Stage, entity: str, transition: str, words: str) -> str:
    said = [getattr(event.state, "reason", "") for event in transitions(stage, entity, transition)]
    return "" if said and all(words in reason for reason in said) else f"it says {said}"


@ENDINGS.means(r"(\w+) ends because .*“(.+)”.*")
def ends_because(stage: Stage, job: str, words: str) -> str:
    assert stage.trace is not None
    reasons = [getattr(e.state, "reason", "") for e in stage.trace.told_events() if e.entity == f"job/{job}"]
    return "" if words in reasons[-1] else f"the reason is {reasons[-1]!r}"


@ENDINGS.means(r"it is (never )?noted “(.+)”")
def noted(stage: Stage, never: str | None, words: str) -> str:
    found = [note for note in stage.notes if words in note]
    return "" if bool(found) != bool(never) else f"noted were {found or stage.notes}"


@ENDINGS.means(r"nothing is left of (\w+) but its summary")
def only_the_summary(stage: Stage, job: str) -> str:
    """In what a follower knows; that a replay of the log gives the same is seen to at every end."""
    state = stage.checker.replay().state
    left = state.jobs.get(job)
    if left is not None and (left.event or left.pipelines or left.cleanups):
        return f"left is {left}"
    return "" if job in state.summaries else "not even its summary is left"


@ENDINGS.means(r"the compacted log has no key of (\w+) but its summary")
def no_key(stage: Stage, job: str) -> str:
    """Whatever the cleaner has left on the topic, tombstones included."""
    stage.broker.partition("events").compact(stage.now, -1, 0)
    keys = {r.key for r in stage.broker.partition("events").stored if r.status == COMMITTED and r.key}
    of_job = {key for key in keys if entity_of(key).job == job}
    return "" if of_job and all(key.startswith("summary/") for key in of_job) else f"it has {of_job}"


@ENDINGS.means(r"the leader changes (\d+) times?")
def leader_changes(stage: Stage, times: str) -> str:
    found = len(transitions(stage, "leader/0", "elected")) - 1
    return "" if found == int(times) else f"it changed {found} times"


@ENDINGS.means(r"no number of a checkpoint of (\w+/\d+) is used twice")
def numbers_only_grow(stage: Stage, pipeline: str) -> str:
    triggered = transitions(stage, f"pending/{pipeline}", "triggered")
    numbers = [(e.incarnation, e.state.id) for e in triggered if isinstance(e.state, Checkpoint)]
    return "" if numbers and numbers == sorted(set(numbers)) else f"triggered were {numbers}"


@ENDINGS.means(r"no event comes from a sweep")
def no_sweep(stage: Stage) -> str:
    assert stage.trace is not None
    found = [e.entity for e in stage.trace.told_events() if e.cause.note == "sweep"]
    return f"these do: {found}" if found else ""


@ENDINGS.means(r"a sweep writes (\S+) (\w+)")
def sweep_writes(stage: Stage, entity: str, transition: str) -> str:
    found = [e.cause for e in transitions(stage, entity, transition)]
    return "" if any(cause.note == "sweep" for cause in found) else f"what wrote it: {found}"


@ENDINGS.means(r"deciding again gives the same")
def decides_the_same(stage: Stage) -> str:
    return f"it differs in {stage.differences[:5]}" if stage.differences else ""


@ENDINGS.means(r"deciding again differs: (.+)")
def decides_otherwise(stage: Stage, difference: str) -> str:
    found = list(map(str, stage.differences))
    return "" if found == [difference] else f"the differences: {found}"


@ENDINGS.means(r"every deploy says job, pipeline, task, attempt, worker and epoch")
def deploys_say_all(stage: Stage) -> str:
    assert stage.trace is not None
    orders = [o for o in stage.trace.told_orders() if isinstance(o.action, Deploy)]
    placed = transitions(stage, "task/*", "placed") + transitions(stage, "task/*", "repeated")
    if len(orders) != len(placed) or not orders:
        return f"{len(orders)} orders, {len(placed)} events"
    said = Counter((o.job, o.pipeline, o.task, o.attempt, o.worker, o.epoch) for o in orders)
    logged: Counter[tuple[str, int, int, int, str, int]] = Counter()
    for event in placed:
        job, pipeline, task = entity_of(event.entity).parts
        assert isinstance(event.state, Task)
        logged[str(job), int(pipeline), int(task), event.attempt, event.state.worker, event.epoch] += 1
    return "" if said == logged else f"orders {said - logged}, events {logged - said}"


@ENDINGS.means(r"every transition of (\w+) says from, to, cause, time, offset, epoch and attempt")
def transitions_say_all(stage: Stage, job: str) -> str:
    return "; ".join(_silent(stage, job))


def _silent(stage: Stage, job: str) -> Iterator[str]:
    """From the log alone: each transition leaves what the one before reached, and its cause can be looked up."""
    was: dict[str, str] = {}
    epoch = 0
    inputs = {topic: stage.broker.partition(topic).stored for topic in ("commands", "reports")}
    for offset, key, event in stage.broker.partition("events").read(0)[0]:
        if entity_of(key).job != job:
            continue
        if not isinstance(event, Event):
            was.pop(key, None)
            continue
        cause = event.cause
        known = cause.offset < len(inputs[cause.topic]) if cause.kind == "INPUT" else bool(cause.note)
        good = event.from_ == was.get(key, "") and event.to and event.transition and event.time and known
        if not good or event.epoch < max(epoch, 1) or (key.startswith("task/") and event.attempt < 1):
            yield f"{key} at {offset} says {event}"
        was[key], epoch = event.to, event.epoch
