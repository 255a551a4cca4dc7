"""What a script can do: ask for something, or let something go wrong."""

from __future__ import annotations

import json
import re
from typing import Any

from coordinator.state import LOGIC
from events import records
from events.records import (
    Cancel,
    Command,
    CommandAction,
    CommitCheckpoint,
    Order,
    Pause,
    Repair,
    Report,
    Restore,
    Resume,
    Stop,
    Submit,
    TakeSavepoint,
    TaskPosition,
)
from tests.scenarios.conditions import ENTITY, TASK
from tests.scenarios.phrases import Phrases
from tests.scenarios.stage import Fate, Stage
from tests.scenarios.story import NobodyThere, StoryError
from tests.scenarios.trace import Withdrawn
from tests.simulation.broker import COMMITTED, NoAnswer, Rotten
from tests.simulation.workers import Worker
from tests.simulation.world import Died, Process
from workers import happenings as h

ACTIONS = Phrases("action")
AS = r"(?: as (\S+))?"
WORKERS = r"there (?:is|are) (\d) workers?(?: with (\d) slots?)?"
OPTIONS = {
    r"checkpoint every (\d+) ms": ("checkpoint", "interval_ms"),
    r"checkpoint timeout (\d+) ms": ("checkpoint", "timeout_ms"),
    r"(\d+) failed checkpoints? tolerated": ("checkpoint", "tolerated_failures"),
    r"(\d+) retries": ("restart", "retries"),
    r"restart after (\d+) ms": ("restart", "backoff_ms"),
    r"(\d+) commit retries": ("commit", "retries"),
    r"deploy timeout (\d+) ms": ("deploy_timeout_ms",),
    r"cleanup after (\d+) ms": ("cleanup_delay_ms",),
    r"history (\d+) ms": ("history_ms",),
}


def environment() -> dict[str, Any]:
    return {
        "checkpoint": {"interval_ms": 60_000, "timeout_ms": 1000, "tolerated_failures": 10},
        "restart": {"retries": 3, "backoff_ms": 100, "max_backoff_ms": 400},
        "commit": {"retries": 20, "backoff_ms": 100, "max_backoff_ms": 400},
        "deploy_timeout_ms": 500,
        "cleanup_delay_ms": 100,
        "history_ms": 60_000,
    }


def specification(text: str) -> str:
    """`2 tasks of 40 rows, checkpoint every 200 ms`; `sources of 10 and 60 rows`; `pipelines of 10 and 60 rows`."""
    said = re.fullmatch(r"(.+? (?:rows|without end))(?:, (.+))?", text)
    sources, alone = _sources(said[1] if said else text)
    env = environment()
    for option in (said[2] or "").split(", ") if said and said[2] else ():
        _set_option(env, option)
    groups = [[source["name"]] for source in sources] if alone else [[source["name"] for source in sources]]
    sink = [{"name": f"out{i}", "kind": "model", "from": group} for i, group in enumerate(groups)]
    return json.dumps({"env": env, "source": sources, "sink": sink})


def _sources(text: str) -> tuple[list[dict[str, Any]], bool]:
    tasks = re.fullmatch(r"(\d+) tasks? (?:of (\d+) rows|(without end))", text)
    several = re.fullmatch(r"(sources|pipelines) of (.+) rows", text)
    if tasks:
        return [_source(0, int(tasks[1]), tasks[2] or "endless")], False
    if several:
        sizes = re.split(r", | and ", several[2])
        return [_source(i, 1, size) for i, size in enumerate(sizes)], several[1] == "pipelines"
    raise StoryError(
        f"a job is `2 tasks of 40 rows`, `1 task without end` or `sources of 10 and endless rows`, not {text}"
    )


def _source(number: int, parallelism: int, rows: str) -> dict[str, Any]:
    size = -1 if rows == "endless" else int(rows)
    return {"name": f"in{number}", "kind": "model", "parallelism": parallelism, "options": {"rows": size}}


def _set_option(env: dict[str, Any], option: str) -> None:
    if option == "stalled tasks go on":
        env["restart_stalled"] = False
        return
    for pattern, (*groups, name) in OPTIONS.items():
        if match := re.fullmatch(pattern, option):
            (env[groups[0]] if groups else env)[name] = int(match[1])
            return
    raise StoryError(f"no option is written {option!r}; those known: {', '.join(OPTIONS)}")


