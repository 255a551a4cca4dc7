"""The trial engine: real tasks without Spark. Its source `numbers` reads numbered rows in slices, its sink `lines`
writes them to files (workers/lines.py), and both can be told to misbehave. For tests and demonstrations of
everything else.

Each attempt is a thread; publishing and removing are threads of their own. All are daemons: none outlives the process.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable

import msgspec

from events import records
from events.errors import DetentError
from events.log_fields import with_fields
from workers import happenings as h
from workers.engine import MayPublish, Say, Surroundings
from workers.ledger import Identity
from workers.lines import KIND as LINES
from workers.lines import Lines, Piece, PublishRefused
from workers.plan import OptionsRefused, PlanError, options_of, sinks_of, task_plan

LOG = logging.getLogger(__name__)
KIND = "numbers"
SLICE_ROWS = 1000
SLICE_S = 0.02  # how often a source with a rate is looked at
PROGRESS_S = 0.05
STARTS = "starts"  # in the worker's directory: a line for each start, for whoever counts them afterwards


class SourceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The numbers from `start` on, `rows` of them, shared out among the source's tasks."""

    rows: int = -1  # -1: without end
    start: int = 0
    rate: float = 0.0  # rows a second for each task; 0: as fast as it goes
    # Faults, for tests and demonstrations: when a task has read so many rows, so many times (-1: each time).
    fail_after_rows: int = -1
    fail_times: int = 1
    fail_lasting: bool = False
    stall_after_rows: int = -1
    stall_times: int = 1


class Unservable(DetentError):
    """A position that the source can't go on from."""


class AskedToFail(DetentError):
    """The source was told to fail."""


