"""The archive of Spark's classes: used where it is, missed by nobody where it is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from events.jars import SPARK_JARS, fetch_jars
from events.java import CRASHED
from workers.spark import class_archive, session
from workers.spark.session import LOG_FILE, Spark, SparkSettings

DRIVER = """
import sys
from pathlib import Path
from events.jars import SPARK_JARS, fetch_jars
from workers.spark.session import SparkSettings, launch

directory = Path(sys.argv[1])
told = {"spark.driver.extraJavaOptions": f"-Xlog:class+load:file={directory}/loaded"}
_, driver = launch(SparkSettings("w", directory, "local[1]", told), fetch_jars(SPARK_JARS))
driver.stdin.close()
driver.wait(60)
"""


@pytest.fixture
def jars() -> Path:
    return fetch_jars(SPARK_JARS)


def test_a_driver_has_its_classes_from_the_archive_that_setup_made(jars: Path, tmp_path: Path) -> None:
    assert class_archive.place(jars).is_file(), "make setup"
    done = subprocess.run([sys.executable, "-c", DRIVER, str(tmp_path)], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    loaded = [line for line in (tmp_path / "loaded").read_text().splitlines() if " org.apache.spark." in line]
    shared = [line for line in loaded if "source: shared objects file (top)" in line]
    assert len(loaded) > 1000
    assert len(shared) > len(loaded) / 2  # what is made as it runs is never in it


def test_where_it_can_not_be_written_that_is_said_and_nothing_fails(
    jars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "share").write_text("no directory")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["class_archive"])
    assert class_archive.options(jars) == ""
    assert class_archive.main() == 0
    said = capsys.readouterr().err
    assert "class archive was not made" in said
    assert "Spark runs without it" in said


def test_its_path_may_have_spaces(jars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "my home"))
    archive = class_archive.place(jars)
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert f"'-XX:SharedArchiveFile={archive}'" in class_archive.options(jars)


@pytest.mark.parametrize("crashed", [True, False])
def test_one_that_may_have_made_java_crash_is_thrown_away(
    crashed: bool, jars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    archive = class_archive.place(jars)
    archive.parent.mkdir(parents=True)
    archive.touch()

    def fail(settings: SparkSettings, _: Path) -> None:
        (settings.directory / LOG_FILE).write_text(f"# {CRASHED}:\n" if crashed else "out of memory")
        raise RuntimeError("[JAVA_GATEWAY_EXITED]")

    monkeypatch.setattr(session, "launch", fail)
    with pytest.raises(RuntimeError):
        Spark(SparkSettings("w", tmp_path), died=lambda _: None)._begin()
    assert archive.exists() is not crashed
