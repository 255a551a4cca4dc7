"""Planted faults: each is a bug that an engine of this kind has had, or could have. The simulation must see each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from coordinator import checkpoint, commands, core, deploy, draft, ending, reports, restore, savepoint, settle, state
from coordinator.draft import Draft
from coordinator.lifecycle import TERMINAL_JOB
from events import records
from events.keys import Entity, named
from tests.simulation import coordinators, data, workers
from workers import attempts
from workers import core as worker_core
from workers import happenings as h

Plant = Callable[[ExitStack], None]
MUTANTS: dict[str, Plant] = {}


def mutant(what: str) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        MUTANTS[what] = plant
        return plant

    return register


def put(stack: ExitStack, where: Any, name: str, new: Any) -> Any:
    """Replace something for as long as the stack lasts; returns what it was."""
    old = getattr(where, name)
    stack.enter_context(patch.object(where, name, new))
    return old


@mutant("R: ready marks are kept only in memory")
def _(stack: ExitStack) -> None:
    def silently(draft: Draft, key: Any, task: records.Event, said: Any) -> None:
        before = len(draft.events)
        old(draft, key, task, said)
        if len(draft.events) > before:
            for event in draft.events[before:]:
                assert isinstance(event, records.Event)
                state.fold(draft.state, state.entity_of(event.entity), event)
            draft._undo[-2:] = []
            del draft.events[before:]

    old = put(stack, reports, "mark_ready", silently)


@mutant("R: marks are written only when all tasks are ready")
def _(stack: ExitStack) -> None:
    held: dict[Any, list[Any]] = {}

    def all_or_none(draft: Draft, key: Any, task: records.Event, said: Any) -> None:
        job = draft.state.jobs[key[0]]
        waiting = held.setdefault((id(draft.state), key[0], task.incarnation, key[1]), [])
        waiting.append((key, task.attempt, said))
        ready = {w[0]: w for w in waiting if job.pipelines[key[1]].tasks[w[0][2]].attempt == w[1]}
        if len(ready) == job.pipelines[key[1]].size:
            for one, _, word in ready.values():
                old(draft, one, job.pipelines[key[1]].tasks[one[2]], word)

    put(stack, attempts, "repeat", lambda *a, **k: h.NOTHING)  # said once, as it was there
    old = put(stack, reports, "mark_ready", all_or_none)


@mutant("R: a mark outlives its attempt")
def _(stack: ExitStack) -> None:
    def keep(self: Draft, entity: Entity) -> None:
        if entity.kind != "ready" or self.state.jobs[entity.job].cleanup is not None:
            old(self, entity)

    old = put(stack, Draft, "delete", keep)


@mutant("R: the completed point is triggered when the first task is ready")
def _(stack: ExitStack) -> None:
    def any_ready(pipeline: Any, *states: str) -> int:
        ready = states == ("READY_TO_CLOSE",) and pipeline.counts.get("READY_TO_CLOSE")
        return pipeline.size if ready else old(pipeline, *states)

    old = put(stack, settle, "count", any_ready)


@mutant("T: the cleanup's timer lives only in the leader's memory")
def _(stack: ExitStack) -> None:
    def timeless(self: Draft, entity: Entity, transition: str, content: Any, **more: Any) -> Any:
        return old(self, entity, transition, content, **(more | ({"due_at": 0} if transition == "promised" else {})))

    old = put(stack, Draft, "emit", timeless)


@mutant("T: cleanup deletes before staging is removed")
def _(stack: ExitStack) -> None:
    def at_once(draft: Draft, event: records.Event) -> None:
        old(draft, event)
        now = draft.state.get(state.entity_of(event.entity))
        if now is not None:
            ending.finish_cleanup(draft, now)

    old = put(stack, core, "begin_cleanup", at_once)


@mutant("T: the end of a job promises no cleanup")
def _(stack: ExitStack) -> None:
    put(stack, ending, "promise_cleanup", lambda *a: None)
    put(stack, settle, "promise_cleanup", lambda *a: None)


@mutant("T: cleanup deletes whatever job has the id now")
def _(stack: ExitStack) -> None:
    def anybody(draft: Draft, event: records.Event) -> None:
        job = draft.state.jobs.get(event.job)
        if job is not None and job.event is not None:
            ending.delete_job(draft, event.job)
        old(draft, event)

    old = put(stack, reports, "finish_cleanup", anybody)


@mutant("T: a restored job takes its predecessor's cleanup with it")
def _(stack: ExitStack) -> None:
    def all_of_it(draft: Draft, name: str) -> None:
        cleanups = list(draft.state.jobs[name].cleanups)
        old(draft, name)
        for incarnation in cleanups:
            draft.delete(named("cleanup", name, incarnation))

    old = put(stack, restore, "delete_job", all_of_it)


@mutant("B: a job is restored from what is completed but not published")
def _(stack: ExitStack) -> None:
    def completed(number: int, pipeline: Any) -> Any:
        event = pipeline.checkpoint
        if event is None or event.to == "COMMITTED":
            return old(number, pipeline)
        known = checkpoint.checkpoint_of(event)
        return records.RestorePoint(
            pipeline=number, checkpoint=known.id, positions=tuple(ack.position for ack in known.acks)
        )

    old = put(stack, ending, "committed_point", completed)


@mutant("a savepoint takes the checkpoint that is there already")
def _(stack: ExitStack) -> None:
    put(stack, savepoint, "_counts", lambda pipeline, after: pipeline.checkpoint is not None)


@mutant("R: a record that can't be read is taken for nothing")
def _(stack: ExitStack) -> None:
    put(stack, coordinators.Reading, "set_aside", lambda self: [])


@mutant("B: the fold accepts records of a lower epoch")
def _(stack: ExitStack) -> None:
    put(stack, coordinators, "admits", lambda *a: True)


@mutant("after a commit without an answer the same producer goes on")
def _(stack: ExitStack) -> None:
    def same_producer(self: coordinators.Coordinator) -> None:
        epoch = self.leading
        self.begin()
        self.follow()
        self.waiting.clear()
        self.leading = epoch

    put(stack, coordinators.Coordinator, "unanswered", same_producer)


@mutant("after a commit without an answer the leader goes on from memory")
def _(stack: ExitStack) -> None:
    put(stack, coordinators.Coordinator, "unanswered", lambda self: None)


@mutant("older logic leads over what newer logic has written")
def _(stack: ExitStack) -> None:
    put(stack, coordinators, "may_lead", lambda state: True)


@mutant("O: publishing is given up at the first lasting failure, whoever else was told")
def _(stack: ExitStack) -> None:
    put(stack, checkpoint, "holders", lambda draft, pipeline: set())
    put(stack, reports, "holders", lambda draft, pipeline: set())


@mutant("O: a worker publishes although its lease has run out")
def _(stack: ExitStack) -> None:
    put(stack, workers, "may_publish", lambda *a: True)


@mutant("B: a lease that was lost goes on as soon as Kafka answers again")
def _(stack: ExitStack) -> None:
    old = put(stack, worker_core, "SetReached", lambda at, lease: old(at, 1))


@mutant("D: a deploy of what runs fails because it already exists")
def _(stack: ExitStack) -> None:
    def exists(held: Any, order: Any, now: int, settings: Any) -> Any:
        failed = h.say(held.who, records.TaskFailed(reason="it already exists"), now, settings)
        return h.Outcome(reports=(failed,))

    put(stack, attempts, "_deploy_again", exists)


@mutant("D: what runs astray on a worker goes on")
def _(stack: ExitStack) -> None:
    put(stack, core, "stop_strays", lambda *a: None)


@mutant("a checkpoint's number is used again after it was aborted")
def _(stack: ExitStack) -> None:
    def back(draft: Draft, job: Any, number: int, reason: str, **more: Any) -> int:
        failures = int(old(draft, job, number, reason, **more))
        event, known = checkpoint.pipeline_of(job.pipelines[number])
        draft.emit(named("pipeline", event.job, number), "delayed",
                   replace(known, next_checkpoint=known.next_checkpoint - 1), incarnation=event.incarnation,
                   due_at=event.due_at)  # fmt: skip
        return failures

    old = put(stack, reports, "abort", back)


@mutant("Z: a new leader does not see that a job has ended")
def _(stack: ExitStack) -> None:
    def blind(known: state.State, entity: Entity, event: records.Event | None) -> Any:
        ended = entity.kind == "job" and event is not None and event.to in TERMINAL_JOB
        return None if ended else old(known, entity, event)

    old = put(stack, coordinators, "fold", blind)


@mutant("Z: a job ends while a completed checkpoint is not committed")
def _(stack: ExitStack) -> None:
    put(stack, ending, "is_uncommitted", lambda pipeline: False)


@mutant("B: a checkpoint in flight has no deadline")
def _(stack: ExitStack) -> None:
    put(stack, core, "abandon", lambda *a, **k: None)


@mutant("B: no next checkpoint is due after one was aborted")
def _(stack: ExitStack) -> None:
    put(stack, checkpoint, "schedule_next", lambda *a, **k: None)


@mutant("B: a restarted task starts from the beginning")
def _(stack: ExitStack) -> None:
    put(stack, deploy, "restore_point", lambda pipeline, index: (0, b""))


@mutant("O: a worker's report is sent once and never again")
def _(stack: ExitStack) -> None:
    put(stack, attempts, "repeat", lambda *a, **k: h.NOTHING)


@mutant("O: publishing does not look for the checkpoint's identity")
def _(stack: ExitStack) -> None:
    def again(self: data.Data, effect: h.Publish) -> int:
        self.identities.clear()
        return int(old(self, effect))

    old = put(stack, data.Data, "publish", again)


@mutant("O: any committed report counts for the checkpoint that waits")
def _(stack: ExitStack) -> None:
    def credulous(draft: Draft, job: Any, report: Any, said: Any) -> None:
        pipeline = job.pipelines.get(report.pipeline)
        if pipeline and pipeline.checkpoint is not None and pipeline.checkpoint.to == "COMPLETED":
            checkpoint.commit(draft, job, report.pipeline)

    put(stack, reports, "committed", credulous)


@mutant("O: the commit is ordered once and never again")
def _(stack: ExitStack) -> None:
    def once(draft: Draft, job: Any, number: int) -> None:
        if not checkpoint.checkpoint_of(job.pipelines[number].checkpoint).tries:
            old(draft, job, number)

    old = put(stack, core, "order_commit", once)


@mutant("a checkpoint completes without all acknowledgements")
def _(stack: ExitStack) -> None:
    def generous(pipeline: Any, number: int) -> Any:
        found = old(pipeline, number)
        return {index: next(iter(found.values())) for index in pipeline.tasks} if found else found

    old = put(stack, checkpoint, "acks", generous)


@mutant("output of completed checkpoints is acknowledged again")
def _(stack: ExitStack) -> None:
    def forgetful(**fields: Any) -> Any:
        return old(**(fields | {"completed": 0}))

    old = put(stack, checkpoint, "TriggerCheckpoint", forgetful)


@mutant("D: a new attempt has the old one's number")
def _(stack: ExitStack) -> None:
    def same(self: Draft, entity: Entity, transition: str, content: Any, **more: Any) -> Any:
        lower = {"attempt": more.get("attempt", 0) - 1} if transition == "retried" else {}
        return old(self, entity, transition, content, **(more | lower))

    old = put(stack, Draft, "emit", same)


@mutant("D: a restarted worker says nothing of what it lost")
def _(stack: ExitStack) -> None:
    put(stack, worker_core, "_restart", lambda *a: h.NOTHING)


@mutant("D: a deploy order starts the task whether it runs or not")
def _(stack: ExitStack) -> None:
    def eager(ledger: Any, order: Any, action: Any, now: int, settings: Any) -> Any:
        outcome = old(ledger, order, action, now, settings)
        started = any(isinstance(effect, h.StartTask) for effect in outcome.effects)
        again = () if started else (h.StartTask(attempts.identity_of(order), action),)
        return replace(outcome, effects=(*outcome.effects, *again))

    old = put(stack, attempts, "deploy", eager)


@mutant("every late report withdraws the order under its key")
def _(stack: ExitStack) -> None:
    put(stack, reports, "is_wanted", lambda *a: False)


@mutant("orders are never withdrawn")
def _(stack: ExitStack) -> None:
    put(stack, Draft, "withdraw", lambda *a: None)


@mutant("a command sent again is carried out again")
def _(stack: ExitStack) -> None:
    def forgetful(self: Any, entity: Entity) -> Any:
        return None if entity.kind == "command" else old(self, entity)

    def anyway(kind: str, transition: str, was: str) -> str:
        return reached(kind, transition, "" if kind == "command" else was)

    reached = put(stack, draft, "reach", anyway)
    old = put(stack, state.State, "get", forgetful)


@mutant("an incarnation is used twice")
def _(stack: ExitStack) -> None:
    def first(draft: Draft, *more: Any) -> str:
        draft.state.incarnations = 0
        return str(old(draft, *more))

    old = put(stack, commands, "submit", first)


@mutant("what was consumed is not written with what it led to")
def _(stack: ExitStack) -> None:
    put(stack, coordinators.Coordinator, "positions", lambda self: {"commands": 0, "reports": 0})


@mutant("a worker keeps its disk's promises only in memory")
def _(stack: ExitStack) -> None:
    def amnesia(self: workers.Worker) -> None:
        self.ledger = type(self.ledger)()
        old(self)

    old = put(stack, workers.Worker, "start", amnesia)
