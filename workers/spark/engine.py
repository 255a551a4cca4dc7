"""The engine on Spark: a loop per attempt, threads that publish and remove, and one that watches Spark meanwhile.

The worker's main thread calls it and never waits: Spark is started, asked and cancelled on other threads. All of them
are daemons, and none outlives the process; neither does the JVM.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from events import records
from workers import happenings as h
from workers.engine import MayPublish, Say, Surroundings
from workers.ledger import Identity
from workers.plan import OptionsRefused, PlanError, sinks_of
from workers.spark.api import Commit, Context, Refused, pieces_of
from workers.spark.kinds import make_sink
from workers.spark.loop import Loop, brief
from workers.spark.session import Spark, SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = logging.getLogger(__name__)
SLICE_MS = 3000
WATCH_S = 1.0
PUBLISH_PATIENCE_S = 60.0


class SparkEngine:
    def __init__(self, around: Surroundings) -> None:
        options = around.options
        self._around = around
        self._loops: dict[Identity, Loop] = {}
        self._lock = threading.Lock()  # loops are looked at by the threads that watch
        self._closed = threading.Event()
        self._slice_s = cast(int, options.get("slice_ms", SLICE_MS)) / 1000
        settings = SparkSettings(
            worker=around.worker,
            directory=around.directory,
            master=str(options.get("spark.master", "local[*]")),
            conf=cast(Mapping[str, str], options.get("spark.conf", {})),
        )
        self._spark = Spark(settings, self._lose_all)
        self._context = Context(
            session=self._publishers_session,
            directory=around.directory,
            now_ms=around.now_ms,
            allowed_modules=cast(Sequence[str], options.get("allowed_modules", ())),
            kafka=cast(Mapping[str, str], options.get("kafka", {})),
        )
        self._spark.start()
        threading.Thread(target=self._watch, name="watch spark", daemon=True).start()

    # For the worker's main thread ------------------------------------------------------------------------------------

    def start(self, who: Identity, deploy: records.Deploy, say: Say) -> None:
        # The instance makes it unlike any other: Spark remembers groups that were cancelled.
        group = f"{who.job}/{who.incarnation}/{who.pipeline}/{who.task}/{who.attempt}/{self._around.instance}"
        loop = Loop(who, deploy, say, self._spark, self._context, slice_s=self._slice_s, group=group, room=self._room)
        with self._lock:
            self._loops = {known: each for known, each in self._loops.items() if each.is_alive()}
            self._loops[who] = loop
        loop.start()

    def stop(self, who: Identity, reason: str) -> None:
        with self._lock:
            loop = self._loops.get(who)
        if loop is not None:
            loop.stop(reason)
            in_a_thread("cancel", lambda: self._cancel(loop))

    def stage(self, who: Identity, checkpoint: int) -> None:
        with self._lock:
            loop = self._loops.get(who)
        if loop is not None:
            loop.stage(checkpoint)

    def publish(self, effect: h.Publish, may_publish: MayPublish, say: Say) -> None:
        in_a_thread("publish", lambda: say(self._published(effect, may_publish)))

    def remove(self, effect: h.RemoveStaging, say: Say) -> None:
        in_a_thread("remove", lambda: say(self._removed(effect)))

    def close(self, patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        self._closed.set()
        loops = self._all_loops()
        for loop in loops:
            loop.stop("the worker ends")
        for loop in loops:
            loop.join(max(0.0, (deadline - time.monotonic()) / 2))
        self._spark.close(max(0.5, deadline - time.monotonic()))

    # On other threads ------------------------------------------------------------------------------------------------

    def _all_loops(self) -> list[Loop]:
        with self._lock:
            return [loop for loop in self._loops.values() if loop.is_alive()]

    def _room(self) -> int:
        """How many partitions a slice should have, so that all that read now fill the cores; 0: Spark knows best."""
        busy = sum(loop.has_more for loop in self._all_loops())
        return max(1, self._spark.cores // max(1, busy)) if self._spark.cores else 0

    def _cancel(self, loop: Loop) -> None:
        if loop.session is not None and loop.is_alive():
            try:
                self._spark.cancel(loop.session, loop.group)
            except Exception as error:  # noqa: BLE001  a cancelled job is a courtesy: its output is fenced by its names
                LOG.warning("can't cancel Spark's jobs of %s: %s", loop.group, brief(error))

    def _lose_all(self, why: str) -> None:
        for loop in self._all_loops():
            loop.lose(f"Spark is gone: {why}")

    def _watch(self) -> None:
        """A slice that is long tells of its progress by what Spark does; one that is stuck does not."""
        last: dict[Identity, tuple[object, ...]] = {}
        while not self._closed.wait(WATCH_S):
            busy = [loop for loop in self._all_loops() if loop.in_slice and loop.session is not None]
            last = {loop.who: self._pulse(loop, last.get(loop.who, ())) for loop in busy}

    def _pulse(self, loop: Loop, before: tuple[object, ...]) -> tuple[object, ...]:
        try:
            now = self._spark.pulse(cast("SparkSession", loop.session), loop.group)
        except Exception as error:  # noqa: BLE001  Spark is gone, and its loops will say so
            LOG.debug("can't ask Spark how it gets on: %s", brief(error))
            return before
        if now and now != before:
            loop.progressed()
        return now

    def _publishers_session(self) -> SparkSession:
        return self._spark.session(PUBLISH_PATIENCE_S, self._closed.is_set)

    def _published(self, effect: h.Publish, may_publish: MayPublish) -> h.Published | h.PublishFailed:
        who = (effect.job, effect.incarnation, effect.pipeline, effect.checkpoint)
        rows, lasting = 0, False
        try:
            for step in sinks_of(effect.specification, effect.pipeline):
                sink = make_sink(self._context, step, effect.job, effect.incarnation)
                try:
                    rows += sink.publish(Commit(*who, pieces_of(step.name, effect.staged)), may_publish)
                finally:
                    sink.close()
            return h.Published(*who, rows)
        except Refused as refused:
            reason, lasting = str(refused), refused.lasting
        except Exception as error:  # somebody waits for an answer, whatever it is
            LOG.warning("a checkpoint could not be published job=%s checkpoint=%d", *who[::3], exc_info=error)
            reason = brief(error)
        return h.PublishFailed(*who, reason, lasting=lasting, tries=effect.tries, conclusive=effect.conclusive)

    def _removed(self, effect: h.RemoveStaging) -> h.StagingGone | h.StagingStuck:
        removed = 0
        try:
            for step in sinks_of(effect.specification):
                sink = make_sink(self._context, step, effect.job, effect.incarnation)
                try:
                    removed += sink.remove()
                finally:
                    sink.close()
        except (PlanError, OptionsRefused) as error:  # no task of such a job can have begun to write
            LOG.warning("nothing to remove where nothing could be written job=%s: %s", effect.job, error)
        except Exception as error:  # noqa: BLE001  as above
            return h.StagingStuck(effect.job, effect.incarnation, brief(error))
        return h.StagingGone(effect.job, effect.incarnation, removed)


def in_a_thread(name: str, work: Callable[[], Any]) -> None:
    threading.Thread(target=work, name=name, daemon=True).start()