class TrialEngine:
    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._loops: dict[Identity, Loop] = {}

    def start(self, who: Identity, deploy: records.Deploy, say: Say) -> None:
        with (self._around.directory / STARTS).open("a") as file:
            file.write(json.dumps({**who._asdict(), "instance": self._around.instance}) + "\n")
        self._loops = {known: loop for known, loop in self._loops.items() if loop.is_alive()}
        loop = self._loops[who] = Loop(who, deploy, say, self._around)
        loop.start()

    def stop(self, who: Identity, reason: str) -> None:
        if who in self._loops:
            self._loops[who].stop(reason)

    def stage(self, who: Identity, checkpoint: int) -> None:
        if who in self._loops:
            self._loops[who].stage(checkpoint)

    def publish(self, effect: h.Publish, may_publish: MayPublish, say: Say) -> None:
        _in_a_thread("publish", lambda: say(_published(effect, may_publish)))

    def remove(self, effect: h.RemoveStaging, say: Say) -> None:
        _in_a_thread("remove", lambda: say(_removed(effect)))

    def close(self, patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        for loop in self._loops.values():
            loop.stop("the worker ends")
        for loop in self._loops.values():
            loop.join(max(0.0, deadline - time.monotonic()))


def _in_a_thread(name: str, work: Callable[[], None]) -> None:
    threading.Thread(target=work, name=name, daemon=True).start()


def _published(effect: h.Publish, may_publish: MayPublish) -> h.Published | h.PublishFailed:
    who = (effect.job, effect.incarnation, effect.pipeline, effect.checkpoint)
    try:
        rows = 0
        for sink in sinks_of(effect.specification, effect.pipeline):
            rows += Lines(sink, effect.job, effect.incarnation).publish(effect, may_publish)
        return h.Published(*who, rows)
    except PublishRefused as refused:
        return h.PublishFailed(
            *who, str(refused), lasting=refused.lasting, tries=effect.tries, conclusive=effect.conclusive
        )
    except Exception as error:  # noqa: BLE001  somebody waits for an answer, whatever it is
        return h.PublishFailed(
            *who, f"{type(error).__name__}: {error}", tries=effect.tries, conclusive=effect.conclusive
        )


def _removed(effect: h.RemoveStaging) -> h.StagingGone | h.StagingStuck:
    removed = 0
    try:
        for sink in sinks_of(effect.specification):
            removed += Lines(sink, effect.job, effect.incarnation).remove()
        return h.StagingGone(effect.job, effect.incarnation, removed)
    except (PlanError, OptionsRefused) as error:  # no task of such a job can have begun to write
        LOG.warning("nothing to remove where nothing could be written job=%s: %s", effect.job, error)
        return h.StagingGone(effect.job, effect.incarnation, removed)
    except Exception as error:  # noqa: BLE001  as above
        return h.StagingStuck(effect.job, effect.incarnation, str(error))


class Loop(threading.Thread):
    """An attempt: reads slices, and stages at checkpoints what it has read since the one before."""

    def __init__(self, who: Identity, deploy: records.Deploy, say: Say, around: Surroundings) -> None:
        super().__init__(name=f"task {who.job} {who.pipeline}/{who.task}", daemon=True)
        self._who, self._deploy, self._say, self._now_ms = who, deploy, say, around.now_ms
        self._told = threading.Condition()
        self._stopping: str | None = None
        self._checkpoint = 0
        self._pieces: dict[str, Piece] = {}  # by sink; what has been read since the last checkpoint
        self._position = self._bytes = 0
        self._log = with_fields(LOG, worker=around.worker, **who._asdict())

    # For the worker's main thread ------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        with self._told:
            self._stopping = self._stopping or reason
            self._told.notify()

    def stage(self, checkpoint: int) -> None:
        with self._told:
            self._checkpoint = checkpoint
            self._told.notify()

    # For its own thread ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        last = self._last_word()
        self._discard()
        self._say(last)

    def _last_word(self) -> h.Stopped | h.Crashed:
        """Runs the loop to its end."""
        try:
            self._begin()
            self._say(h.Started(self._who))
            self._read_on()
            return h.Stopped(self._who, self._stopping or "")
        except (PlanError, OptionsRefused, Unservable) as error:
            return h.Crashed(self._who, str(error), lasting=True)
        except AskedToFail as error:
            return h.Crashed(self._who, str(error), lasting=self._options.fail_lasting)
        except Exception as error:  # noqa: BLE001  whatever it is, the attempt is over, and that must be known
            self._log.exception("a task has crashed")
            return h.Crashed(self._who, f"{type(error).__name__}: {error}")

    def _begin(self) -> None:
        who = self._who
        plan = self._plan = task_plan(self._deploy.specification, who.pipeline, who.task)
        if plan.source.kind != KIND or plan.transforms:
            wrong = plan.transforms[0] if plan.source.kind == KIND else plan.source
            has = f"the trial engine has the source {KIND!r} and the sink {LINES!r}, and nothing else"
            raise OptionsRefused(f"{wrong.name!r} is of kind {wrong.kind!r}; {has}")
        self._options = options_of(plan.source, SourceOptions)
        self._sinks = {sink.name: Lines(sink, who.job, who.incarnation) for sink in plan.sinks}
        self._position = self._restored(self._deploy.position)
        for sink in self._sinks.values():
            sink.prepare()

    def _restored(self, position: bytes) -> int:
        if not position:
            return 0
        total = self._total
        if not position.isdigit() or (0 <= total < int(position)):
            has = f"{total} rows" if total >= 0 else "rows without end"
            raise Unservable(
                f"source {self._plan.source.name!r} can't go on from {position!r} of checkpoint "
                f"{self._deploy.checkpoint}: this task has {has}, and a position is how many of them were read"
            )
        return int(position)

    @property
    def _total(self) -> int:
        """The rows of this task; -1 without end."""
        plan, rows = self._plan, self._options.rows
        return rows if rows < 0 else len(range(plan.share, rows, plan.shares))

    def _read_on(self) -> None:
        """Until it is told to stop."""
        began, began_at, said_at, exhausted = time.monotonic(), self._position, 0.0, False
        while True:
            with self._told:
                if self._stopping is not None:
                    return
                checkpoint, self._checkpoint = self._checkpoint, 0
            if checkpoint:
                self._stage_now(checkpoint)
            due = self._due(began_at, time.monotonic() - began)
            if due:
                self._read(due)
                self._misbehave()
            if (now := time.monotonic()) >= said_at:
                said_at = now + PROGRESS_S
                self._say(h.Progressed(self._who, self._position, self._bytes, self._now_ms()))
            if self._position == self._total and not exhausted:
                exhausted = True
                self._say(h.Progressed(self._who, self._position, self._bytes, self._now_ms()))
                self._say(h.Exhausted(self._who, b"%d" % self._position))
            if not due:
                self._wait(None if exhausted else SLICE_S)

    def _wait(self, limit_s: float | None) -> None:
        with self._told:
            self._told.wait_for(lambda: self._stopping is not None or self._checkpoint, limit_s)

    def _due(self, began_at: int, elapsed_s: float) -> int:
        """How many rows to read now."""
        options, total = self._options, self._total
        due = SLICE_ROWS
        if options.rate > 0:
            due = min(due, began_at + int(elapsed_s * options.rate) - self._position)
        if total >= 0:
            due = min(due, total - self._position)
        for stop_at in (options.fail_after_rows, options.stall_after_rows):
            if stop_at > self._position:
                due = min(due, stop_at - self._position)
        return max(0, due)

    def _read(self, count: int) -> None:
        plan, first = self._plan, self._options.start + self._plan.share
        numbers = range(
            first + self._position * plan.shares, first + (self._position + count) * plan.shares, plan.shares
        )
        rows = [f"{plan.source.name} {number}\n".encode() for number in numbers]
        for name, sink in self._sinks.items():
            if name not in self._pieces:
                self._pieces[name] = sink.begin_piece(self._who)
            self._pieces[name].write(rows)
        self._position += count
        self._bytes += sum(map(len, rows))

    def _misbehave(self) -> None:
        options, faults = self._options, next(iter(self._sinks.values())).faults
        name = f"{self._who.pipeline}-{self._who.task}"
        if self._position == options.fail_after_rows and faults.spend(f"failed-{name}", options.fail_times):
            raise AskedToFail(f"source {self._plan.source.name!r} fails after {self._position} rows (fail_after_rows)")
        if self._position == options.stall_after_rows and faults.spend(f"stalled-{name}", options.stall_times):
            self._log.warning("stalls, as it was asked to rows=%d", self._position)
            with self._told:  # deaf to checkpoints, as a stuck thread is
                self._told.wait_for(lambda: self._stopping is not None)

    def _stage_now(self, checkpoint: int) -> None:
        """What is acknowledged is durable before it is said."""
        pieces, self._pieces = self._pieces, {}
        for piece in pieces.values():
            piece.finish()
        staged = tuple(self._sinks[name].staged(piece) for name, piece in pieces.items())
        position = b"%d" % self._position
        self._say(h.Staged(self._who, checkpoint, position, staged, self._position, self._bytes))

    def _discard(self) -> None:
        """What was read and never acknowledged. Where that fails, the removal of staging takes it."""
        for piece in self._pieces.values():
            try:
                piece.discard()
            except OSError as error:
                self._log.warning("a piece that nobody needs can't be removed: %s", error)
        self._pieces.clear()
