"""Optimizing an Iceberg table: the same rows in fewer files, once, or the table untouched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.connectors import parts
from tests.connectors.test_iceberg_sink import Table
from tests.connectors.test_iceberg_source import Writer
from workers.spark.api import Context, Piece, Refused, Unservable
from workers.spark.iceberg_compaction import CompactionSink, CompactionSource

pytestmark = parts.SPARK_SOCKETS


class Optimizer:
    def __init__(self, context: Callable[[], Context], warehouse: Path) -> None:
        self._context = context
        self._given = {"table": "c.db.t", "catalog": {"type": "hadoop", "warehouse": str(warehouse)}}

    def source(self, **options: Any) -> CompactionSource:
        return CompactionSource(self._context(), parts.a_step("iceberg_compaction", **self._given, **options), 0, 1)

    def sink(self) -> CompactionSink:
        return CompactionSink(self._context(), parts.a_step("iceberg_compaction", "out", **self._given), "job", 1)

    def stage(self, sink: CompactionSink, **options: Any) -> list[Piece]:
        """All groups of the table as it is now."""
        source, found = self.source(**options), list[Piece]()
        position = source.begin(b"", 0)
        sink.prepare(fresh=True)
        while (taken := source.next_slice(position, 1)) is not None:
            sink.check(taken.frame.schema)
            found += sink.stage(taken.frame, parts.who(), -1)
            position = taken.after
        assert source.at_end(position)
        source.close()
        return found


@pytest.fixture
def optimizer(a_context: parts.ContextMaker, tmp_path: Path) -> Optimizer:
    return Optimizer(a_context, tmp_path / "warehouse")


@pytest.fixture
def writer(a_context: parts.ContextMaker, tmp_path: Path) -> Writer:
    catalog = {"type": "hadoop", "warehouse": str(tmp_path / "warehouse"), "cache-enabled": "false"}
    return Writer(a_context().session(), catalog)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "warehouse" / "db" / "t")


def test_fewer_files_and_the_same_rows_whoever_publishes(optimizer: Optimizer, writer: Writer, table: Table) -> None:
    writer.sql("ALTER TABLE c.db.t SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read', 'format-version' = '2')")
    for start in (0, 10, 20):
        writer.append(start, start + 10, files=2)
    writer.sql("DELETE FROM c.db.t WHERE id = 3")
    sink = optimizer.sink()
    pieces = optimizer.stage(sink)
    assert sum(piece.rows for piece in pieces) == 29
    before = len(table.metadata["snapshots"])
    writer.append(30, 40)  # what comes meanwhile stays
    got = parts.publish_by_many(optimizer.sink, parts.a_commit(1, pieces), 3)
    assert got == [29] * 3
    assert optimizer.sink().publish(parts.a_commit(1, pieces), parts.yes) == 29
    assert len(table.metadata["snapshots"]) == before + 2
    last = table.metadata["snapshots"][-1]["summary"]
    assert last["operation"] == "replace"
    assert int(last["deleted-data-files"]) == 6
    assert int(last["added-data-files"]) < 6
    assert table.ids() == Counter([*range(3), *range(4, 40)])
    assert optimizer.sink().remove() == 0
    assert table.ids() == Counter([*range(3), *range(4, 40)])


def test_O3_files_that_others_changed_meanwhile_leave_the_table_untouched(
    optimizer: Optimizer, writer: Writer, table: Table
) -> None:
    writer.append(0, 20, files=3)
    sink = optimizer.sink()
    pieces = optimizer.stage(sink)
    writer.sql("DELETE FROM c.db.t WHERE id < 10")  # replaces files that were read
    there = table.metadata["current-snapshot-id"]
    with pytest.raises(Refused) as caught:
        optimizer.sink().publish(parts.a_commit(1, pieces), parts.yes)
    assert caught.value.lasting
    assert table.metadata["current-snapshot-id"] == there
    assert optimizer.sink().remove() == len(pieces)
    assert table.ids() == Counter(range(10, 20))


def test_groups_positions_and_refusals(optimizer: Optimizer, writer: Writer) -> None:
    assert optimizer.source().at_end(optimizer.source().begin(b"", 0)), "an empty table"
    writer.append(0, 40, files=4)
    source = optimizer.source(target_file_size_bytes=2000, min_input_files=1)
    begun = source.begin(b"", 0)
    slices = parts.read_on(source, begun, 1)
    assert len(slices) > 2
    assert Counter(row[0] for _, rows in slices for row in rows) == Counter(range(40))
    again = optimizer.source(target_file_size_bytes=2000, min_input_files=1)
    assert parts.read_on(again, again.begin(slices[1][0], 2), 1) == slices[1:]
    assert optimizer.source(min_input_files=5).at_end(optimizer.source(min_input_files=5).begin(b"", 0))
    with pytest.raises(Refused, match="nothing tells which files"):
        optimizer.sink().check(writer.session.range(1).schema)
    writer.append(40, 50)
    writer.expire_all_but_the_last()
    with pytest.raises(Unservable, match="the table has the snapshots"):
        optimizer.source().begin(begun, 3)
