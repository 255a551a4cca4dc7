"""Frames that are made in Spark's Python processes: what these forget of the archives that they import from."""

from __future__ import annotations

import os
import sys
import zipfile
import zipimport
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.connectors.parts import SPARK_SOCKETS
from workers.spark.arrow_frames import arrow_frame, forget_archives
from workers.spark.engine import SparkEngine

pytestmark = SPARK_SOCKETS
TRIES = 20


def known_archives() -> list[str]:
    return [path for path, finder in sys.path_importer_cache.items() if isinstance(finder, zipimport.zipimporter)]


def test_a_forgotten_archive_is_looked_at_again_by_the_next_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "some.zip"
    with zipfile.ZipFile(archive, "w") as some:
        some.writestr("archived_one.py", "number = 1")
    monkeypatch.syspath_prepend(str(archive))
    import archived_one  # type: ignore[import-not-found]

    assert archived_one.number == 1
    with zipfile.ZipFile(archive, "a") as some:
        some.writestr("archived_two.py", "number = 2")
    forget_archives()
    assert not known_archives()
    import archived_two  # type: ignore[import-not-found]

    assert archived_two.number == 2
    assert str(archive) in known_archives()


def test_a_python_process_of_spark_knows_no_archive_any_more_at_its_second_task(engine: SparkEngine) -> None:
    def read(_: int) -> Iterator[pa.RecordBatch]:
        known = [name for name, finder in sys.path_importer_cache.items() if type(finder).__name__ == "zipimporter"]
        yield pa.RecordBatch.from_pydict({"process": [os.getpid()], "known": [len(known)]})

    session, seen = engine._publishers_session(), set[int]()
    for _ in range(TRIES):
        ((process, known),) = arrow_frame(session, [0], read, "process BIGINT, known BIGINT").collect()
        if process in seen:
            assert known == 0
            return
        seen.add(process)
    pytest.fail(f"no process was used again: {seen}")
