"""The sink `iceberg` on a real table: one snapshot for each checkpoint, however often and by however many."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

from tests.connectors import parts
from workers.plan import OptionsRefused
from workers.spark.api import Refused
from workers.spark.iceberg import IDENTITY
from workers.spark.iceberg_sink import IcebergSink

pytestmark = parts.SPARK_SOCKETS
Make = Callable[..., IcebergSink]
Rows = Callable[..., DataFrame]


@pytest.fixture
def make(a_context: parts.ContextMaker, tmp_path: Path) -> Make:
    def new(table: str = "c.db.t", incarnation: int = 1, **options: Any) -> IcebergSink:
        catalog = {"type": "hadoop", "warehouse": str(tmp_path / "warehouse")}
        step = parts.a_step("iceberg", "out", **{"table": table, "catalog": catalog, **options})
        return IcebergSink(a_context(), step, "job", incarnation)

    return new


@pytest.fixture
def rows(a_context: parts.ContextMaker) -> Rows:
    session = a_context().session()
    return lambda start, stop: session.range(start, stop, 1, 2).selectExpr(
        "id", "concat('n', id) name", "int(id % 2) k"
    )


def prepared(sink: IcebergSink, rows: Rows, *, fresh: bool = True) -> IcebergSink:
    sink.prepare(fresh=fresh)
    sink.check(rows(0, 1).schema)
    return sink


class Table:
    """Read by its metadata and pyarrow, without Spark or Iceberg's library."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def metadata(self) -> dict[str, Any]:
        version = (self.path / "metadata" / "version-hint.text").read_text()
        found: dict[str, Any] = json.loads((self.path / "metadata" / f"v{version}.metadata.json").read_text())
        return found

    @property
    def identities(self) -> list[str | None]:
        return [snapshot["summary"].get(IDENTITY) for snapshot in self.metadata["snapshots"]]

    def ids(self) -> Counter[int]:
        """The current snapshot's."""
        current = self.metadata.get("current-snapshot-id", -1)
        found: Counter[int] = Counter()
        for snapshot in self.metadata.get("snapshots", ()):
            if snapshot["snapshot-id"] != current:
                continue
            for manifest in avro(snapshot["manifest-list"]):
                for entry in avro(manifest["manifest_path"]):
                    if entry["status"] != 2:
                        file = pq.ParquetFile(entry["data_file"]["file_path"].removeprefix("file:"))
                        found.update(file.read(columns=["id"]).column("id").to_pylist())
        return found

    def files(self) -> list[Path]:
        """Whatever lies below its data, but for checksums of Hadoop's."""
        return [path for path in (self.path / "data").rglob("*") if path.is_file() and path.suffix != ".crc"]


def avro(path: str) -> list[Any]:
    with Path(path.removeprefix("file:")).open("rb") as file:
        return list(fastavro.reader(file))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "warehouse" / "db" / "t")


def test_one_snapshot_for_a_checkpoint_whoever_publishes_it(make: Make, rows: Rows, table: Table) -> None:
    sink = prepared(make(partition_by=["k"]), rows)
    pieces = [*sink.stage(rows(0, 50), parts.who(0), -1), *sink.stage(rows(50, 80), parts.who(1), -1)]
    lost = sink.stage(rows(0, 50), parts.who(0, attempt=2), -1)
    assert not sink.stage(rows(0, 0), parts.who(1), 0)
    assert [piece.rows for piece in (*pieces, *lost)] == [50, 30, 50]
    assert not table.ids()
    commit = parts.a_commit(1, pieces)
    assert parts.publish_by_many(make, commit) == [80] * 4
    assert make().publish(commit, parts.yes) == 80, "and again, as after a crash before the report"
    assert table.ids() == Counter(range(80))
    (identity,) = table.identities
    assert identity is not None
    assert identity.startswith("job/1/out/0/1/")
    assert make().publish(parts.a_commit(2, []), parts.yes) == 0
    assert len(table.identities) == 1
    assert make().remove() == 1, "the piece of the attempt that was lost"
    assert make().remove() == 0
    assert table.ids() == Counter(range(80)), "what is published stays"
    assert all(path.suffix == ".parquet" for path in table.files())
    assert sum(pq.read_metadata(path).num_rows for path in table.files()) == 80