def ask(stage: Stage, job: str, action: CommandAction, name: str | None, by: str = "ops") -> None:
    verb = name or f"{type(action).__name__.lower()}-{job}"
    stage.send(Command(id=verb, job=job, by=by, time=stage.now, action=action))


# What services ask for ------------------------------------------------------------------------------------------------


@ACTIONS.means(rf"submit (\w+){AS} with (.+)")
def submit(stage: Stage, job: str, name: str | None, text: str) -> None:
    ask(stage, job, Submit(specification=specification(text)), name)


@ACTIONS.means(rf"cancel (\w+){AS}")
def cancel(stage: Stage, job: str, name: str | None) -> None:
    ask(stage, job, Cancel(), name)


@ACTIONS.means(rf"drain (\w+){AS}")
def drain(stage: Stage, job: str, name: str | None) -> None:
    ask(stage, job, Stop(), name)


@ACTIONS.means(rf"pause (\w+){AS}")
def pause(stage: Stage, job: str, name: str | None) -> None:
    ask(stage, job, Pause(), name)


@ACTIONS.means(rf"resume (\w+){AS}")
def resume(stage: Stage, job: str, name: str | None) -> None:
    ask(stage, job, Resume(), name)


@ACTIONS.means(rf"(take|stop with) savepoint (\w+) of (\w+){AS}")
def take_savepoint(stage: Stage, how: str, savepoint: str, job: str, name: str | None) -> None:
    ask(stage, job, TakeSavepoint(name=savepoint, stop=how == "stop with"), name)


@ACTIONS.means(rf"restore (\w+)(?: from savepoint (\w+))?(?: with (\d+)/(\d+) at (\d+))?{AS}")
def restore(
    stage: Stage,
    job: str,
    savepoint: str | None,
    pipeline: str | None,
    task: str | None,
    at: str | None,
    name: str | None,
) -> None:
    other = (
        () if at is None else (TaskPosition(pipeline=int(pipeline or 0), task=int(task or 0), position=at.encode()),)
    )
    ask(stage, job, Restore(savepoint=savepoint or "", elsewhere=other), name)


@ACTIONS.means(rf"(\w+) repairs {ENTITY} to ([A-Z]+) because (.+?){AS}")
def repair(stage: Stage, by: str, entity: str, to: str, reason: str, name: str | None) -> None:
    ask(stage, entity.split("/")[1], Repair(entity=entity, to=to, reason=reason), name, by)


@ACTIONS.means(r"send (\S+) again")
def send_again(stage: Stage, command: str) -> None:
    known = stage.commands[command]
    stage.deliver("commands", known.job, known)


# What becomes of processes --------------------------------------------------------------------------------------------


def process_of(stage: Stage, name: str) -> Process:
    found = stage.leader if name == "the leader" else next((p for p in stage.processes if p.name == name), None)
    if found is None or not found.alive:
        raise NobodyThere(f"{name} is not there")
    return found


def worker_of(stage: Stage, name: str) -> Worker:
    found = process_of(stage, name)
    if not isinstance(found, Worker):
        raise StoryError(f"{name} is no worker")
    return found


@ACTIONS.means(r"kill (the leader|[cw]\d)(?: for (\d+) ms)?")
def kill(stage: Stage, name: str, ms: str | None) -> None:
    process = process_of(stage, name)
    stage.back_ms = int(ms or 0)
    if stage.moment is not None and stage.moment[0] is process:
        raise Died
    stage.kill(process)


@ACTIONS.means(r"kill (w\d) and lose its disk")
def kill_and_lose_disk(stage: Stage, name: str) -> None:
    worker = worker_of(stage, name)
    stage.kill(worker)
    stage.count("disk lost")
    worker.lose_disk()


@ACTIONS.means(r"freeze (the leader|[cw]\d) for (\d+) ms")
def freeze(stage: Stage, name: str, ms: str) -> None:
    process_of(stage, name).asleep_until = stage.now + int(ms)


@ACTIONS.means(r"cut off (w\d) for (\d+) ms")
def cut_off(stage: Stage, name: str, ms: str) -> None:
    stage.cut_until[worker_of(stage, name).name] = stage.now + int(ms)


@ACTIONS.means(r"set the clock of (the leader|[cw]\d) (\d+) ms (ahead|back)")
def skew(stage: Stage, name: str, ms: str, where: str) -> None:
    process_of(stage, name).skew = int(ms) if where == "ahead" else -int(ms)


