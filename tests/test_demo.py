"""The demo: what it checks, and that rows which do not match fail it. That it works is tested with the documents."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from detent.demo_play import RowsDiffer, TrialPlay, compare


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
