"""The source `iceberg` on a real table: a snapshot's rows, then what is appended, each once from any position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.connectors import parts
from workers.plan import OptionsRefused
from workers.spark.api import Refused, Unservable
from workers.spark.iceberg_source import IcebergSource

pytestmark = parts.SPARK_SOCKETS
Make = Callable[..., IcebergSource]


@pytest.fixture
def catalog(tmp_path: Path) -> dict[str, str]:
    return {"type": "hadoop", "warehouse": str(tmp_path / "warehouse"), "cache-enabled": "false"}


@pytest.fixture
def make(a_context: parts.ContextMaker, catalog: dict[str, str]) -> Make:
    context = a_context()

    def new(share: int = 0, shares: int = 1, **options: Any) -> IcebergSource:
        step = parts.a_step("iceberg", **{"table": "c.db.t", "catalog": catalog, **options})
        return IcebergSource(context, step, share, shares)

    return new


class Writer:
    """Whoever writes the table: plain Spark."""

    def __init__(self, session: SparkSession, catalog: dict[str, str]) -> None:
        self.session = session
        session.conf.set("spark.sql.catalog.c", "org.apache.iceberg.spark.SparkCatalog")
        for name, value in catalog.items():
            session.conf.set(f"spark.sql.catalog.c.{name}", value)
        self.sql("CREATE TABLE c.db.t (id BIGINT, name STRING) USING iceberg")

    def sql(self, text: str) -> None:
        self.session.sql(text)

    def append(self, start: int, stop: int, files: int = 1) -> int:
        self.session.range(start, stop, 1, files).selectExpr("id", "concat('n', id) AS name").writeTo("c.db.t").append()
        return self.snapshot()

    def snapshot(self) -> int:
        found = self.session.sql("SELECT snapshot_id FROM c.db.t.snapshots ORDER BY committed_at DESC LIMIT 1").first()
        assert found is not None
        return int(found[0])

    def expire_all_but_the_last(self) -> None:
        self.sql("CALL c.system.expire_snapshots(table => 'db.t', older_than => TIMESTAMP '2999-01-01 00:00:00')")


@pytest.fixture
def writer(a_context: parts.ContextMaker, catalog: dict[str, str]) -> Writer:
    return Writer(a_context().session(), catalog)


def ids(slices: list[tuple[bytes, list[Any]]]) -> Counter[int]:
    return Counter(row[0] for _, rows in slices for row in rows)


def test_every_row_of_a_snapshot_once_from_every_position(make: Make, writer: Writer) -> None:
    writer.append(0, 40, files=3)
    first = writer.append(40, 50)
    found = parts.assert_remaining_from_every_position(lambda: make(columns=["id"]), 1)
    assert found == Counter((i,) for i in range(50))
    source = make()
    begun = source.begin(b"", 0)
    writer.sql("DELETE FROM c.db.t WHERE id < 45")  # a later snapshot is no concern of a bounded job
    slices = parts.read_on(source, begun, 10**9)
    assert ids(slices) == Counter(range(50))
    assert source.at_end(slices[-1][0])
    shared = [make(share, 2, snapshot=first) for share in (0, 1)]
    assert sum((ids(parts.read_on(each, each.begin(b"", 0), 10**9)) for each in shared), Counter()) == Counter(
        range(50)
    )
    now = make()
    assert ids(parts.read_on(now, now.begin(b"", 0), 10**9)) == Counter(range(45, 50)), "deleted rows are not there"
    now.close()


def test_a_continuous_source_goes_on_with_what_is_appended(make: Make, writer: Writer) -> None:
    source = make(continuous=True)
    position = source.begin(b"", 0)
    assert source.next_slice(position, 1) is None
    assert not source.at_end(position)
    writer.append(0, 10)
    first = parts.read_on(source, position, 10**9)
    assert ids(first) == Counter(range(10))
    writer.append(10, 20, files=2)
    writer.append(20, 30)
    again = make(continuous=True)
    second = parts.read_on(again, again.begin(first[-1][0], 1), 1)
    assert len(second) == 4, "a slice for each file"
    assert ids(second) == Counter(range(10, 30))
    middle = make(continuous=True)
    assert ids(parts.read_on(middle, middle.begin(second[1][0], 1), 10**9)) == ids(second[1:])
    latest = make(continuous=True, start="latest")
    assert latest.next_slice(latest.begin(b"", 0), 1) is None
    writer.sql("DELETE FROM c.db.t WHERE id = 3")
    with pytest.raises(Refused, match="rows were changed or removed"):
        again.next_slice(second[-1][0], 1)
    middle.close()
    again.close()


def test_Z3_an_expired_snapshot_is_named_with_those_there_are(make: Make, writer: Writer) -> None:
    old = writer.append(0, 10, files=2)
    source = make()
    (begun, _), (middle, _), _ = parts.read_on(source, source.begin(b"", 0), 1)
    new = writer.append(10, 20)
    writer.expire_all_but_the_last()
    for position in (begun, middle):
        with pytest.raises(Unservable) as caught:
            make().begin(position, 9)
        for fact in ("checkpoint 9", str(old), f"the table has the snapshots {new} now"):
            assert fact in str(caught.value)
    with pytest.raises(Refused, match=f"has no snapshot {old}"):
        make(snapshot=old).begin(b"", 0)
    with pytest.raises(Unservable, match="no position"):
        make().begin(b"[]", 9)
    writer.sql("DROP TABLE c.db.t")
    with pytest.raises(Unservable, match="there is no table"):
        make().begin(begun, 9)
    with pytest.raises(OptionsRefused, match="must read the same snapshot"):
        make(0, 2)
    source.close()
