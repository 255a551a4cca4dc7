"""The engine on Spark, in the hand: slices, checkpoints, restarts, transforms, and what it refuses."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.connectors.parts import SPARK_SOCKETS
from tests.logs import until
from tests.spark_parts import Hand, files_in, hand, ids, job, sink, source, transform
from workers import happenings as h
from workers.spark.engine import SparkEngine

pytestmark = SPARK_SOCKETS

# Slices and checkpoints ----------------------------------------------------------------------------------------------


def test_rows_are_read_staged_and_published_once(engine: SparkEngine, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = hand(engine, job([source(rows=200_000, parallelism=2)], [sink(out)]))
    staged = [done.run(done.who(task)) for task in (0, 1)]
    kinds = [type(it) for it in done.heard.all if it.who == done.who(0)]
    assert kinds[0] is h.Started
    assert kinds.index(h.Progressed) < kinds.index(h.Exhausted) < kinds.index(h.Staged)
    assert not files_in(out)
    pieces = [piece for each in staged for piece in each.pieces]
    assert sum(piece.rows for piece in pieces) == sum(each.rows for each in staged) == 200_000
    for _ in range(2):  # publishing twice changes nothing
        assert done.publish(*pieces).rows == 200_000
        assert ids(out) == Counter(range(200_000))
    assert done.remove().removed == 0
    assert not list((out / ".staging").iterdir())


def test_an_attempt_goes_on_from_a_position_and_leaves_no_gap(engine: SparkEngine, tmp_path: Path) -> None:
    out = tmp_path / "out"
    endless = hand(engine, job([source(rows=-1, rate=50_000)], [sink(out)]))
    first = endless.who()
    endless.start(first)
    until(lambda: any(it.rows > 1000 for it in endless.heard.of(first, h.Progressed)), "rows")
    one = endless.stage(first, 1)
    two = endless.stage(first, 2)
    assert two.rows >= one.rows > 1000
    assert isinstance(endless.stop(first), h.Stopped)
    second = endless.who(attempt=2)
    endless.start(second, one.position, 1)  # the second checkpoint was never completed
    until(lambda: any(it.rows > one.rows for it in endless.heard.of(second, h.Progressed)), "more rows")
    again = endless.stage(second, 3)
    endless.stop(second)
    assert endless.publish(*one.pieces, checkpoint=1).rows == one.rows
    endless.publish(*again.pieces, checkpoint=3)
    assert ids(out) == Counter(range(again.rows))
    # What the first attempt has staged for the checkpoint that never was went with the publication after it.
    left = [path.name for path in (out / ".staging").glob("*/0-0-*")]
    assert all(name.startswith("0-0-2-") for name in left)


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_slice_fills_the_cores_and_leaves_them_to_tasks_that_read_as_well(
    engine: SparkEngine, tmp_path: Path, tasks: int
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(40):
        pq.write_table(pa.table({"id": [2 * number, 2 * number + 1]}), tmp_path / "in" / f"{number}.parquet")
    out = tmp_path / "out"
    several = hand(engine, job([source(kind="files", parallelism=tasks, path=str(tmp_path / "in"))], [sink(out)]))
    whos = [several.who(task) for task in range(tasks)]
    for who in whos:
        several.start(who)
    for who in whos:
        several.heard.next(who, h.Exhausted)
    several.publish(*(piece for who in whos for piece in several.stage(who).pieces))
    assert ids(out) == Counter(range(80))
    assert len(files_in(out)) == 2  # Spark has two cores: a file for each


def test_nothing_is_published_without_a_lease(engine: SparkEngine, tmp_path: Path) -> None:
    held = hand(engine, job([source(rows=100)], [sink(tmp_path / "out")]))
    staged = held.run(held.who())
    refused = held.publish(*staged.pieces, lease=False)
    assert isinstance(refused, h.PublishFailed)
    assert not refused.lasting
    assert not files_in(tmp_path / "out")
    assert held.publish(*staged.pieces).rows == 100


def test_output_that_is_gone_can_never_be_published(engine: SparkEngine, tmp_path: Path) -> None:
    lost = hand(engine, job([source(rows=100)], [sink(tmp_path / "out")]))
    staged = lost.run(lost.who())
    for file in (tmp_path / "out/.staging").rglob("*.parquet"):
        file.unlink()
    refused = lost.publish(*staged.pieces)
    assert refused.lasting
    assert "1 staged files are gone" in refused.reason


def test_a_stopped_attempt_leaves_neither_thread_nor_job_nor_pieces(engine: SparkEngine, tmp_path: Path) -> None:
    slow = hand(engine, job([source(rows=-1, columns={"x": "java_method('java.lang.Thread', 'sleep', 20L)"})],
                            [sink(tmp_path / "out")]))  # fmt: skip
    who = slow.who()
    slow.start(who)
    slow.heard.next(who, h.Started)
    loop = engine._loops[who]
    context = until(lambda: loop.session, "a session").sparkContext
    tracker = context._jsc.sc().statusTracker()

    def running() -> list[int]:
        found = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(loop.group)]
        told = [info.get() for info in found if not info.isEmpty()]
        return [info.jobId() for info in told if str(info.status()) == "RUNNING"]

    until(running, "a job")
    assert isinstance(slow.stop(who), h.Stopped)
    until(lambda: not loop.is_alive() and not running(), "its end")
    until(lambda: not list((tmp_path / "out").glob(".staging/*/0-*")), "its pieces to go")


def test_a_stopped_attempt_is_interrupted_until_it_ends(engine: SparkEngine, tmp_path: Path) -> None:
    """The first sleep of a row swallows an interrupt, as Hadoop does while it makes a directory; the second doesn't."""
    sleep = "'java.lang.Thread', 'sleep', 3600000L"
    column = f"concat(coalesce(try_reflect({sleep}), ''), java_method({sleep}))"
    deaf = hand(engine, job([source(rows=-1, columns={"x": column})], [sink(tmp_path / "out")]))
    who = deaf.who()
    deaf.start(who)
    deaf.heard.next(who, h.Started)
    loop = engine._loops[who]
    session = until(lambda: loop.session, "a session")
    threads = session.sparkContext._jvm.java.lang.Thread

    def asleep(task: int) -> bool:
        its = (each for each in threads.getAllStackTraces() if each.getName().endswith(f"(TID {task})"))
        return any(str(each.getState()) == "TIMED_WAITING" for each in its)

    def tasks() -> list[int]:
        return engine._spark.running_tasks(session, loop.group)

    until(lambda: tasks() and all(asleep(each) for each in tasks()), "all its tasks to sleep")
    assert isinstance(deaf.stop(who), h.Stopped)
    assert not tasks()
    assert not list((tmp_path / "out").glob(".staging/*/0-*"))


