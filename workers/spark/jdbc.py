"""Databases by the JDBC drivers of Spark's JVM: connections, statements, and what differs from database to database.

Errors are told with the database's own words, without secrets, and say whether trying again makes sense.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workers.plan import Step
from workers.secrets import Secrets
from workers.spark.api import Context, Refused
from workers.spark.part_options import JdbcOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_S = 10
# SQLSTATE classes: data that can't be (22), constraints (23), logins (28), what is not there or not allowed (42).
LASTING = ("22", "23", "28", "3D", "3F", "42")


@dataclass(frozen=True)
class Dialect:
    """What differs. The standard's words are the default."""

    quote: str = '"'
    bigint: str = "BIGINT"
    limits: bool = False  # LIMIT … OFFSET … instead of the standard's OFFSET … FETCH
    upsert: str = ""  # what follows an INSERT, with {keys} and {sets}
    new: str = "excluded.{0}"  # the value that was to be inserted
    properties: tuple[tuple[str, str], ...] = ()
    patience: str = ""  # how long a transaction waits for locks

    def quoted(self, name: str) -> str:
        return f"{self.quote}{name.replace(self.quote, self.quote * 2)}{self.quote}"

    def nth(self, count: int) -> str:
        """The row behind so many others."""
        return f"LIMIT 1 OFFSET {count}" if self.limits else f"OFFSET {count} ROWS FETCH NEXT 1 ROWS ONLY"

    def upserting(self, keys: Sequence[str], columns: Sequence[str]) -> str:
        others = [self.quoted(name) for name in columns if name not in keys] or [self.quoted(keys[0])]
        sets = ", ".join(f"{name} = {self.new.format(name)}" for name in others)
        return self.upsert.format(keys=", ".join(map(self.quoted, keys)), sets=sets)


ON_CONFLICT = "ON CONFLICT ({keys}) DO UPDATE SET {sets}"
ON_DUPLICATE = Dialect("`", "SIGNED", True, "ON DUPLICATE KEY UPDATE {sets}", "VALUES({0})")
DIALECTS = {
    # Many rows in one statement; and text goes into columns of any type that the database makes of it.
    "postgresql": Dialect(
        limits=True,
        upsert=ON_CONFLICT,
        properties=(("reWriteBatchedInserts", "true"), ("stringtype", "unspecified")),
        patience="SET LOCAL lock_timeout = '20s'",
    ),
    "sqlite": Dialect(limits=True, upsert=ON_CONFLICT),
    "mysql": ON_DUPLICATE,
    "mariadb": ON_DUPLICATE,
}


def dialect_of(url: str) -> Dialect:
    return DIALECTS.get(url.split(":")[1].lower(), Dialect())


class DatabaseRefused(Refused):
    """A statement that the database did not take, with its SQLSTATE."""

    def __init__(self, reason: str, state: str, *, lasting: bool) -> None:
        super().__init__(reason, lasting=lasting)
        self.state = state


