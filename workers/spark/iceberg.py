"""Iceberg by the Java library in Spark's JVM: catalogs, tables, files, and one commit for each identity.

A write without a commit: the table, under a random name in Spark's cache of tables, is written to as a rewrite would
be, and the files are fetched from the coordinator of rewrites. The table is one in a transaction that is never
committed, and in which data goes to a folder of the piece: so nothing is ever lost sight of.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workers.plan import OptionsRefused, Step
from workers.secrets import Secrets
from workers.spark.api import Context, Refused
from workers.spark.part_options import IcebergOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

IDENTITY = "detent.identity"  # in a snapshot's summary
CATALOG = "org.apache.iceberg.spark.SparkCatalog"
BY_NAME = ("spark.sql.catalog.default_rewrite_catalog", "org.apache.iceberg.spark.SparkRewriteTableCatalog")
UNCACHED = {"cache-enabled": "false"}  # what others do to a table is seen at once
DATA_PATH = "write.data.path"
Java = Any
SHARED: dict[tuple[Any, ...], SparkSession] = {}  # by catalog; values may be used by several threads
SHARING = threading.Lock()


class Iceberg:
    """One step's table and its catalog. For one thread."""

    def __init__(self, context: Context, step: Step, options: IcebergOptions, *, shared: bool = False) -> None:
        """`shared`: whoever has the same catalog may have the same session. A new one for each publication would be a
        new catalog each time, with its connections."""
        self._context, self.step, self.name, self._shared = context, step.name, options.table, shared
        self._secrets = Secrets(step.name)
        self._catalog = options.table.split(".")[0]
        self._properties = {name: str(value) for name, value in self._secrets.values(options.catalog).items()}
        if self._properties and not {"type", "catalog-impl"} & self._properties.keys():
            raise OptionsRefused(f"the catalog of {step.name!r} needs a type, such as hadoop, hive or rest")
        self._spark: SparkSession | None = None

    @property
    def session(self) -> SparkSession:
        """With the catalog known to it. Raises Refused where there is no JVM, or no Iceberg in it."""
        if self._spark is None:
            self._spark = self._shared_session() if self._shared else self._with_catalog(self._context.session())
        return self._spark

    def _shared_session(self) -> SparkSession:
        key = (self._catalog, *sorted(self._properties.items()))
        with SHARING:
            known = SHARED.get(key)
            if known is None or not is_current(known):
                for gone in [each for each, session in SHARED.items() if not is_current(session)]:
                    del SHARED[gone]  # of a JVM that has died
                known = SHARED[key] = self._with_catalog(self._context.session())
            return known

    def _with_catalog(self, session: SparkSession) -> SparkSession:
        if not hasattr(session, "_jvm"):
            raise Refused(f"{self.step!r} needs Spark's JVM under the worker: Iceberg does not work by Spark Connect")
        session.conf.set(*BY_NAME)
        if self._properties:
            session.conf.set(f"spark.sql.catalog.{self._catalog}", CATALOG)
        for name, value in {**UNCACHED, **self._properties}.items() if self._properties else ():
            session.conf.set(f"spark.sql.catalog.{self._catalog}.{name}", value)
        return session

    @property
    def jvm(self) -> Java:
        """For calls on this thread: Iceberg asks for the thread's session."""
        session: Any = self.session
        session._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
        return session._jvm

    def table(self) -> Java | None:
        """As it is now; None where there is none. Raises Refused."""
        session: Any = self.session
        with self.telling(f"loading {self.name}"):
            if not session.catalog.tableExists(self.name):
                return None
            found = self.jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, self.name)
            found.refresh()
            return found

    def must(self) -> Java:
        found = self.table()
        if found is None:
            raise Refused(f"{self.step!r}: there is no table {self.name}", lasting=False)
        return found

    @contextlib.contextmanager
    def telling(self, doing: str) -> Iterator[None]:
        """Errors of the JVM in plain words."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            yield
        except Py4JJavaError as error:
            thrown = error.java_exception
            raise self._told(doing, f"{thrown.getClass().getSimpleName()}: {thrown.getMessage()}") from error
        except PySparkException as error:
            raise self._told(doing, str(error)) from error

    def _told(self, doing: str, said: str) -> Refused:
        words = self._secrets.hide(re.sub(r"\s+", " ", said.partition("\tat ")[0]))[:500]
        return Refused(f"Iceberg refused {self.step!r}, {doing}: {words}", lasting=False)

    # Files without a commit ------------------------------------------------------------------------------------------

    def write_apart(self, frame: DataFrame, table: Java, folder: str, options: Mapping[str, str]) -> list[Java]:
        """The frame's rows as data files below the folder, which no snapshot knows."""
        never_committed = table.newTransaction()
        never_committed.updateProperties().set(DATA_PATH, folder).commit()
        apart, name, spark = never_committed.table(), uuid.uuid4().hex, self.jvm.org.apache.iceberg.spark
        own: Any = frame.sparkSession
        own.conf.set(*BY_NAME)
        self.jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(own._jsparkSession)
        coordinator, known = spark.FileRewriteCoordinator.get(), spark.SparkTableCache.get()
        known.add(name, apart)
        try:
            writer = frame.write.format("iceberg").options(**{"distribution-mode": "none", **options})
            writer.option("rewritten-file-scan-task-set-id", name).mode("append").save(name)
            return list(coordinator.fetchNewFiles(apart, name))
        finally:
            known.remove(name)
            coordinator.clearRewrite(apart, name)

    def described(self, table: Java, files: Sequence[Java]) -> list[str]:
        """As JSON, for any later process of this version of Iceberg."""
        parser, specs = self.jvm.org.apache.iceberg.ContentFileParser, table.specs()
        return [parser.toJson(file, specs.get(file.specId())) for file in files]

    def files_of(self, table: Java, described: Sequence[str]) -> list[Java]:
        iceberg = self.jvm.org.apache.iceberg
        mapper, specs = iceberg.util.JsonUtil.mapper(), table.specs()
        return [iceberg.ContentFileParser.fromJson(mapper.readTree(each), specs) for each in described]

    # Snapshots -------------------------------------------------------------------------------------------------------

    def ancestors(self, table: Java) -> Iterator[Java]:
        """The current snapshot and those before it, as far as they are kept."""
        found = self.jvm.org.apache.iceberg.util.SnapshotUtil.currentAncestors(table).iterator()
        while found.hasNext():
            yield found.next()

    def is_published(self, table: Java, identity: str) -> bool:
        return any(identity_in(snapshot) == identity for snapshot in self.ancestors(table))

    def commit(self, update: Java, identity: str) -> bool:
        """False when the identity is there already: whoever is quicker, one lands. Raises Refused."""
        from pyspark import java_gateway

        session: Any = self.session
        callbacks: Any = java_gateway
        callbacks.ensure_callback_server_started(session.sparkContext._gateway)
        only_once = OnlyOnce(identity)
        try:
            with self.telling(f"committing to {self.name}"):
                update.set(IDENTITY, identity).validateWith(only_once).commit()
        except Refused as refused:
            if only_once.is_there:
                return False
            # Iceberg's word for what others have done to the files meanwhile: it does not pass.
            raise Refused(str(refused), lasting="ValidationException" in str(refused)) from refused
        return True

    # Small files beside the data -------------------------------------------------------------------------------------

    def write_text(self, table: Java, path: str, text: str) -> None:
        stream = table.io().newOutputFile(path).createOrOverwrite()
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        sync_local([path])

    def read_text(self, table: Java, path: str) -> str | None:
        """None where there is none."""
        file = table.io().newInputFile(path)
        if not file.exists():
            return None
        with self.telling(f"reading {path}"):
            stream = file.newStream()
            try:
                return str(self.jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

    def list_below(self, table: Java, folder: str) -> list[str]:
        if not is_local(folder) or os.path.isdir(plain(folder)):  # noqa: PTH112  as text, to be compared
            found, paths = table.io().listPrefix(f"{folder}/").iterator(), []
            while found.hasNext():
                paths.append(str(found.next().location()))
            return paths
        return []

    def delete_below(self, table: Java, folder: str) -> None:
        table.io().deletePrefix(f"{folder}/" if not is_local(folder) else folder)


class OnlyOnce:
    """Refuses a commit whose identity is among the snapshots that it would follow. Called from Java."""

    def __init__(self, identity: str) -> None:
        self._identity, self.is_there = identity, False

    def validate(self, snapshots: Java) -> bool:
        each = snapshots.iterator()
        while each.hasNext():
            if identity_in(each.next()) == self._identity:
                self.is_there = True
                return False
        return True

    def errorMessage(self) -> str:
        return f"{self._identity} is published already"

    class Java:
        implements = ("org.apache.iceberg.SnapshotAncestryValidator",)


def is_current(session: SparkSession) -> bool:
    from pyspark import SparkContext

    context: Any = SparkContext
    return session.sparkContext is context._active_spark_context


def identity_in(snapshot: Java) -> str | None:
    found = snapshot.summary().get(IDENTITY)
    return None if found is None else str(found)


def is_local(path: str) -> bool:
    return path.startswith(("/", "file:"))


def plain(path: str) -> str:
    """Without the scheme, to be compared: Hadoop's lists have file:/x for what the table calls /x."""
    return re.sub(r"^file:/*", "/", path)


def sync_local(paths: Sequence[str]) -> None:
    """On a file system, what is written is durable only then. Stores of objects need nothing of it."""
    local = [plain(path) for path in paths if is_local(path)]
    for path in {*local, *(os.path.dirname(path) for path in local)}:  # noqa: PTH120
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