@ACTIONS.means(r"let c0 and c1 run older logic")
def downgrade(stage: Stage) -> None:
    for process in stage.coordinators:
        process.logic = LOGIC - 1
        process.begin()
    stage.beaten = 0


@ACTIONS.means(r"upgrade (c\d)")
def upgrade(stage: Stage, name: str) -> None:
    process = next(process for process in stage.coordinators if process.name == name)
    process.logic = LOGIC
    if process.alive:
        stage.kill(process)


@ACTIONS.means(r"let the leader forget to (trigger|complete|commit) once")
def forget(stage: Stage, what: str) -> None:
    stage.forgets = what


# What becomes of messages ---------------------------------------------------------------------------------------------


def about(kind: str, job: str, pipeline: str, task: str) -> Any:
    """Reports and orders of a kind, by the name of what they say."""
    wanted = (job, int(pipeline), int(task))

    def matches(message: Any) -> bool:
        if not isinstance(message, Report | Order):
            return False
        said = message.happening if isinstance(message, Report) else message.action
        return type(said).__name__ == kind and (message.job, message.pipeline, message.task) == wanted

    return matches


ANY_TASK = r"(\w+)/(-?\d+)/(-?\d+)"


@ACTIONS.means(rf"lose the next (?:(\d+) )?(\w+?) of {ANY_TASK}")
def lose(stage: Stage, times: str | None, kind: str, job: str, pipeline: str, task: str) -> None:
    stage.fates.append(Fate(about(kind, job, pipeline, task), "lost", times=int(times or 1)))


@ACTIONS.means(rf"let the next (\w+) of {ANY_TASK} come (\d+) ms late")
def delay(stage: Stage, kind: str, job: str, pipeline: str, task: str, ms: str) -> None:
    stage.fates.append(Fate(about(kind, job, pipeline, task), "late", int(ms)))


@ACTIONS.means(rf"let the next (\w+) of {ANY_TASK} come again (\d+) ms later")
def double(stage: Stage, kind: str, job: str, pipeline: str, task: str, ms: str) -> None:
    stage.fates.append(Fate(about(kind, job, pipeline, task), "again", int(ms)))


@ACTIONS.means(rf"let the next (Deploy|StopTask|TriggerCheckpoint) of {ANY_TASK} come (\d+) times")
def repeat(stage: Stage, kind: str, job: str, pipeline: str, task: str, times: str) -> None:
    stage.fates.append(Fate(about(kind, job, pipeline, task), "again", int(times)))


@ACTIONS.means(rf"hand the Deploy of {TASK}(?: attempt (\d+))? over again")
def hand_over_again(stage: Stage, job: str, pipeline: str, task: str, attempt: str | None) -> None:
    assert stage.trace is not None
    wanted = about("Deploy", job, pipeline, task)
    found = [o for o in stage.trace.told_orders() if wanted(o) and o.attempt == int(attempt or o.attempt)]
    if not found:
        raise NobodyThere(f"no Deploy of {job}/{pipeline}/{task} was ordered")
    entries = [entry.what for entry in stage.trace.entries]
    if Withdrawn(found[-1].worker, job, int(pipeline), int(task)) in entries[entries.index(found[-1]) :]:
        raise NobodyThere("the order is withdrawn since; workers never read orders from before that again")
    stage.say("**", f"{found[-1].worker} is handed the Deploy of attempt {found[-1].attempt} again")
    worker_of(stage, found[-1].worker).give(found[-1])


@ACTIONS.means(rf"let (w\d) report (\w+) of {TASK} attempt (\d+) of incarnation (\d+)")
def report(stage: Stage, worker: str, kind: str, job: str, pipeline: str, task: str, attempt: str, life: str) -> None:
    made = getattr(records, kind)
    happening = made(reason="made up") if "reason" in made.__struct_fields__ else made()
    said = Report(
        incarnation=int(life),
        job=job,
        pipeline=int(pipeline),
        task=int(task),
        attempt=int(attempt),
        worker=worker,
        time=stage.now,
        happening=happening,
    )
    stage.deliver("reports", job, said)


@ACTIONS.means(r"put garbage on (commands|reports)")
def garbage(stage: Stage, topic: str) -> None:
    stage.broker.append(topic, "a", Rotten(None))


# What becomes of tasks, sinks and sources -----------------------------------------------------------------------------


@ACTIONS.means(rf"fail {TASK} because (.+)")
def fail(stage: Stage, job: str, pipeline: str, task: str, reason: str) -> None:
    found = stage.running(job, int(pipeline), int(task))
    if not found:
        raise NobodyThere(f"nobody runs {job}/{pipeline}/{task}")
    worker, loop = found[-1]
    del worker.loops[loop.who]
    worker.give(h.Crashed(loop.who, reason))


