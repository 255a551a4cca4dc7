"""The worker's Spark: started beside the worker, watched, started again when it dies, ended with the worker.

A thread of its own does all that, so that the worker polls and beats whatever Spark does. The JVM reads from a pipe
that ends with this process, so it never outlives it. It is the only place that knows whether Spark is a JVM under this
process (local, standalone, YARN, Kubernetes) or a server elsewhere (Spark Connect).
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from events.errors import DetentError
from events.jars import SPARK_JARS, fetch_jars
from events.log_fields import with_fields
from workers.spark import class_archive
from workers.spark.shipping import ARCHIVE, archived, ship

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = logging.getLogger(__name__)
CONNECT = "sc://"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
LOOK_S = 0.2
STEADY_S = 60.0  # a session that has lived so long is no proof of a lasting fault when it dies
LOG_FILE = "spark.log"
POOL = "spark.scheduler.pool"
JOB_GROUP = "spark.jobGroup.id"
PYTHON = "spark.pyspark.python"
JAVA_OPTIONS = "spark.driver.defaultJavaOptions"  # those that a user may add to are extraJavaOptions

# What a driver of many small jobs needs; `worker.spark.conf` overrides each. Reasons and figures: docs/dataplane.md.
TUNING: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "50",  # what is kept of jobs that are over: the worker may run for months
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.adaptive.enabled": "false",
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",  # the same rows whichever worker reads them
    "spark.executor.heartbeatInterval": "2s",  # how often a long task tells of its progress
}
LOCAL_TUNING: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Parquet's buffers are of some MB: in smaller regions they have G1 mark the heap all the time.
    JAVA_OPTIONS: "-XX:G1HeapRegionSize=16m",
}


class NoSpark(DetentError):
    """There is no session to be had now."""


@dataclass(frozen=True)
class SparkSettings:
    worker: str
    directory: Path  # the worker's own: Spark's log and warehouse are in it
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def archive(self) -> Path:
        """Of our code, for executors."""
        return self.directory / ARCHIVE

    @property
    def is_connect(self) -> bool:
        return self.master.startswith(CONNECT)

    @property
    def is_local(self) -> bool:
        return self.master.startswith("local")

    def all_conf(self, jars: Path | None) -> dict[str, str]:
        conf = {
            "spark.app.name": f"detent {self.worker}",
            "spark.sql.warehouse.dir": str(self.directory.absolute() / "warehouse"),
            **TUNING,
        }
        if self.is_local:
            conf |= {**LOCAL_TUNING, "spark.sql.shuffle.partitions": str(max(2, _cores(self.master)))}
        if jars is not None:
            paths = [str(path) for path in sorted(jars.glob("*.jar"))]
            # In one JVM the class path will do, and nothing is copied; elsewhere, executors fetch them.
            key, glue = ("spark.driver.extraClassPath", ":") if self.is_local else ("spark.jars", ",")
            conf[key] = glue.join(filter(None, [self.conf.get(key, ""), *paths]))
            return conf | {name: value for name, value in self.conf.items() if name != key} | self._master()
        return conf | dict(self.conf) | self._master()

    def _master(self) -> dict[str, str]:
        return {"spark.master": self.master}


def _cores(master: str) -> int:
    inside = master.removeprefix("local").strip("[]").split(",")[0]
    return int(inside) if inside.isdigit() else (os.cpu_count() or 1) if inside == "*" else 1


class Spark:
    """`session` and what follows it are for any thread; `died` is called on its own, with the reason."""

    def __init__(self, settings: SparkSettings, died: Callable[[str], None]) -> None:
        self._settings, self._died = settings, died
        self._changed = threading.Condition()
        self._session: SparkSession | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._trouble = "it is starting"
        self._closing = False
        self._pools: dict[str, int] = {}  # by the groups that use them
        self._thread = threading.Thread(target=self._run, name="spark", daemon=True)
        self._log = with_fields(LOG, worker=settings.worker, master=settings.master)

    def start(self) -> None:
        self._thread.start()

    def close(self, patience_s: float) -> None:
        """The JVM is ended, not asked: all that matters is durable elsewhere."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(patience_s)
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()

    # Sessions --------------------------------------------------------------------------------------------------------

    def session(self, wait_s: float, give_up: Callable[[], bool] = lambda: False) -> SparkSession:
        """A session of the caller's own (views, registered sources) in the worker's Spark. Raises NoSpark."""
        deadline = time.monotonic() + wait_s
        with self._changed:
            while self._session is None:
                left = deadline - time.monotonic()
                if left <= 0 or self._closing or give_up():
                    raise NoSpark(f"there is no Spark session at {self._settings.master} yet: {self._trouble}")
                self._changed.wait(min(left, LOOK_S))
            base = self._session
        if self._settings.is_connect:
            return _connect(self._settings)
        return base.newSession()

    def leave(self, session: SparkSession, group: str) -> None:
        """The group has ended, and nobody uses its session: a server keeps what that has until it is told."""
        with self._changed:
            self._pools.pop(group, None)
        if self._settings.is_connect:
            session.stop()

    @property
    def cores(self) -> int:
        """Where all of them are in this machine; 0 elsewhere."""
        return _cores(self._settings.master) if self._settings.is_local else 0

    # Jobs of an attempt: classic Spark has groups, Connect has tags ---------------------------------------------------

    def enter(self, session: SparkSession, group: str) -> None:
        """From here on, jobs of this thread are of the group, and have a FAIR pool of their own."""
        if self._settings.is_connect:
            session.addTag(_tag(group))
            return
        with self._changed:  # Spark never forgets a pool: there are no more than groups at a time
            free = set(range(len(self._pools) + 1)) - set(self._pools.values())
            pool = self._pools.setdefault(group, min(free))
        context = session.sparkContext
        context.setLocalProperty(POOL, f"task-{pool}")
        context.setJobGroup(group, group, interruptOnCancel=True)

    def cancel(self, session: SparkSession, group: str) -> None:
        """Those that run, and those that its thread may yet begin."""
        if self._settings.is_connect:
            session.interruptTag(_tag(group))
            return
        context: Any = session.sparkContext
        context._jsc.sc().cancelJobGroupAndFutureJobs(group)

    def running_tasks(self, session: SparkSession, group: str) -> list[int]:
        """The group's tasks that run, those of cancelled jobs too: it takes them a moment to see that they are to end,
        and they write until then. The scheduler itself is asked: what Spark shows to people comes later, and a task
        that has just begun is not in it. Spark Connect does not tell."""
        if self._settings.is_connect:
            return []
        context: Any = session.sparkContext
        tasks = context._jsc.sc().taskScheduler().taskIdToTaskSetManager().entrySet()
        return [each.getKey() for each in tasks if each.getValue().taskSet().properties().get(JOB_GROUP) == group]

    def interrupt(self, session: SparkSession, tasks: list[int]) -> None:
        context: Any = session.sparkContext
        for task in tasks:
            context._jsc.sc().killTaskAttempt(task, True, "its attempt has ended")

    def pulse(self, session: SparkSession, group: str) -> tuple[object, ...]:
        """What changes as long as Spark gets on with the group's jobs; empty when nothing runs or nothing is told."""
        if self._settings.is_connect:
            return ()
        context: Any = session.sparkContext
        store = context._jsc.sc().statusStore()
        found: list[object] = []
        for stage in _running_stages(session, group):
            about = store.lastStageAttempt(stage.stageId())
            moved = (about.inputRecords(), about.outputRecords(), about.shuffleReadBytes(), about.outputBytes())
            found.append((stage.stageId(), about.attemptId(), about.numCompleteTasks(), *moved))
        return tuple(found)

    # Its own thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._closing:
            began = time.monotonic()
            try:
                session = self._begin()
            except Exception as error:  # noqa: BLE001  whatever it is, it is tried again, and said meanwhile
                why = f"{type(error).__name__}: {text_of(error)}"
            else:
                self._log.info("Spark is there after %.1f s", time.monotonic() - began)
                with self._changed:
                    self._session = session
                    self._changed.notify_all()
                why = self._watch(session)
            if time.monotonic() - began > STEADY_S:
                pause_s = FIRST_PAUSE_S
            self._lose(why)
            if self._closing:
                return
            self._log.error("Spark is gone, starts again in %.0f s: %s", pause_s, why)
            with self._changed:
                self._changed.wait_for(lambda: self._closing, pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _begin(self) -> SparkSession:
        keep_errors_to_our_logs()
        if self._settings.is_connect:
            os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # by this, PySpark's functions know what they are used with
            archived(self._settings.archive)
            return _connect(self._settings)
        jars = self._jars()
        with class_archive.distrusted(jars, self._settings.directory / LOG_FILE):
            session, self._process = launch(self._settings, jars)
        return session

    def _jars(self) -> Path | None:
        """Without them Spark runs as well: Iceberg and PostgreSQL are what then can't be used."""
        try:
            return fetch_jars(SPARK_JARS)
        except DetentError as error:
            self._log.warning("starts without the jars of Iceberg and PostgreSQL: %s", error)
            return None

    def _watch(self, session: SparkSession) -> str:
        """Until Spark has ended; why."""
        while not self._closing:
            process = self._process
            if process is not None and process.poll() is not None:
                return f"its JVM has ended with code {process.returncode}; see {self._settings.directory / LOG_FILE}"
            if process is None and session.is_stopped:  # type: ignore[attr-defined]  # of Connect only
                return "the connection to the server has ended"
            if process is not None and not self._settings.is_local and _has_stopped(session):
                return f"its cluster has given it up; see {self._settings.directory / LOG_FILE}"
            with self._changed:
                self._changed.wait_for(lambda: self._closing, LOOK_S)
        return "the worker ends"

    def _lose(self, why: str) -> None:
        with self._changed:
            session, self._session, self._trouble = self._session, None, why
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
            _forget_the_jvm()
        elif session is not None:
            with contextlib.suppress(Exception):  # the server may be gone; nothing hangs on its leave
                session.stop()
        if session is not None:
            self._died(why)


def text_of(error: BaseException) -> str:
    """What it says; an error of Java asks the JVM for that, which may be gone by now."""
    try:
        return str(error)
    except Exception as again:  # noqa: BLE001  whatever befalls the asking, the first error is the one to tell of
        return f"{getattr(error, 'errmsg', '')} {again}".strip()


def _has_stopped(session: SparkSession) -> bool:
    """Where a cluster ends an application, or is gone for too long, its JVM lives on without a use."""
    from py4j.protocol import Py4JError

    context: Any = session.sparkContext
    try:
        return bool(context._jsc.sc().isStopped())
    except (OSError, Py4JError):  # the JVM has ended, which is seen next
        return False


def _running_stages(session: SparkSession, group: str) -> Iterator[Any]:
    """What Spark knows of the stages that have begun, of the group's jobs that run."""
    context: Any = session.sparkContext
    tracker = context._jsc.sc().statusTracker()
    for number in tracker.getJobIdsForGroup(group):
        job = tracker.getJobInfo(number)
        if job.isEmpty() or str(job.get().status()) != "RUNNING":
            continue
        for each in job.get().stageIds():
            if not (stage := tracker.getStageInfo(each)).isEmpty():
                yield stage.get()


def _tag(group: str) -> str:
    return group.replace(",", "%2C")


def keep_errors_to_our_logs() -> None:
    """A failed query raises, and who catches it says so. PySpark writes it to stderr as well, in a form of its own and
    past all settings, by loggers that turn every handler they are given to that form (pytest's, too)."""
    from pyspark.errors import PySparkException

    def say_nothing(self: PySparkException) -> None:
        """The exception says it all."""

    PySparkException._log_exception = say_nothing  # type: ignore[method-assign]


def _connect(settings: SparkSettings) -> SparkSession:
    from pyspark.sql.connect.session import SparkSession as Remote

    session = cast("SparkSession", Remote.builder.remote(settings.master).create())
    own = {name: value for name, value in TUNING.items() if session.conf.isModifiable(name)}
    for name, value in (own | dict(settings.conf)).items():
        session.conf.set(name, value)
    session.addArtifacts(str(settings.archive), pyfile=True)
    return session


def launch(settings: SparkSettings, jars: Path | None) -> tuple[SparkSession, subprocess.Popen[bytes]]:
    """A driver in a JVM under this process, and that JVM."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    conf = SparkConf(loadDefaults=False)
    for name, value in settings.all_conf(jars).items():
        conf.set(name, value)
    if settings.is_local:
        conf.set(JAVA_OPTIONS, f"{conf.get(JAVA_OPTIONS, '')} {class_archive.options(jars)}".strip())
    # Spark's Python processes are of this Python, with its packages; PySpark looks for it nowhere else.
    if (python := settings.conf.get(PYTHON)) is not None:
        os.environ["PYSPARK_PYTHON"] = python
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    log = settings.directory / LOG_FILE
    if log.exists():
        log.replace(log.with_suffix(".previous.log"))
    with log.open("ab") as said:
        gateway: Any = launch_gateway(conf, {"stdout": said, "stderr": said})  # type: ignore[no-untyped-call]
    try:
        context = SparkContext(conf=conf, gateway=gateway)
        if not settings.is_local:
            ship(context, settings.archive)
        session = SparkSession(context)
    except BaseException:
        gateway.proc.kill()
        _forget_the_jvm()
        raise
    return session, gateway.proc


def _forget_the_jvm() -> None:
    """PySpark remembers the one JVM of the process in places of its own, dead or not."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext
    remembered: Any = SparkSession
    if (active := context._active_spark_context) is not None and active._accumulatorServer is not None:
        active._accumulatorServer.shutdown()
        active._accumulatorServer = None
    context._active_spark_context = context._gateway = context._jvm = None
    remembered._instantiatedSession = remembered._activeSession = None
