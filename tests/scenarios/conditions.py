"""What a script can wait for: conditions on what is known, running or published, and moments within a step."""

from __future__ import annotations

from coordinator.health import JobHealth, overview
from events.records import Checkpoint, Event, Order
from tests.scenarios.phrases import Phrases
from tests.scenarios.stage import Stage
from workers.happenings import Publish

CONDITIONS = Phrases("condition")
MOMENTS = Phrases("moment")
TASK = r"(\w+)/(\d+)/(\d+)"
ENTITY = r"([a-z]+/\S+)"


def health_of(stage: Stage, job: str) -> JobHealth | None:
    return next((one for one in overview(stage.checker.reading.state, stage.now).running if one.job == job), None)


@CONDITIONS.means(rf"{ENTITY} is ([A-Z_]+)")
def is_in_state(stage: Stage, entity: str, state: str) -> bool:
    event = stage.checker.known.get(entity)
    return event is not None and event.to == state


@CONDITIONS.means(rf"{ENTITY} is not there")
def is_not_there(stage: Stage, entity: str) -> bool:
    return entity not in stage.checker.known


@CONDITIONS.means(rf"attempt (\d+) of {TASK} is ([A-Z_]+)")
def attempt_is(stage: Stage, attempt: str, job: str, pipeline: str, task: str, state: str) -> bool:
    event = stage.checker.known.get(f"task/{job}/{pipeline}/{task}")
    return event is not None and event.to == state and event.attempt >= int(attempt)


@CONDITIONS.means(rf"(w\d) runs {TASK}")
def runs(stage: Stage, worker: str, job: str, pipeline: str, task: str) -> bool:
    return worker in [one.name for one, _ in stage.running(job, int(pipeline), int(task))]


@CONDITIONS.means(rf"nobody runs {TASK}")
def nobody_runs(stage: Stage, job: str, pipeline: str, task: str) -> bool:
    return not stage.running(job, int(pipeline), int(task))


@CONDITIONS.means(rf"{TASK} has read (\d+) rows")
def has_read(stage: Stage, job: str, pipeline: str, task: str, rows: str) -> bool:
    return any(loop.position >= int(rows) for _, loop in stage.running(job, int(pipeline), int(task)))


@CONDITIONS.means(r"(\d+) rows of (\w+) are published")
def rows_are_published(stage: Stage, rows: str, job: str) -> bool:
    return sum(len(of) for (name, _), of in stage.data.published.items() if name == job) >= int(rows)


def checkpoint_is(stage: Stage, entity: str, number: str, state: str) -> bool:
    event = stage.checker.known.get(entity)
    known = event.state if event is not None and event.to == state else None
    return isinstance(known, Checkpoint) and known.id >= int(number)


@CONDITIONS.means(r"checkpoint (\d+) of (\w+/\d+) is (COMPLETED|COMMITTED|ABANDONED)")
def is_completed(stage: Stage, number: str, pipeline: str, state: str) -> bool:
    return checkpoint_is(stage, f"checkpoint/{pipeline}", number, state)


@CONDITIONS.means(r"checkpoint (\d+) of (\w+/\d+) is pending")
def is_pending(stage: Stage, number: str, pipeline: str) -> bool:
    return checkpoint_is(stage, f"pending/{pipeline}", number, "TRIGGERED")


@CONDITIONS.means(r"(\w+/\d+) has (\d+) of (\d+) marks")
def has_marks(stage: Stage, pipeline: str, marks: str, tasks: str) -> bool:
    known = stage.checker.known
    found = [sum(key.startswith(f"{kind}/{pipeline}/") for key in known) for kind in ("ready", "task")]
    return found == [int(marks), int(tasks)]


@CONDITIONS.means(r"(\w+/\d+) has (\d+) of (\d+) acknowledgements")
def has_acks(stage: Stage, pipeline: str, acks: str, tasks: str) -> bool:
    known = stage.checker.known
    found = [sum(key.startswith(f"{kind}/{pipeline}/") for key in known) for kind in ("ack", "task")]
    return found == [int(acks), int(tasks)]


@CONDITIONS.means(r"(c\d) leads")
def leads(stage: Stage, coordinator: str) -> bool:
    return stage.leader is not None and stage.leader.name == coordinator


@CONDITIONS.means(r"command (\S+) is (ACCEPTED|REFUSED)")
def command_is(stage: Stage, command: str, outcome: str) -> bool:
    return command in stage.checker.outcomes and stage.checker.outcomes[command].to == outcome


@CONDITIONS.means(r"(\w+) is (healthy|unhealthy)")
def is_healthy(stage: Stage, job: str, how: str) -> bool:
    found = health_of(stage, job)
    return found is not None and bool(found.unhealthy) == (how == "unhealthy")


@CONDITIONS.means(r"the overview lists (\w+) as (running|ended|history)(?: only)?")
def is_listed(stage: Stage, job: str, how: str) -> bool:
    """An ended job is history from its end on; as running it is nothing else."""
    seen = overview(stage.checker.reading.state, stage.now)
    lists = {"running": seen.running, "ended": seen.ended, "history": seen.history}
    found = {name for name, jobs in lists.items() if any(one.job == job for one in jobs)}  # type: ignore[attr-defined]
    return found == {"running": {"running"}, "ended": {"ended", "history"}, "history": {"history"}}[how]


@CONDITIONS.means(r"the overview shows try (\d+) of a (commit|cleanup) after “(.+)”")
def is_retried(stage: Stage, tries: str, what: str, error: str) -> bool:
    seen = overview(stage.checker.reading.state, stage.now).retrying
    return any((one.what, one.tries, one.error) == (what, int(tries), error) for one in seen)


@MOMENTS.means(rf"the leader writes {ENTITY} (\w+)")
def writes(stage: Stage, entity: str, transition: str) -> bool:
    assert stage.moment is not None
    what = stage.moment[2]
    return isinstance(what, Event) and (what.entity, what.transition) == (entity, transition)


@MOMENTS.means(rf"the leader orders (\w+) of {TASK}")
def orders(stage: Stage, action: str, job: str, pipeline: str, task: str) -> bool:
    assert stage.moment is not None
    what = stage.moment[2]
    if not isinstance(what, Order) or type(what.action).__name__ != action:
        return False
    return (what.job, what.pipeline, what.task) == (job, int(pipeline), int(task))


@MOMENTS.means(r"(w\d) has published checkpoint (\d+) of (\w+)/(\d+)")
def has_published(stage: Stage, worker: str, number: str, job: str, pipeline: str) -> bool:
    assert stage.moment is not None
    process, where, what = stage.moment
    if where != "published" or process.name != worker or not isinstance(what, Publish):
        return False
    return (what.job, what.pipeline, what.checkpoint) == (job, int(pipeline), int(number))
