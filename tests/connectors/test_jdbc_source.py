"""The source `jdbc` on a real PostgreSQL: every row once, from any position, or an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.connectors import parts
from tests.connectors.postgres import PASSWORD, USER, Postgres
from workers.spark.api import Refused, Unservable
from workers.spark.jdbc_source import JdbcSource

pytestmark = parts.SPARK_SOCKETS
Make = Callable[..., JdbcSource]


@pytest.fixture
def make(a_context: parts.ContextMaker, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setenv("PG_PASSWORD", PASSWORD)
    context = a_context()

    def new(table: str, share: int = 0, shares: int = 1, **options: Any) -> JdbcSource:
        login = {"url": postgres.url, "user": USER, "password": {"secret": "env:PG_PASSWORD"}}
        step = parts.a_step("jdbc", **{**login, "table": table, "key_column": "id", **options})
        return JdbcSource(context, step, share, shares)

    return new


def everything(source: JdbcSource, goal: int, position: bytes = b"") -> list[Any]:
    return [row for _, rows in parts.read_on(source, source.begin(position, 0), goal) for row in rows]


def test_every_row_once_from_every_position_and_no_row_of_later(postgres: Postgres, make: Make) -> None:
    table = postgres.a_table("id INT, name TEXT")
    postgres.ask(f"INSERT INTO {table} SELECT i * 3 - 50, 'n' || i FROM generate_series(0, 29) i")
    postgres.ask(f"INSERT INTO {table} SELECT i * 3 - 50, 'twin' FROM generate_series(0, 29) i")  # at slices' ends, too
    found = parts.assert_remaining_from_every_position(lambda: make(table), 21)
    assert found == Counter(postgres.ask(f"SELECT id, name FROM {table}"))
    source = make(table)
    begun = source.begin(b"", 0)
    postgres.ask(f"INSERT INTO {table} VALUES (1000, 'later')")
    slices = parts.read_on(source, begun, 1000)
    assert sum(len(rows) for _, rows in slices) == 60
    assert source.at_end(slices[-1][0])


def test_tasks_share_rows_and_a_continuous_source_goes_on(postgres: Postgres, make: Make) -> None:
    table = postgres.a_table("id BIGINT, name TEXT")
    postgres.ask(f"INSERT INTO {table} SELECT i, 'n' FROM generate_series(-10, 9) i")
    got = [Counter(everything(make(table, share, 3), 4)) for share in range(3)]
    assert sum((Counter(each) for each in got), Counter()) == Counter(postgres.ask(f"SELECT * FROM {table}"))
    source = make(table, continuous=True, columns=["id"], where="id >= 0")
    slices = parts.read_on(source, source.begin(b"", 0), 100)
    position = slices[-1][0]
    assert slices[0][1] == [(i,) for i in range(10)]
    assert not source.at_end(position)
    postgres.ask(f"INSERT INTO {table} VALUES (77, 'new')")
    assert everything(make(table, continuous=True, columns=["id"], where="id >= 0"), 5, position) == [(77,)]


def test_keys_of_other_types_and_an_empty_table(postgres: Postgres, make: Make) -> None:
    table = postgres.a_table("id TEXT, at TIMESTAMP")
    assert everything(make(table), 5) == []
    source = make(table)
    assert source.at_end(source.begin(b"", 0))
    postgres.ask(f"INSERT INTO {table} SELECT 'it''s ' || i, TIMESTAMP '2026-01-01' + i * INTERVAL '1 hour' "
                 "FROM generate_series(0, 9) i")  # fmt: skip
    by_text = everything(make(table), 4)
    by_time = everything(make(table, key_column="at"), 3)
    assert Counter(by_text) == Counter(by_time) == Counter(postgres.ask(f"SELECT * FROM {table}"))
    with pytest.raises(Refused, match="no number to share rows by"):
        make(table, 0, 2).begin(b"", 0)
    shared = [everything(make(table, share, 2, share_by="length(id)"), 4) for share in (0, 1)]
    assert len(shared[0]) + len(shared[1]) == 10


def test_Z3_a_table_that_lost_its_rows_is_named(postgres: Postgres, make: Make) -> None:
    table = postgres.a_table("id INT")
    postgres.ask(f"INSERT INTO {table} SELECT generate_series(1, 20)")
    source = make(table, continuous=True)
    position = parts.read_on(source, source.begin(b"", 0), 100)[-1][0]
    postgres.ask(f"DELETE FROM {table} WHERE id > 7")
    with pytest.raises(Unservable, match=r"checkpoint 12.*the highest id in .* is 7 now"):
        make(table, continuous=True).begin(position, 12)
    postgres.ask(f"TRUNCATE {table}")
    with pytest.raises(Unservable, match="is empty now"):
        make(table, continuous=True).begin(position, 12)
    with pytest.raises(Unservable, match="no position"):
        make(table).begin(b"[1]", 12)


def test_what_can_not_be_read_is_told_at_once(postgres: Postgres, make: Make) -> None:
    table = postgres.a_table("id INT")
    postgres.ask(f"INSERT INTO {table} VALUES (1), (NULL)")
    for given, says in (({"table": "not_there"}, "not_there"), ({"key_column": "no"}, '"no"'), ({}, "is null in some")):
        with pytest.raises(Refused, match=says) as caught:
            make(**{"table": table, **given}).begin(b"", 0)
        assert caught.value.lasting
