"""The sink `jdbc` on a real PostgreSQL: published once, however often and by however many, or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame

from tests.connectors import parts
from tests.connectors.postgres import PASSWORD, USER, Postgres
from workers.plan import OptionsRefused
from workers.spark.api import Context, Refused
from workers.spark.jdbc_sink import JdbcSink

pytestmark = parts.SPARK_SOCKETS
COLUMNS = "id BIGINT PRIMARY KEY, name TEXT"


@pytest.fixture
def context(a_context: parts.ContextMaker, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setenv("PG_PASSWORD", PASSWORD)
    return a_context()


@pytest.fixture
def make(context: Context, postgres: Postgres) -> Callable[..., JdbcSink]:
    def new(table: str, incarnation: int = 1, **options: Any) -> JdbcSink:
        login = {"url": postgres.url, "user": USER, "password": {"secret": "env:PG_PASSWORD"}}
        return JdbcSink(context, parts.a_step("jdbc", "out", **login, table=table, **options), "job", incarnation)

    return new


@pytest.fixture
def rows(context: Context) -> Callable[..., DataFrame]:
    def some(start: int, stop: int, name: str = "n") -> DataFrame:
        return context.session().range(start, stop, 1, 2).selectExpr("id", f"concat('{name}', id) AS name")

    return some


def ids(postgres: Postgres, table: str) -> Counter[int]:
    return Counter(row[0] for row in postgres.ask(f"SELECT id FROM {table}"))


def test_rows_are_staged_apart_and_published_once(
    postgres: Postgres, make: Callable[..., JdbcSink], rows: Callable[..., DataFrame]
) -> None:
    table = postgres.a_table("id BIGINT, name TEXT")  # no key that would keep doubles out
    sink = make(table)
    sink.prepare(fresh=True)
    sink.check(rows(0, 1).schema)
    pieces = [*sink.stage(rows(0, 50), parts.who(0), -1), *sink.stage(rows(50, 80), parts.who(1), -1)]
    assert not sink.stage(rows(0, 0), parts.who(1), 0), "nothing to stage leaves no piece"
    lost = sink.stage(rows(0, 50), parts.who(0, attempt=2), -1)
    assert [piece.rows for piece in pieces] == [50, 30]
    assert not ids(postgres, table)
    assert len(postgres.staged()) == 3
    commit = parts.a_commit(1, pieces)
    got = parts.publish_by_many(lambda: make(table), commit)
    assert got == [80] * 4
    assert make(table).publish(commit, parts.yes) == 80, "and again, as after a crash before the report"
    assert ids(postgres, table) == Counter(range(80))
    assert make(table).publish(parts.a_commit(2, []), parts.yes) == 0
    assert len(postgres.staged()) == len(lost) == 1
    assert make(table).remove() == 1
    assert make(table).remove() == 0
    assert not postgres.staged()
    assert not postgres.ask("SELECT 1 FROM detent_published WHERE job = 'job'")


def test_O4_a_crash_after_the_commit_is_found_by_the_marker(
    postgres: Postgres, make: Callable[..., JdbcSink], rows: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = postgres.a_table("id BIGINT, name TEXT")
    sink = make(table)
    sink.prepare(fresh=True)
    commit = parts.a_commit(1, sink.stage(rows(0, 10), parts.who(), -1))
    sink._publish(commit, parts.yes)  # and dies before it drops the pieces
    assert len(postgres.staged()) == 1
    assert make(table).publish(commit, parts.yes) == 10
    assert ids(postgres, table) == Counter(range(10))
    assert not postgres.staged()


def test_a_lost_lease_and_a_crash_before_the_commit_leave_nothing(
    postgres: Postgres, make: Callable[..., JdbcSink], rows: Callable[..., DataFrame]
) -> None:
    table = postgres.a_table(COLUMNS)
    sink = make(table)
    sink.prepare(fresh=True)
    commit = parts.a_commit(1, sink.stage(rows(0, 10), parts.who(), -1))
    with pytest.raises(Refused, match="lease") as caught:
        sink.publish(commit, lambda: False)
    assert not caught.value.lasting
    assert not ids(postgres, table)
    assert sink.publish(commit, parts.yes) == 10
    assert ids(postgres, table) == Counter(range(10))


def test_O3_a_lasting_failure_leaves_the_table_untouched_and_staging_removable(
    postgres: Postgres, make: Callable[..., JdbcSink], rows: Callable[..., DataFrame]
) -> None:
    table = postgres.a_table(COLUMNS)
    postgres.ask(f"INSERT INTO {table} VALUES (5, 'there before')")
    sink = make(table)
    sink.prepare(fresh=True)
    commit = parts.a_commit(1, sink.stage(rows(0, 10), parts.who(), -1))
    with pytest.raises(Refused, match=r"duplicate key.*SQLSTATE 23505") as caught:
        sink.publish(commit, parts.yes)
    assert caught.value.lasting
    assert postgres.ask(f"SELECT * FROM {table}") == [(5, "there before")]
    assert sink.remove() == 1
    assert not postgres.staged()
    with pytest.raises(Refused) as caught:  # by who comes late
        make(table).publish(commit, parts.yes)
    assert caught.value.lasting


def test_a_locked_table_is_waited_for_and_tried_again(
    postgres: Postgres, make: Callable[..., JdbcSink], rows: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = postgres.a_table(COLUMNS)
    sink = make(table)
    sink.prepare(fresh=True)
    commit = parts.a_commit(1, sink.stage(rows(0, 10), parts.who(), -1))
    impatient = sink._database.dialect.__class__(patience="SET LOCAL lock_timeout = '100ms'")
    monkeypatch.setattr(sink._database, "dialect", impatient)
    with postgres.connect() as holder:
        holder.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(Refused, match="lock timeout") as caught:
            sink.publish(commit, parts.yes)
        assert not caught.value.lasting
    assert sink.publish(commit, parts.yes) == 10
    assert ids(postgres, table) == Counter(range(10))


def test_upsert_replaces_by_key_and_the_last_row_of_a_key_counts(
    postgres: Postgres, make: Callable[..., JdbcSink], rows: Callable[..., DataFrame]
) -> None:
    table = postgres.a_table(COLUMNS)
    postgres.ask(f"INSERT INTO {table} VALUES (1, 'old'), (99, 'old')")
    sink = make(table, mode="upsert", key_columns=["id"])
    sink.prepare(fresh=True)
    twice = rows(0, 3, "first").union(rows(0, 2, "second"))
    pieces = [*sink.stage(twice, parts.who(), -1), *sink.stage(rows(2, 3, "third"), parts.who(), -1)]
    got = parts.publish_by_many(lambda: make(table, mode="upsert", key_columns=["id"]), parts.a_commit(1, pieces), 3)
    assert got == [6] * 3
    assert postgres.ask(f"SELECT * FROM {table} ORDER BY id") == [
        (0, "second0"), (1, "second1"), (2, "third2"), (99, "old")]  # fmt: skip


def test_modes_and_tables_that_are_made(
    postgres: Postgres, make: Callable[..., JdbcSink], rows: Callable[..., DataFrame]
) -> None:
    table = postgres.a_table(COLUMNS)
    postgres.ask(f"INSERT INTO {table} VALUES (1000, 'x')")
    with pytest.raises(Refused, match="holds rows already"):
        make(table, mode="error_if_exists").prepare(fresh=True)
    make(table, mode="error_if_exists").prepare(fresh=False)
    sink = make(table, incarnation=2, mode="overwrite")
    sink.prepare(fresh=True)
    for checkpoint, start in ((1, 0), (2, 10)):
        pieces = sink.stage(rows(start, start + 10), parts.who(), -1)
        sink.publish(parts.a_commit(checkpoint, pieces, incarnation=2), parts.yes)
    assert ids(postgres, table) == Counter(range(20)), "only what was there before the first has gone"
    with pytest.raises(Refused, match="there is no table"):
        make("not_there").prepare(fresh=True)
    new = f"{table}_new"
    sink = make(new, create=True)
    sink.prepare(fresh=True)
    sink.check(rows(0, 1).schema)
    sink.publish(parts.a_commit(3, sink.stage(rows(0, 5), parts.who(), -1)), parts.yes)
    assert ids(postgres, new) == Counter(range(5))


def test_rows_that_do_not_fit_are_told_before_any_moves(
    postgres: Postgres, make: Callable[..., JdbcSink], rows: Callable[..., DataFrame]
) -> None:
    table = postgres.a_table("id TEXT, other INT")
    sink = make(table)
    sink.prepare(fresh=True)
    with pytest.raises(Refused, match="the table has no column name; id is bigint, not string") as caught:
        sink.check(rows(0, 1).schema)
    assert caught.value.lasting
    assert not postgres.staged()


def test_options_and_logins_that_are_wrong(
    postgres: Postgres, make: Callable[..., JdbcSink], context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionsRefused, match="key_columns are for mode upsert"):
        make("t", mode="upsert")
    with pytest.raises(OptionsRefused, match="url"):
        JdbcSink(context, parts.a_step("jdbc", url="postgres://x", table="t"), "job", 1)
    monkeypatch.setenv("PG_PASSWORD", "wrong-and-secret")
    with pytest.raises(Refused, match="password authentication failed") as caught:
        make("t").prepare(fresh=True)
    assert caught.value.lasting
    assert "wrong-and-secret" not in str(caught.value)
    monkeypatch.delenv("PG_PASSWORD")
    with pytest.raises(OptionsRefused, match="env:PG_PASSWORD"):
        make("t")
