"""The source `files`: each file once, whatever comes, goes or changes meanwhile."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.connectors.parts import SPARK_SOCKETS
from tests.logs import until
from tests.spark_parts import Hand, hand, ids, job, sink, source
from workers import happenings as h
from workers.spark import listing
from workers.spark.engine import SparkEngine
from workers.spark.listing import Continuous, File, Listing

pytestmark = SPARK_SOCKETS


def write(path: Path, first: int, count: int = 10, **columns: Any) -> Path:
    """Aside, then renamed: files appear whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}")
    pq.write_table(pa.table({"id": range(first, first + count)} | columns), aside)
    return aside.rename(path)


def reader(engine: SparkEngine, path: Path, out: Path, *, parallelism: int = 1, **options: Any) -> Hand:
    return hand(engine, job([source(kind="files", parallelism=parallelism, path=str(path), **options)], [sink(out)]))


def test_every_file_once_by_several_tasks(engine: SparkEngine, tmp_path: Path) -> None:
    data, out = tmp_path / "data [1]{x}", tmp_path / "out"
    for number in range(12):
        write(data / f"day={number % 3}" / f"f{number:02}.parquet", number * 10)
    (data / "_SUCCESS").touch()
    write(data / ".hidden.parquet", 900)
    several = reader(engine, data, out, parallelism=3)
    staged = [several.run(several.who(task)) for task in range(3)]
    several.publish(*(piece for each in staged for piece in each.pieces))
    assert ids(out) == Counter(range(120))
    assert ids(out, "day") == Counter({0: 40, 1: 40, 2: 40})
    assert sum(each.rows for each in staged) == 120


@pytest.mark.parametrize(
    ("format_", "content", "options", "expected"),
    [
        ("csv", "id,name\n1,a\n2,\"b,c\"\n", {"reader": {"header": True}, "schema": "id LONG, name STRING"}, [1, 2]),
        ("json", '{"id": 3}\n{"id": 4}\n', {}, [3, 4]),
    ],
)  # fmt: skip
def test_text_formats(
    engine: SparkEngine, tmp_path: Path, format_: str, content: str, options: dict[str, Any], expected: list[int]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / f"data/a.{format_}").write_text(content)
    (tmp_path / "data/other.xyz").write_text("nothing to see")
    read = reader(
        engine, tmp_path / "data", tmp_path / "out", format=format_, pattern=f"*.{format_}", **options
    )  # fmt: skip
    staged = read.run(read.who())
    read.publish(*staged.pieces)
    assert ids(tmp_path / "out") == Counter(expected)


