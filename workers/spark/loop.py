"""An attempt of a task on Spark: slice after slice, each at an explicit position, staged; acknowledged at checkpoints.

A thread of its own. It reads the next slice from where the last one ended, lets it through the transforms, and has each
sink stage it. A checkpoint waits until the slice that runs is staged, and acknowledges the position behind it with all
that was staged since the checkpoint before. Nothing is remembered but in positions: what the coordinator was told last
is where the next attempt begins.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from events import records
from events.log_fields import with_fields
from workers import happenings as h
from workers.engine import Say
from workers.ledger import Identity
from workers.plan import OptionsRefused, PlanError, task_plan
from workers.spark.api import Context, Piece, Refused, Sink, Slice, Source, Unservable, tagged
from workers.spark.kinds import make_sink, make_source
from workers.spark.pace import Pace
from workers.spark.session import NoSpark, Spark, text_of
from workers.spark.transforms import Graph

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG = logging.getLogger(__name__)
IDLE_S = 0.05  # between looks at a source that has nothing now
PROGRESS_S = 0.25
SPARK_PATIENCE_S = 120.0
LOSS_S = 2.0
CANCEL_PATIENCE_S = 5.0
INTERRUPT_S = 0.5
PARTITIONS = "spark.sql.files.minPartitionNum"


class Position(msgspec.Struct, frozen=True):
    """Where a task is, as the log has it: the counters go with it, so that they are right after every failover."""

    at: msgspec.Raw  # the source's own
    rows: int = 0
    bytes_read: int = 0


class Told(Exception):
    """The loop was told to stop while it waited for Spark."""


class Loop(threading.Thread):
    """`stop`, `stage` and `lose` are for other threads."""

    def __init__(
        self, who: Identity, deploy: records.Deploy, say: Say, spark: Spark, context: Context, *, slice_s: float,
        group: str, room: Callable[[], int],
    ) -> None:  # fmt: skip
        super().__init__(name=f"task {who.job} {who.pipeline}/{who.task}", daemon=True)
        self.who, self.group = who, group
        self._deploy, self._say, self._spark, self._context = deploy, say, spark, context
        self._slice_s, self._room, self._partitions = slice_s, room, 0
        self._told = threading.Condition()
        self._stopping: str | None = None
        self._lost: str | None = None
        self._checkpoint = 0
        self.session: SparkSession | None = None
        self._source: Source | None = None
        self._sinks: dict[str, Sink] = {}
        self._checked: set[str] = set()
        self._pieces: list[tuple[str, Piece]] = []  # with their sinks; staged since the last acknowledgement
        self._position, self._rows, self._bytes = b"", 0, 0
        self._progress_at = 0.0
        self.in_slice = False
        self.has_more = True  # to read, as far as is known
        self._log = with_fields(LOG, **who._asdict())

    # For other threads -----------------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        with self._told:
            self._stopping = self._stopping or reason
            self._told.notify()

    def stage(self, checkpoint: int) -> None:
        with self._told:
            self._checkpoint = checkpoint
            self._told.notify()

    def lose(self, reason: str) -> None:
        """Spark is gone: whatever the loop is at ends, and begins anew elsewhere."""
        with self._told:
            if self.session is not None:  # else it still waits for one
                self._lost = reason
                self._told.notify()

    def progressed(self) -> None:
        """Said also by who watches Spark while a slice runs."""
        self._say(h.Progressed(self.who, self._rows, self._bytes, self._context.now_ms()))

    # For its own thread ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        last = self._last_word()
        self._let_go()
        self._say(last)

    def _last_word(self) -> h.Stopped | h.Crashed:
        """Runs the loop to its end."""
        try:
            self._begin()
            self._say(h.Started(self.who))
            self._go_on()
        except Told:
            pass
        except (PlanError, OptionsRefused, Unservable) as error:
            return h.Crashed(self.who, str(error), lasting=True)
        except Refused as error:
            return h.Crashed(self.who, str(error), lasting=error.lasting)
        except Exception as error:  # noqa: BLE001  whatever it is, the attempt is over, and that must be known
            reason = self._why(error)
            if self._stopping is None:
                self._log.warning("a task has crashed", exc_info=error)
                return h.Crashed(self.who, reason)
        return h.Stopped(self.who, self._stopping or "")

    def _why(self, error: Exception) -> str:
        """A call that fails because Spark is gone is known before it is known why."""
        if isinstance(error, OSError) or type(error).__module__.startswith("py4j."):
            with self._told:
                self._told.wait_for(lambda: self._lost is not None or self._stopping is not None, LOSS_S)
        return self._lost or brief(error)

    def _begin(self) -> None:
        who, deploy = self.who, self._deploy
        plan = task_plan(deploy.specification, who.pipeline, who.task)
        self.session = session = self._wait_for_spark()
        self._spark.enter(session, self.group)
        context = replace(self._context, session=lambda: session)
        self._source = make_source(context, plan.source, plan.share, plan.shares)
        self._graph = Graph(plan, session, context.allowed_modules)
        for step in self._graph.sinks:
            sink = self._sinks[step.name] = make_sink(context, step, who.job, who.incarnation)
            sink.prepare(fresh=deploy.checkpoint == 0)
        self._position = self._begin_source(self._source, plan.source.name)
        self._pace = Pace(self._source.first_goal, self._slice_s)

    def _wait_for_spark(self) -> SparkSession:
        try:
            return self._spark.session(SPARK_PATIENCE_S, lambda: self._stopping is not None)
        except NoSpark:
            if self._stopping is not None:
                raise Told from None
            raise

    def _begin_source(self, source: Source, name: str) -> bytes:
        """From the source's position, with the counters that belong to it."""
        position, checkpoint = self._deploy.position, self._deploy.checkpoint
        if not position:
            return source.begin(b"", checkpoint)
        try:
            known = msgspec.json.decode(position, type=Position)
            self._rows, self._bytes = known.rows, known.bytes_read
            return source.begin(bytes(known.at), checkpoint)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise Unservable(name, checkpoint, position, f"that is no position of it ({error})") from error

    def _go_on(self) -> None:
        """Until it is told to stop."""
        source, exhausted = self._source, False
        assert source is not None
        while (checkpoint := self._asked()) is not None:
            if checkpoint:
                self._acknowledge(checkpoint)
            of_source = None if exhausted else source.next_slice(self._position, self._pace.goal)
            self.has_more = of_source is not None
            if of_source is not None:
                self._take(of_source)
            if time.monotonic() >= self._progress_at:
                self._progress_at = time.monotonic() + PROGRESS_S
                self.progressed()
            if not exhausted and source.at_end(self._position):
                exhausted = True
                self.progressed()
                self._say(h.Exhausted(self.who, self._log_position()))
            elif of_source is None:
                self._wait(None if exhausted else IDLE_S)

    def _asked(self) -> int | None:
        """The checkpoint to acknowledge, 0 for none; None when it is to stop."""
        with self._told:
            if self._stopping is not None:
                return None
            if self._lost is not None:
                raise NoSpark(self._lost)
            checkpoint, self._checkpoint = self._checkpoint, 0
            return checkpoint

    def _wait(self, limit_s: float | None) -> None:
        def spoken_to() -> bool:
            return self._stopping is not None or self._lost is not None or self._checkpoint > 0

        with self._told:
            self._told.wait_for(spoken_to, limit_s)

    def _take(self, taken: Slice) -> None:
        """A slice through the transforms into every sink's staging."""
        began = time.monotonic()
        several = len(self._graph.sinks) > 1
        self.in_slice = True
        try:
            self._fill_the_cores()
            # What feeds several sinks is read once, and is the same for all of them.
            frame = taken.frame.persist() if several else taken.frame
            try:
                frames = self._graph.frames(frame)
                staged = {name: self._stage(name, each, taken.rows) for name, each in frames.items()}
            finally:
                if several:
                    self._try(frame.unpersist)
        finally:
            self.in_slice = False
        self._position = taken.after
        self._rows += taken.rows if taken.rows >= 0 else max(staged.values(), default=0)
        self._bytes += taken.size
        self._pace.took(taken.weight, time.monotonic() - began)

    def _fill_the_cores(self) -> None:
        """More partitions than cores make more files, each with its price; fewer leave cores idle."""
        room = self._room()
        if room not in (0, self._partitions) and self.session is not None:
            self._partitions = room
            self.session.conf.set(PARTITIONS, room)

    def _stage(self, name: str, frame: DataFrame, rows: int) -> int:
        sink = self._sinks[name]
        if name not in self._checked:
            sink.check(frame.schema)
            self._checked.add(name)
        pieces = sink.stage(frame, self.who, rows)
        self._pieces += [(name, piece) for piece in pieces]
        return sum(piece.rows for piece in pieces)

    def _acknowledge(self, checkpoint: int) -> None:
        """All that it names is durable: sinks see to that before they return."""
        pieces = tuple(tagged(name, piece) for name, piece in self._pieces)
        self._pieces.clear()
        self._say(h.Staged(self.who, checkpoint, self._log_position(), pieces, self._rows, self._bytes))

    def _log_position(self) -> bytes:
        return msgspec.json.encode(Position(msgspec.Raw(self._position), self._rows, self._bytes))

    def _let_go(self) -> None:
        """What was staged and never acknowledged goes; where that fails, the removal of staging takes it."""
        self._try(self._wait_for_tasks)
        for name, sink in self._sinks.items():
            mine = [piece for of, piece in self._pieces if of == name]
            self._try(lambda sink=sink, mine=mine: sink.discard(mine))  # type: ignore[misc]
            self._try(sink.close)
        if self._source is not None:
            self._try(self._source.close)
        if (session := self.session) is not None:
            self._try(lambda: self._spark.leave(session, self.group))
        self._pieces.clear()

    def _wait_for_tasks(self) -> None:
        """What it staged is not removed under the hands of Spark's tasks: they would make it anew. They are interrupted
        again and again: what they are in may swallow it (Hadoop does, while it makes a directory), and they would go on
        to the end of their slice."""
        began = time.monotonic()
        again = began + INTERRUPT_S
        while (session := self.session) is not None and self._lost is None:
            tasks, now = self._spark.running_tasks(session, self.group), time.monotonic()
            if not tasks:
                return
            if now > began + CANCEL_PATIENCE_S:
                self._log.warning("Spark's tasks still run %.0f s after they were cancelled", CANCEL_PATIENCE_S)
                return
            if now > again:
                again = now + INTERRUPT_S
                self._spark.interrupt(session, tasks)
            with self._told:
                self._told.wait_for(lambda: self._lost is not None, IDLE_S)

    def _try(self, what: Callable[[], object]) -> None:
        try:
            what()
        except Exception as error:  # noqa: BLE001  the attempt is over: nothing hangs on it
            self._log.warning("leaves something behind: %s", brief(error))


def brief(error: BaseException) -> str:
    """What Spark says in its first lines; the rest, the Java stack, is in the log."""
    lines = [line for line in text_of(error).splitlines() if line.strip()]
    told = [line.strip() for line in lines if not line.lstrip().startswith(("at ", "..."))]
    return f"{type(error).__name__}: {' '.join(told[:6])}"[:1500]