def test_counters_go_on_after_a_restart(engine: SparkEngine, tmp_path: Path) -> None:
    counted = hand(engine, job([source(rows=1000)], [sink(tmp_path / "out")]))
    staged = counted.run(counted.who())
    again = counted.run(counted.who(attempt=2), staged.position, 2)
    assert (again.rows, again.pieces) == (1000, ())


def test_any_format_of_spark_by_ranges_of_a_column(engine: SparkEngine, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    engine._spark.session(60).range(0, 1000).selectExpr("id", "id % 7 AS seven").write.orc(str(data))
    ranged = source(kind="format", parallelism=2, format="orc", path=str(data), key_column="id")
    read = hand(engine, job([ranged], [sink(out)]))
    first, staged = read.who(1), []
    read.start(first)
    until(lambda: any(it.rows > 100 for it in read.heard.of(first, h.Progressed)), "some rows")
    staged.append(read.stage(first, 1))
    read.stop(first)
    staged.append(read.run(read.who(1, attempt=2), staged[0].position, 2))
    staged.append(read.run(read.who(0)))
    read.publish(*(piece for each in staged for piece in each.pieces))
    assert ids(out) == Counter(range(1000))


# Transforms ----------------------------------------------------------------------------------------------------------


def test_sql_and_python_and_several_sinks(engine: SparkEngine, tmp_path: Path) -> None:
    body = job(
        [source(rows=1000, columns={"name": "concat('n', id % 7)"})],
        [sink(tmp_path / "even", "even"), sink(tmp_path / "all", "in", "marked", name="all")],
        transform("even", "sql", "in", query=["SELECT *, id * 2 AS twice FROM `in`",
                                              "SELECT * FROM previous WHERE id % 2 = 0"]),
        transform("marked", "python", "even", function="tests.spark_functions:marked", arguments={"by": 10_000}),
    )  # fmt: skip
    mixed = hand(engine, body)
    staged = mixed.run(mixed.who())
    mixed.publish(*staged.pieces)
    assert ids(tmp_path / "even") == Counter(range(0, 1000, 2))
    assert ids(tmp_path / "all") == Counter([*range(1000), *range(10_000, 11_000, 2)])
    assert staged.rows == 1000


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (transform("t", "sql", "in", query="SELEC 1"), "can't run its query"),
        (transform("t", "sql", "in", query="SELECT nope FROM input"), "nope"),
        (transform("t", "sql", "in", quer="SELECT 1"), "unknown field"),
        (transform("t", "python", "in", function="os:getcwd"), "worker.allowed_modules"),
        (transform("t", "python", "in", function="tests.spark_functions:nothing"), "nothing"),
        (transform("t", "python", "in", function="tests.spark_functions:wrong"), "not a DataFrame"),
        (transform("t", "magic", "in"), "'magic', which is not known; there are"),
    ],
)
def test_a_transform_that_can_not_be_is_a_lasting_failure(
    engine: SparkEngine, tmp_path: Path, step: dict[str, Any], reason: str
) -> None:
    bad = hand(engine, job([source(rows=10)], [sink(tmp_path / "out", "t")], step))
    crashed = bad.crash(bad.who())
    assert crashed.lasting
    assert reason in crashed.reason


