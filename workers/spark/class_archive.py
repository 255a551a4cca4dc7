"""Spark's classes the way the JVM keeps them for a quick start: made once for a Python environment by `make setup`,
used by every local driver after that. Loading and checking some ten thousand classes is half of what a driver does
until its first job is done.

The JVM looks for itself whether an archive fits its class path and its Java, and starts without it when not. Elsewhere
than in one JVM (a cluster, Spark Connect) class paths are others', and none is used.

    python -m workers.spark.class_archive [--quiet]
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from events.errors import DetentError
from events.jars import SPARK_JARS, fetch_jars
from events.java import CRASHED, find_java

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from pyspark.sql import SparkSession

LOG = logging.getLogger(__name__)
QUIET = "-Xlog:cds*=off"  # an archive that does not fit is no news to anybody
BRIEF = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # for a JVM that lives for seconds; the archive is the same
WRITE_LIMIT_S = 180.0


@dataclass(eq=False)
class NoArchive(DetentError):
    """It was not made. Nothing depends on it but the time that Spark takes to start."""

    reason: str

    def message(self) -> str:
        return f"Spark's class archive was not made: {self.reason}. Spark runs without it, and starts more slowly."


def place(jars: Path) -> Path:
    """In the environment, since it is good for the jars there only, and goes with it."""
    import pyspark

    java, spark = find_java(), Path(pyspark.__file__).parent
    parts = (java.executable, java.version, spark, pyspark.__version__, jars)
    key = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
    return Path(sys.prefix) / "share" / "detent" / f"spark.{key}.jsa"


def options(jars: Path | None) -> str:
    """What a driver is started with to use the archive; empty when there is none."""
    if jars is None or not (archive := place(jars)).is_file():
        return ""
    return shlex.join([QUIET, f"-XX:SharedArchiveFile={archive}"])


@contextmanager
def distrusted(jars: Path | None, log: Path) -> Iterator[None]:
    """Where Java crashes at its start, which its log tells, it may have done so over the archive: it goes."""
    try:
        yield
    except Exception:
        crashed = log.exists() and CRASHED in log.read_text(errors="replace")
        if crashed and jars is not None and (archive := place(jars)).is_file():
            LOG.warning("Java crashed at its start: %s is thrown away; `make setup` makes another", archive)
            archive.unlink()
        raise


def make(jars: Path) -> Path:
    """Run a driver for a moment; at its orderly end it writes the classes that it has loaded. Raises NoArchive."""
    from workers.spark.session import JAVA_OPTIONS, SparkSettings, launch

    archive = place(jars)
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="spark.", suffix=".part", dir=archive.parent) as made:
            part, directory = Path(made) / archive.name, Path(made)
            own = {JAVA_OPTIONS: shlex.join([*BRIEF, QUIET, f"-XX:ArchiveClassesAtExit={part}"])}
            session, driver = launch(SparkSettings("archive", directory, "local[2]", own), jars)
            try:
                _use(session, directory / "rows")
                session.stop()
                _end(driver)
            finally:
                driver.kill()
                driver.wait()
            if not part.is_file():
                raise NoArchive("Java has written none")
            part.replace(archive)
    except OSError as error:
        raise NoArchive(str(error)) from error
    return archive


def _use(session: SparkSession, rows: Path) -> None:
    """What about every job does: rows made, changed, written, read again and passed through Python."""
    made = session.newSession().range(1000).selectExpr("id", "id % 7 AS part", "concat('row ', id) AS name")
    for form in ("parquet", "json", "csv"):
        made.write.format(form).save(str(rows / form))
    read = session.read.parquet(str(rows / "parquet"))
    read.createOrReplaceTempView("input")
    session.sql("SELECT part, count(*) AS n, max(name) AS last FROM input GROUP BY part ORDER BY part").collect()
    read.mapInArrow(_through, read.schema).write.parquet(str(rows / "again"))
    session.createDataFrame(read.toArrow()).count()


def _through(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    yield from batches


def _end(driver: subprocess.Popen[bytes]) -> None:
    """It ends by itself when nobody is left to write to it."""
    assert driver.stdin is not None
    driver.stdin.close()
    try:
        driver.wait(WRITE_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise NoArchive(f"Java did not end within {WRITE_LIMIT_S:g} s") from None


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m workers.spark.class_archive",
        description="Make the archive of classes that lets Spark start in half the time, unless it is there.",
    )
    parser.add_argument("--quiet", action="store_true", help="do not print where it is")
    arguments: Any = parser.parse_args()
    try:
        jars = fetch_jars(SPARK_JARS)
        archive = place(jars)
        if not archive.is_file():
            sys.stderr.write("making Spark's class archive (once; about half a minute)\n")
            make(jars)
    except DetentError as error:
        sys.stderr.write(f"{error}\n")
        return 0 if isinstance(error, NoArchive) else 1
    if not arguments.quiet:
        sys.stdout.write(f"{archive}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