def test_O4_a_crash_after_the_commit_is_found_by_its_identity(
    make: Make, rows: Rows, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = prepared(make(), rows)
    commit = parts.a_commit(1, sink.stage(rows(0, 10), parts.who(), -1))

    def die(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sink._iceberg, "write_text", die)  # the next step after the commit
    with pytest.raises(KeyboardInterrupt):
        sink.publish(commit, parts.yes)
    assert table.ids() == Counter(range(10))
    other = prepared(make(), rows, fresh=False)
    later = other.stage(rows(10, 20), parts.who(), -1)
    other.publish(parts.a_commit(2, later), parts.yes)  # somebody else's snapshot on top
    assert make().publish(commit, parts.yes) == 10
    assert table.ids() == Counter(range(20))


def test_O4_removal_asks_the_table_first(make: Make, rows: Rows, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Committed, and nobody came to say so: the piece looks like one that was never published."""
    sink = prepared(make(), rows)
    commit = parts.a_commit(1, sink.stage(rows(0, 10), parts.who(), -1))
    found = sink._iceberg.must()
    listed = sink._listed(found, commit)
    assert listed
    assert sink._iceberg.commit(sink._update(found, listed), "job/1/out/0/1/x")
    assert make().remove() == 1
    assert table.ids() == Counter(range(10))


def test_a_lost_lease_commits_nothing_and_a_conflict_is_tried_again(make: Make, rows: Rows, table: Table) -> None:
    sink = prepared(make(), rows)
    commit = parts.a_commit(1, sink.stage(rows(0, 10), parts.who(), -1))
    with pytest.raises(Refused, match="lease") as caught:
        sink.publish(commit, lambda: False)
    assert not caught.value.lasting
    assert not table.ids()

    def meanwhile() -> bool:  # somebody else commits between the look and the commit
        another = make()
        pieces = another.stage(rows(100, 105), parts.who(3), -1)
        return another.publish(parts.a_commit(77, pieces), parts.yes) == 5

    assert sink.publish(commit, meanwhile) == 10
    assert table.ids() == Counter([*range(10), *range(100, 105)])


def test_O3_a_table_that_is_gone_and_staged_files_that_are_gone(make: Make, rows: Rows, table: Table) -> None:
    sink = prepared(make(), rows)
    pieces = sink.stage(rows(0, 10), parts.who(), -1)
    sink.discard(pieces)
    with pytest.raises(Refused, match="staged files are gone") as caught:
        make().publish(parts.a_commit(1, pieces), parts.yes)
    assert caught.value.lasting
    assert not table.identities
    assert not table.files()
    pieces = sink.stage(rows(0, 10), parts.who(), -1)
    hidden = table.path.with_name("hidden")
    table.path.rename(hidden)
    with pytest.raises(Refused, match="no table") as caught:
        make().publish(parts.a_commit(1, pieces), parts.yes)
    assert not caught.value.lasting, "it may come back"
    hidden.rename(table.path)
    assert make().publish(parts.a_commit(1, pieces), parts.yes) == 10
    assert table.ids() == Counter(range(10))


def test_modes(make: Make, rows: Rows, table: Table) -> None:
    sink = prepared(make(), rows)
    sink.publish(parts.a_commit(1, sink.stage(rows(1000, 1005), parts.who(), -1)), parts.yes)
    with pytest.raises(Refused, match="holds rows already"):
        make(mode="error_if_exists").prepare(fresh=True)
    make(mode="error_if_exists").prepare(fresh=False)
    sink = prepared(make(incarnation=2, mode="overwrite"), rows)
    for checkpoint, start in ((1, 0), (2, 10)):
        pieces = sink.stage(rows(start, start + 10), parts.who(incarnation=2), -1)
        sink.publish(parts.a_commit(checkpoint, pieces, incarnation=2), parts.yes)
    assert table.ids() == Counter(range(20)), "only what was there before the first has gone"
    assert sink.remove() == 0
    assert table.ids() == Counter(range(20))


@pytest.mark.parametrize(("select", "says"), [
    ("string(id) AS id, name, k", "id: string cannot be promoted to long"),
    ("id, name, k, k AS more", "more"),
    ("id, name", "the rows have no k"),
])  # fmt: skip
def test_rows_that_do_not_fit_are_told_before_any_moves(
    make: Make, rows: Rows, table: Table, select: str, says: str
) -> None:
    sink = prepared(make(), rows)
    with pytest.raises(Refused, match=says) as caught:
        sink.check(rows(0, 1).selectExpr(*select.split(", ")).schema)
    assert caught.value.lasting
    assert not (table.path / "data").exists()


def test_options_that_are_wrong(make: Make) -> None:
    with pytest.raises(OptionsRefused, match="table"):
        make(table="t")
    with pytest.raises(OptionsRefused, match="needs a type"):
        make(catalog={"warehouse": "x"})
    with pytest.raises(Refused, match="there is no table"):
        make(table="c.db.none", create=False).prepare(fresh=True)