def test_lines_of_text_from_one_file(engine: SparkEngine, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    read = reader(engine, tmp_path / "a.txt", tmp_path / "out", format="text")
    staged = read.run(read.who())
    read.publish(*staged.pieces)
    assert ids(tmp_path / "out", "value") == Counter(["one", "two"])


def test_new_files_are_found_and_late_ones_too(engine: SparkEngine, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    write(data / "a.parquet", 0)
    following = reader(engine, data, out, continuous=True, poll_ms=20)
    first = following.who()
    following.start(first)
    until(lambda: any(it.rows == 10 for it in following.heard.of(first, h.Progressed)), "the first file")
    one = following.stage(first, 1)
    write(data / "b.parquet", 10)
    until(lambda: any(it.rows == 20 for it in following.heard.of(first, h.Progressed)), "the second file")
    following.stop(first)  # and what it has read since is read again
    late = write(data / "0-late.parquet", 20)
    before = (data / "a.parquet").stat().st_mtime - 30
    os.utime(late, (before, before))
    second = following.who(attempt=2)
    following.start(second, one.position, 1)
    until(lambda: any(it.rows == 30 for it in following.heard.of(second, h.Progressed)), "all files")
    two = following.stage(second, 2)
    following.publish(*one.pieces, checkpoint=1)
    following.publish(*two.pieces, checkpoint=2)
    following.stop(second)
    assert ids(out) == Counter(range(30))
    assert not following.heard.of(None, h.Exhausted)


@pytest.mark.parametrize("continuous", [False, True])
def test_a_large_file_is_read_in_parts(engine: SparkEngine, tmp_path: Path, continuous: bool) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    large = data / "day=7/large.parquet"
    large.parent.mkdir(parents=True)
    table = pa.table({"id": range(100, 1100), "text": [f"text {n}" * 5 for n in range(1000)]})
    pq.write_table(table, large, row_group_size=50)
    write(data / "day=8/small.parquet", 0, 100, text=["x"] * 100)
    parts = reader(engine, data, out, part_bytes=2000, continuous=continuous, poll_ms=20)
    first = parts.who()
    parts.start(first)
    until(lambda: any(it.rows > 100 for it in parts.heard.of(first, h.Progressed)), "some rows")
    one = parts.stage(first, 1)
    parts.stop(first)
    second = parts.who(attempt=2)
    parts.start(second, one.position, 1)
    until(lambda: any(it.rows == 1100 for it in parts.heard.of(second, h.Progressed)), "all rows")
    two = parts.stage(second, 2)
    parts.stop(second)
    parts.publish(*one.pieces, checkpoint=1)
    parts.publish(*two.pieces, checkpoint=2)
    assert ids(out) == Counter(range(1100))
    assert ids(out, "day") == Counter({7: 1000, 8: 100})


def half_read(engine: SparkEngine, tmp_path: Path) -> tuple[Hand, bytes]:
    """A position with files d, e and f still to read."""
    data = tmp_path / "data"
    for number, name in enumerate("abc"):
        write(data / f"{name}.parquet", number * 10)
    first = listing.first_of(Listing(data, "*", 0, 1).files())
    for number, name in enumerate("def"):
        write(data / f"{name}.parquet", 30 + number * 10)
    files = sorted(Listing(data, "*", 0, 1).files())
    at = listing.ahead(listing.Bounded(max(file.time for file in files), "c.parquet"), files[3:])
    assert at.until >= first.until
    position = json.dumps({"at": {"until": at.until, "after": at.after, "next": at.next, "left": at.left,
                                  "sum": at.sum}, "rows": 30, "bytes_read": 1})  # fmt: skip
    return reader(engine, data, tmp_path / "out"), position.encode()


def test_it_goes_on_after_the_last_file_read(engine: SparkEngine, tmp_path: Path) -> None:
    half, position = half_read(engine, tmp_path)
    (tmp_path / "data/a.parquet").unlink()  # what was read may go
    write(tmp_path / "data/c2.parquet", 900)  # what comes after the start is another run's
    os.utime(tmp_path / "data/c2.parquet", (4e9, 4e9))
    staged = half.run(half.who(), position, 8)
    half.publish(*staged.pieces)
    assert ids(tmp_path / "out") == Counter(range(30, 60))
    assert staged.rows == 60


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        ("gone next", "of the 3 files that were left to read, d.parquet is gone, 2 are there (e.parquet, f.parquet)"),
        ("gone last", "of the 3 files that were left to read, 2 are there (d.parquet, e.parquet)"),
        ("changed", "3 are there (d.parquet, e.parquet, f.parquet), and not as they were"),
        ("all gone", "data is not there any more"),
    ],
)
def test_Z3_files_gone_under_a_checkpoint_fail_the_job_at_once(
    engine: SparkEngine, tmp_path: Path, harm: str, reason: str
) -> None:
    half, position = half_read(engine, tmp_path)
    data = tmp_path / "data"
    if harm == "gone next":
        (data / "d.parquet").unlink()
    elif harm == "gone last":
        (data / "f.parquet").unlink()
    elif harm == "changed":
        write(data / "e.parquet", 7, 3)
        os.utime(data / "e.parquet", (1e9, 1e9))
    else:
        data.rename(tmp_path / "elsewhere")
    crashed = half.crash(half.who(), position, 7)
    assert crashed.lasting
    assert "of checkpoint 7" in crashed.reason
    assert '"after": "c.parquet"' in crashed.reason
    assert reason in crashed.reason
    assert not list((tmp_path / "out").glob("*.parquet"))


@pytest.mark.parametrize("position", [b"12", b'{"at": 5}', b"x", b'{"rows": 1}'])
def test_a_position_of_something_else_is_refused(engine: SparkEngine, tmp_path: Path, position: bytes) -> None:
    write(tmp_path / "data/a.parquet", 0)
    read = reader(engine, tmp_path / "data", tmp_path / "out")
    assert read.crash(read.who(), position, 3).lasting


def test_a_directory_that_is_not_there_is_said(engine: SparkEngine, tmp_path: Path) -> None:
    read = reader(engine, tmp_path / "nowhere", tmp_path / "out")
    crashed = read.crash(read.who())
    assert crashed.lasting
    assert "Correct options.path" in crashed.reason


# Positions, without Spark --------------------------------------------------------------------------------------------

LATE = 5


@given(
    st.lists(st.tuples(st.sampled_from("abcdefghijkl"), st.integers(0, 20)), unique_by=lambda it: it[0], max_size=12),
    st.data(),
)
def test_a_continuous_source_reads_each_file_once_whatever_comes_when(
    arriving: list[tuple[str, int]], data: st.DataObject
) -> None:
    """Files come in any order, none more than LATE older than the newest one read; positions are taken up anew."""
    there: list[File] = []
    read: list[str] = []
    position = Continuous()
    for name, age in arriving:
        newest = max([position.time, *(file.time for file in there)], default=0)
        there.append(File(name, 1, max(position.time - LATE, newest - age % (LATE + 1)) if there else age))
        if data.draw(st.booleans()):
            found = listing.new_since(position, there, LATE)
            taken = found[: data.draw(st.integers(0, len(found)))]
            if taken:
                position = listing.moved_on(position, taken, there, LATE)
                read += [file.name for file in taken]
    while found := listing.new_since(position, there, LATE):
        position = listing.moved_on(position, found[:1], there, LATE)
        read.append(found[0].name)
    assert Counter(read) == Counter(name for name, _ in arriving)


@given(st.integers(1, 5), st.sets(st.text("abc/", min_size=1), max_size=20))
def test_a_file_is_one_tasks_whatever_else_is_there(shares: int, names: set[str]) -> None:
    class Fixed(Listing):
        def all_files(self) -> Any:
            return iter([File(name, 1, 1) for name in names])

    dealt = [file.name for share in range(shares) for file in Fixed(Path("/x"), "*", share, shares).files()]
    assert Counter(dealt) == Counter(names)