@ACTIONS.means(rf"let {TASK} (hang|write on when it is stopped) for (\d+) ms")
def hang(stage: Stage, job: str, pipeline: str, task: str, how: str, ms: str) -> None:
    found = stage.running(job, int(pipeline), int(task))
    if not found:
        raise NobodyThere(f"nobody runs {job}/{pipeline}/{task}")
    (stage.stuck if how == "hang" else stage.deaf)[found[-1][1].who] = stage.now + int(ms)


@ACTIONS.means(r"let the sink refuse (\d+) times")
def refuse(stage: Stage, times: str) -> None:
    stage.wills["sink refuses"] += int(times)


@ACTIONS.means(r"let the sink refuse (?:(w\d) )?for good")
def refuse_for_good(stage: Stage, worker: str | None) -> None:
    stage.refuses |= {one.name for one in stage.workers if one.name == (worker or one.name)}


@ACTIONS.means(r"let the sink accept again")
def accept_again(stage: Stage) -> None:
    stage.refuses.clear()


@ACTIONS.means(r"let publishing(?: by (w\d))? take (\d+) ms")
def publish_slowly(stage: Stage, worker: str | None, ms: str) -> None:
    stage.publish_ms |= {one.name: int(ms) for one in stage.workers if one.name == (worker or one.name)}


@ACTIONS.means(r"let staging not be removable (\d+) times?")
def keep_staging(stage: Stage, times: str) -> None:
    stage.wills["staging stuck"] += int(times)


@ACTIONS.means(rf"let the source of {TASK} drop the rows before (\d+)")
def drop_rows(stage: Stage, job: str, pipeline: str, task: str, oldest: str) -> None:
    stage.dropped[job, int(pipeline), int(task)] = int(oldest)


# What becomes of the log ----------------------------------------------------------------------------------------------


@ACTIONS.means(rf"let {ENTITY} rot")
def rot(stage: Stage, entity: str) -> None:
    stored = [r for r in stage.broker.partition("events").stored if r.status == COMMITTED and r.key == entity]
    if not stored or not isinstance(stored[-1].value, records.Event):
        raise NobodyThere(f"there is no record of {entity} that could rot")
    if entity.startswith("command/"):
        stage.checker.outcomes.pop(entity.split("/")[2])  # who asks for it can't read it either
    stored[-1].value = Rotten(stored[-1].value)


@ACTIONS.means(r"compact the log(, tombstones too)?")
def compact(stage: Stage, tombstones: str | None) -> None:
    retention = -1 if tombstones else 10**9
    dropped = stage.broker.partition("events").compact(stage.now, retention, 1)
    stage.say("**", f"{dropped} records are compacted away")


@ACTIONS.means(r"let the records of fenced leaders appear")
def leak(stage: Stage) -> None:
    stage.leaky = True


@ACTIONS.means(r"let the next commit get no answer: it (takes no effect|takes effect|takes effect late)")
def commit_unanswered(stage: Stage, fate: str) -> None:
    stage.next_commit = fate


@ACTIONS.means(r"let its transaction get no answer")
def transaction_unanswered(stage: Stage) -> None:
    raise NoAnswer


@ACTIONS.means(WORKERS)
def there_are(stage: Stage, workers: str, slots: str | None) -> None:
    """The stage was set so before the story began."""


@ACTIONS.means(r"let somebody publish checkpoint (\d+) of (\w+)/(\d+) by hand")
def publish_by_hand(stage: Stage, number: str, job: str, pipeline: str) -> None:
    assert stage.trace is not None
    orders = [o for o in stage.trace.told_orders() if (o.job, o.pipeline) == (job, int(pipeline))]
    found = [o for o in orders if isinstance(o.action, CommitCheckpoint) and o.action.checkpoint >= int(number)]
    if not found:
        raise NobodyThere(f"nobody was told to publish checkpoint {number} of {job}/{pipeline}")
    order, action = found[-1], found[-1].action
    assert isinstance(action, CommitCheckpoint)
    who = (order.job, order.incarnation, order.pipeline, action.checkpoint)
    stage.data.publish(h.Publish(*who, action.specification, action.staged))


@ACTIONS.means(r"nothing")
def nothing(stage: Stage) -> None:
    """A moment that the story only has to pass."""