class Database:
    """One step's database. For one thread."""

    def __init__(self, context: Context, step: Step, options: JdbcOptions) -> None:
        self._context, self._step, self._options = context, step.name, options
        self._secrets = Secrets(step.name)
        self.dialect = dialect_of(options.url)
        self._properties = {
            **dict(self.dialect.properties),
            **{name: str(value) for name, value in self._secrets.values(options.properties).items()},
        }
        if options.user:
            self._properties["user"] = self._secrets.text(options.user)
        if options.password is not None:
            self._properties["password"] = self._secrets.text(options.password)
        self._spark: SparkSession | None = None

    @property
    def session(self) -> SparkSession:
        if self._spark is None:
            self._spark = self._context.session()
            if not hasattr(self._spark, "_jvm"):
                raise Refused(f"{self._step!r} needs Spark's JVM under the worker: JDBC does not work by Spark Connect")
        return self._spark

    @property
    def spark_options(self) -> dict[str, str]:
        """For Spark's own readers and writers."""
        driver = {"driver": self._options.driver} if self._options.driver else {}
        return {**self._properties, **driver, "url": self._options.url}

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Rolled back at the end, unless it was committed. Raises DatabaseRefused."""
        jvm: Any = self.session._jvm
        with self.telling("connecting"):
            if self._options.driver:
                jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry.register(self._options.driver)
            given = jvm.java.util.Properties()
            for name, value in self._properties.items():
                given.setProperty(name, value)
            jvm.java.sql.DriverManager.setLoginTimeout(CONNECT_S)
            connection = jvm.java.sql.DriverManager.getConnection(self._options.url, given)
        try:
            connection.setAutoCommit(False)
            yield Transaction(self, connection)
        finally:
            # What was not committed goes with it. Should that fail, the connection is broken, and it goes as well.
            with contextlib.suppress(Exception):
                connection.rollback()
            with contextlib.suppress(Exception):
                connection.close()

    @contextlib.contextmanager
    def telling(self, doing: str) -> Iterator[None]:
        """Errors of the JVM in plain words."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors.exceptions.captured import CapturedException

        try:
            yield
        except Py4JJavaError as error:
            raise self._told(doing, error.java_exception) from error
        except CapturedException as error:
            raise self._told(doing, error._origin, str(error)) from error

    def _told(self, doing: str, thrown: Any, said: str = "") -> DatabaseRefused:
        state = ""
        while thrown is not None:
            name = thrown.getClass().getName()
            said = f"{name.rpartition('.')[2]}: {thrown.getMessage()}"
            if "sql" in name.lower() and hasattr(thrown, "getSQLState"):
                with contextlib.suppress(Exception):
                    state = thrown.getSQLState() or ""
            if state:
                break
            thrown = thrown.getCause()
        words = self._secrets.hide(re.sub(r"\s+", " ", said))[:500]
        lasting = state[:2] in LASTING or "No suitable driver" in said
        reason = f"the database of {self._step!r} refused, {doing}: {words}{f' (SQLSTATE {state})' if state else ''}"
        return DatabaseRefused(reason, state, lasting=lasting)


class Transaction:
    """Statements on one connection."""

    def __init__(self, database: Database, connection: Any) -> None:
        self._database, self._connection = database, connection

    def rows(self, sql: str, *given: str | int) -> list[tuple[str | None, ...]]:
        """All values as text."""
        with self._database.telling(f"asked {sql}"), self._prepared(sql, given) as statement:
            found, rows = statement.executeQuery(), []
            width = found.getMetaData().getColumnCount()
            while found.next():
                rows.append(tuple(found.getString(index + 1) for index in range(width)))
            return rows

    def one(self, sql: str, *given: str | int) -> tuple[str | None, ...] | None:
        return next(iter(self.rows(sql, *given)), None)

    def run(self, sql: str, *given: str | int) -> int:
        """How many rows it changed."""
        with self._database.telling(f"told {sql}"), self._prepared(sql, given) as statement:
            return int(statement.executeUpdate())

    def commit(self) -> None:
        with self._database.telling("committing"):
            self._connection.commit()

    def column_type(self, sql: str) -> int:
        """Of the first column, a number of java.sql.Types."""
        with self._database.telling(f"asked {sql}"), self._prepared(sql, ()) as statement:
            return int(statement.executeQuery().getMetaData().getColumnType(1))

    def columns(self, sql: str) -> list[str]:
        """The names of what a query gives."""
        with self._database.telling(f"asked {sql}"), self._prepared(sql, ()) as statement:
            about = statement.executeQuery().getMetaData()
            return [str(about.getColumnLabel(index + 1)) for index in range(about.getColumnCount())]

    def tables(self, schema: str, pattern: str) -> list[str]:
        """Names of tables like the pattern, in a schema or in all."""
        with self._database.telling("listing tables"):
            about = self._connection.getMetaData()
            found = about.getTables(self._connection.getCatalog(), schema or None, pattern, None)
            names = []
            while found.next():
                names.append(str(found.getString("TABLE_NAME")))
            found.close()
            return names

    @contextlib.contextmanager
    def _prepared(self, sql: str, given: Sequence[str | int]) -> Iterator[Any]:
        statement = self._connection.prepareStatement(sql)
        try:
            for index, value in enumerate(given):
                statement.setObject(index + 1, value)
            yield statement
        finally:
            statement.close()