def test_an_error_of_spark_is_said_in_our_logs_only(engine: SparkEngine, capfd: pytest.CaptureFixture[str]) -> None:
    """PySpark's own loggers of query errors write to stderr in another form, and turn pytest's handlers to it."""
    from pyspark.errors import ArithmeticException

    with pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO"):
        engine._spark.session(60).sql("SELECT 1 / 0 AS x").collect()
    assert "DIVIDE_BY_ZERO" not in capfd.readouterr().err
    assert not [name for name in logging.root.manager.loggerDict if name.endswith("QueryContextLogger")]


# Sinks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", ["csv", "json", "parquet"])
def test_files_of_every_format_partitioned(engine: SparkEngine, tmp_path: Path, format_: str) -> None:
    out = tmp_path / "out"
    columns = {"part": "id % 3", "text": "concat('x,\"', id, '\\n')"}
    writer = {"header": True} if format_ == "csv" else {}
    sinks = [sink(out, format=format_, partition_by=["part"], writer=writer)]
    body = job([source(rows=30_000, columns=columns)], sinks)
    written = hand(engine, body)
    staged = written.run(written.who())
    assert sum(piece.rows for piece in staged.pieces) == 30_000
    assert written.publish(*staged.pieces).rows == 30_000
    assert sorted(path.name for path in out.iterdir()) == [".staging", "part=0", "part=1", "part=2"]
    if format_ == "json":
        lines = [json.loads(line) for file in files_in(out, "json") for line in file.read_text().splitlines()]
        assert Counter(line["id"] for line in lines) == Counter(range(30_000))


def test_save_modes(engine: SparkEngine, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def run(mode: str, start: int, name: str = "") -> Hand:
        made = hand(engine, job([source(rows=10, start=start)], [sink(out, mode=mode)]))
        staged = made.run(made.who())
        made.publish(*staged.pieces)
        return made

    run("error_if_exists", 0)
    run("append", 100)
    assert ids(out) == Counter([*range(10), *range(100, 110)])
    refused = hand(engine, job([source(rows=10)], [sink(out, mode="error_if_exists")]))
    crashed = refused.crash(refused.who())
    assert crashed.lasting
    assert "mode is error_if_exists" in crashed.reason
    run("overwrite", 500)
    assert ids(out) == Counter(range(500, 510))


@pytest.mark.parametrize(
    ("columns", "options", "reason"),
    [
        ({"n": "'text'"}, {}, "n is string, not int32"),
        ({"m": "1"}, {}, "m is new; n is missing"),
        ({"n": "1"}, {"partition_by": ["q"]}, "is partitioned by q, but its rows have id, n"),
        ({"n": "array(1)"}, {"format": "csv"}, "csv, which holds no arrays"),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_any_moves(
    engine: SparkEngine, tmp_path: Path, columns: dict[str, str], options: dict[str, Any], reason: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    pq.write_table(pa.table({"id": pa.array([1], pa.int64()), "n": pa.array([1], pa.int32())}), out / "a.parquet")
    unfit = hand(engine, job([source(rows=10, columns=columns)], [sink(out, **options)]))
    crashed = unfit.crash(unfit.who())
    assert crashed.lasting
    assert reason in crashed.reason
    assert not list(out.glob(".staging/*/0-*"))


def test_the_console_shows_what_is_committed(
    engine: SparkEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = hand(engine, job([source(rows=50)], [sink(tmp_path, kind="console", limit=2)]))
    staged = shown.run(shown.who())
    assert "rows" not in capsys.readouterr().out
    assert shown.publish(*staged.pieces).rows == 50
    assert '50 rows\n{"id":0}\n{"id":1}\n' in capsys.readouterr().out
