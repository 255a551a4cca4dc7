"""The source `format`: any batch format of Spark by ranges of a key, each row once, from any position."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pytest

from tests.connectors import parts
from workers.plan import OptionsRefused
from workers.spark.api import Refused, Unservable
from workers.spark.format_source import FormatSource

pytestmark = parts.SPARK_SOCKETS
Make = Callable[..., FormatSource]
DAY = datetime.date(2026, 1, 1)


def write(folder: Path, name: str, ids: list[int | None]) -> None:
    folder.mkdir(exist_ok=True)
    days = [None if i is None else DAY + datetime.timedelta(i) for i in ids]
    table = pa.table({"id": pa.array(ids, pa.int64()), "day": pa.array(days, pa.date32())})
    orc.write_table(table, folder / f"{name}.orc")


@pytest.fixture
def make(a_context: parts.ContextMaker, tmp_path: Path) -> Make:
    context = a_context()

    def new(share: int = 0, shares: int = 1, **options: Any) -> FormatSource:
        given = {"format": "orc", "path": str(tmp_path / "in"), "key_column": "id", **options}
        return FormatSource(context, parts.a_step("format", **given), share, shares)

    return new


def test_every_row_once_from_every_position(make: Make, tmp_path: Path) -> None:
    write(tmp_path / "in", "a", [*range(-5, 30), 7, 7, 100])
    everything = Counter([*range(-5, 30), 7, 7, 100])
    read: parts.Read = lambda frame: [row.id for row in frame.collect()]  # noqa: E731
    assert parts.assert_remaining_from_every_position(make, 12, read) == everything
    shared = [make(share, 2, key_column="day") for share in (0, 1)]
    got = [[row for _, rows in parts.read_on(each, each.begin(b"", 0), 30, read) for row in rows] for each in shared]
    assert all(got)
    assert Counter(got[0]) + Counter(got[1]) == everything


def test_a_continuous_source_goes_on_by_growing_keys(make: Make, tmp_path: Path) -> None:
    read: parts.Read = lambda frame: [row.id for row in frame.collect()]  # noqa: E731
    write(tmp_path / "in", "a", [])
    source = make(continuous=True)
    position = source.begin(b"", 0)
    assert source.next_slice(position, 10) is None
    write(tmp_path / "in", "b", [1, 2, 3])
    again = make(continuous=True)
    slices = parts.read_on(again, again.begin(position, 1), 100, read)
    assert [row for _, rows in slices for row in rows] == [1, 2, 3]
    assert not again.at_end(slices[-1][0])
    write(tmp_path / "in", "c", [4])
    last = make(continuous=True)
    assert parts.read_on(last, last.begin(slices[-1][0], 2), 100, read)[0][1] == [4]


def test_Z3_rows_that_are_gone_and_what_can_not_be_read(make: Make, tmp_path: Path) -> None:
    write(tmp_path / "in", "a", [1, 2])
    write(tmp_path / "in", "b", [3])
    begun = make().begin(b"", 0)
    (tmp_path / "in" / "b.orc").unlink()
    with pytest.raises(Unservable, match="the highest id is 2 now"):
        make().begin(begun, 4)
    with pytest.raises(Refused, match="has no column no"):
        make(key_column="no").begin(b"", 0)
    with pytest.raises(Refused, match="can't be read as nothing-known"):
        make(format="nothing-known").begin(b"", 0)
    write(tmp_path / "in", "c", [None])
    with pytest.raises(Refused, match="is null in 1 rows"):
        make().begin(b"", 0)
    with pytest.raises(OptionsRefused, match="path twice"):
        make(options={"path": "x"})
