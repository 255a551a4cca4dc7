"""Carries the worker's decisions out, each in the order that `Outcome` asks for: durable, then done, then told.

One thread, the worker's main thread, owns it and with it the ledger; only `may_publish` is for any thread. It never
waits for a task: effects are the engine's, which works on threads of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from events import records
from events.log_fields import with_fields
from workers import happenings as h
from workers.core import decide, heartbeat, may_publish
from workers.engine import Answer, Engine, Say
from workers.ledger import Identity, Ledger, PipelineKey, TaskKey, apply
from workers.metrics import Metrics
from workers.store import LedgerStore

LOG = logging.getLogger(__name__)
LONGEST_REASON = 2000
ROUTINE = (h.Tick, h.Reached, h.Progressed)
QUIET = (*ROUTINE, h.Staged, h.Published, records.TriggerCheckpoint, records.CommitCheckpoint)


@dataclass
class Decider:
    store: LedgerStore
    ledger: Ledger
    settings: h.Settings
    engine: Engine
    now_ms: Callable[[], int]
    send: Callable[[records.Report], None]
    say: Say
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()  # may_publish reads two fields of the ledger that belong together
        self._fenced = False
        self._told_to_stop: set[Identity] = set()
        self._log = with_fields(LOG, worker=self.settings.worker)
        self.metrics.slots.set(self.settings.slots)

    # Deciding --------------------------------------------------------------------------------------------------------

    def give(self, it: h.Input, position: int | None = None) -> h.Outcome:
        """Decide and carry out. For an order, with the position after it. Raises LedgerFailed: nothing that followed
        from the decision was done or told, and nothing may be any more."""
        it = self._plain(_bounded(it))
        epoch = self._epoch(it)  # before the decision: it may forget what the input is about
        outcome = decide(self.ledger, it, self.now_ms(), self.settings)
        began = time.perf_counter()
        self.store.write(outcome.changes, self.store.position if position is None else position)
        if outcome.changes and not isinstance(it, ROUTINE):
            self.metrics.write_seconds.observe(time.perf_counter() - began)
        with self._lock:
            apply(self.ledger, outcome.changes)
        self._note(it, outcome, epoch)
        for effect in outcome.effects:
            self._perform(effect)
        for report in outcome.reports:
            self.metrics.reports.labels(type(report.happening).__name__).inc()
            self.send(report)
        return outcome

    def answered(self, sent_ms: int) -> bool:
        """Kafka has what was sent to it at that time. Whether a new lease begins with that."""
        lease = self.ledger.lease
        if sent_ms > self.ledger.reached_at:
            self.give(h.Reached(sent_ms))
        if self.ledger.lease == lease:
            return False
        self.metrics.lease_losses.inc()
        return True

    def pass_over(self, position: int) -> None:
        """Orders up to there were not for this worker."""
        self.store.write((), position)

    def _plain(self, it: h.Input) -> h.Input:
        """An engine that gives the reason back which it was told is not to be told twice."""
        if not isinstance(it, h.Stopped):
            return it
        held = self.ledger.tasks.get(TaskKey(it.who.job, it.who.pipeline, it.who.task))
        return replace(it, reason="") if held is not None and held.why and held.why == it.reason else it

    def heartbeat(self) -> records.Heartbeat:
        return heartbeat(self.ledger, self.now_ms(), self.settings)

    def measure(self) -> None:
        self.metrics.measure(self.ledger, self.store.entries, self.store.position, self.now_ms())

    # Leases and the end ----------------------------------------------------------------------------------------------

    def may_publish(self, lease: int) -> bool:
        """For any thread."""
        with self._lock:
            return not self._fenced and may_publish(self.ledger, lease, self.now_ms(), self.settings)

    def fence(self) -> None:
        """From here on nothing is published, whatever happens to the process."""
        with self._lock:
            self._fenced = True

    def drain(self) -> None:
        """Take no new tasks; heartbeats say so."""
        self.settings = replace(self.settings, draining=True)

    def stop_tasks(self, reason: str) -> None:
        """Tell the loops to end that have not been told; their answers end the attempts."""
        running = [held.who for held in self.ledger.tasks.values() if held.active]
        for who in running:
            if who not in self._told_to_stop:
                self._told_to_stop.add(who)
                self._perform(h.StopTask(who, reason))

    def give_up(self, reason: str) -> None:
        """End the attempts whose loops do not. Nothing of theirs will be published."""
        for who in [held.who for held in self.ledger.tasks.values() if held.active]:
            self.give(h.Stopped(who, reason))

    @property
    def at_rest(self) -> bool:
        """Whether nothing runs, is published or removed."""
        publishing = any(publication.publishing for publication in self.ledger.publications.values())
        removing = any(removal.removing for removal in self.ledger.removals.values())
        return not (self.ledger.active or publishing or removing)

    # Effects ---------------------------------------------------------------------------------------------------------

    def _perform(self, effect: h.Effect) -> None:
        try:
            if isinstance(effect, h.StartTask):
                self.metrics.starts.inc()
                self.engine.start(effect.who, effect.deploy, self.say)
            elif isinstance(effect, h.StopTask):
                self.engine.stop(effect.who, effect.reason)
            elif isinstance(effect, h.StageCheckpoint):
                self.engine.stage(effect.who, effect.checkpoint)
            elif isinstance(effect, h.Publish):
                self.engine.publish(effect, partial(self.may_publish, effect.lease), self.say)
            else:
                self.engine.remove(effect, self.say)
        except Exception as error:  # noqa: BLE001  engines may raise anything, and it is their answer
            self._log.exception("the engine failed doing=%s", type(effect).__name__)
            self._answer_for_the_engine(effect, f"{type(error).__name__}: {error}")

    def _answer_for_the_engine(self, effect: h.Effect, reason: str) -> None:
        if isinstance(effect, h.StartTask):
            self.say(h.Crashed(effect.who, reason))
        elif isinstance(effect, h.StageCheckpoint):
            self.say(h.StageFailed(effect.who, effect.checkpoint, reason))
        elif isinstance(effect, h.Publish):
            who = (effect.job, effect.incarnation, effect.pipeline, effect.checkpoint)
            self.say(h.PublishFailed(*who, reason, tries=effect.tries, conclusive=effect.conclusive))
        elif isinstance(effect, h.RemoveStaging):
            self.say(h.StagingStuck(effect.job, effect.incarnation, reason))
        # A task that can't be told to stop is given up when its time is over.

    # What is logged and counted --------------------------------------------------------------------------------------

    def _epoch(self, it: h.Input) -> int:
        if isinstance(it, records.Order):
            return it.epoch
        if isinstance(it, h.TaskHappening):
            return self._epoch_of(it.who)
        if isinstance(it, h.Published | h.PublishFailed):
            publication = self.ledger.publications.get(PipelineKey(it.job, it.incarnation, it.pipeline))
            return publication.epoch if publication is not None else 0
        if isinstance(it, h.StagingGone | h.StagingStuck):
            return self.ledger.epoch(it.job, it.incarnation)
        return 0

    def _epoch_of(self, who: Identity) -> int:
        held = self.ledger.tasks.get(TaskKey(who.job, who.pipeline, who.task))
        return held.epoch if held is not None else 0

    def _note(self, it: h.Input, outcome: h.Outcome, epoch: int) -> None:
        subject = it.action if isinstance(it, records.Order) else it
        kind = type(subject).__name__
        if isinstance(it, records.Order | h.Withdrawn):
            self.metrics.orders.labels(kind).inc()
        elif isinstance(it, h.Published | h.PublishFailed):
            self.metrics.publications.labels("published" if isinstance(it, h.Published) else "failed").inc()
        if outcome.ignored:
            self.metrics.ignored.labels(kind).inc()
        elif isinstance(it, ROUTINE):
            for effect in outcome.effects:  # of a Tick: the lease is lost, or an attempt is given up and one follows it
                epoch = self._epoch_of(effect.who) if isinstance(effect, h.StartTask | h.StopTask) else 0
                self._log.warning("%s", _text(effect), extra=_fields(effect, epoch))
            return
        level = logging.DEBUG if isinstance(subject, QUIET) else logging.INFO
        if not self._log.isEnabledFor(level):
            return
        done = "; ".join(map(_text, outcome.effects))
        told = ", ".join(type(report.happening).__name__ for report in outcome.reports)
        extra = _fields(it, epoch) | {"does": done, "tells": told, "ignored": outcome.ignored}
        extra["reason"] = getattr(subject, "reason", "")
        self._log.log(level, "%s", kind, extra={name: value for name, value in extra.items() if value != ""})


def _bounded(it: h.Input) -> h.Input:
    """What an engine says may hold anything, such as the names of files; a record takes text of some length."""
    if not isinstance(it, Answer):
        return it
    reason = getattr(it, "reason", "")
    clean = reason.encode(errors="replace").decode()
    if len(clean) > LONGEST_REASON:
        clean = f"{clean[:LONGEST_REASON]}… ({len(clean)} characters)"
    return it if clean == reason else replace(it, reason=clean)


def _fields(it: h.Input | h.Effect, epoch: int) -> dict[str, object]:
    who = getattr(it, "who", it)
    names = ("job", "incarnation", "pipeline", "task", "attempt")
    fields: dict[str, object] = {name: getattr(who, name) for name in names if hasattr(who, name)}
    return fields | {"epoch": epoch} if epoch else fields


def _text(effect: h.Effect) -> str:
    reason = getattr(effect, "reason", "")
    return f"{type(effect).__name__} ({reason})" if reason else type(effect).__name__
