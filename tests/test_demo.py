"""The demo: what it checks, and that rows which do not match fail it. That it works is tested with the documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from detent import demo_spark
from detent.demo_play import RowsDiffer, TrialPlay, compare
from detent.demo_spark import SparkPlay


def test_rows_are_compared_one_by_one() -> None:
    assert compare(Counter(range(10)), range(10)).startswith("10 rows, sum 45: each of the source's is there")


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ([*range(9)], r"of 10 rows 9 arrived; missing \[9\], more than once \[\], never there \[\]"),
        ([*range(10), 3], r"of 10 rows 11 arrived; missing \[\], more than once \[3\]"),
        ([*range(9), 3], r"of 10 rows 10 arrived; missing \[9\], more than once \[3\]"),
        ([*range(11)], r"never there \[10\]"),
    ],
)
def test_rows_that_differ_are_told(found: list[int], says: str) -> None:
    with pytest.raises(RowsDiffer, match=says):
        compare(Counter(found), range(10))


def test_the_trial_reads_what_is_published(tmp_path: Path) -> None:
    play = TrialPlay(tmp_path, rows=4)
    (tmp_path / "out" / ".staging").mkdir(parents=True)
    (tmp_path / "out" / "a").write_text("low 0\nlow 1\n")
    (tmp_path / "out" / "b").write_text("high 2\n")
    with pytest.raises(RowsDiffer, match=r"missing \[3\]"):
        play.check()
    (tmp_path / "out" / "c").write_text("high 3\n")
    assert "4 rows" in play.check()


class WithoutKafka(SparkPlay):
    """Its topic is a list."""

    def _topic_orders(self) -> Iterator[dict[str, int]]:
        return iter([{"id": 75 + i, "cents": 1} for i in range(25)])


@pytest.mark.parametrize(
    ("ids", "cents", "says"),
    [
        (range(100), 0, ""),
        (range(99), 0, "99 rows, 99 different"),
        ([*range(99), 5], 0, "100 rows, 99 different"),
        (range(100), 1, "100 rows, 100 different"),
    ],
    ids=["all", "missing", "twice", "worth"],
)
def test_the_table_is_compared_with_the_source(
    ids: range | list[int], cents: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = WithoutKafka(tmp_path, 100)
    play._write_files(75)
    worth = {i: i * 7919 % 10_007 for i in range(75)} | dict.fromkeys(range(75, 100), 1)
    rows = {"id": list(ids), "cents": [worth[i] for i in ids]}
    rows["cents"][0] += cents
    pq.write_table(pa.table(rows), tmp_path / "part-0.parquet")
    monkeypatch.setattr(demo_spark, "iceberg_files", lambda _table: [str(tmp_path / "part-0.parquet")])
    if says:
        with pytest.raises(RowsDiffer, match=says):
            play.check()
    else:
        assert play.check().startswith("100 rows in 1 files, worth ")
