"""What README and tutorial tell a reader to type is typed, in order, in a folder like theirs, and works: on Spark."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coordinator.repair import REPAIRS
from detent import exits
from events.broker_launch import JVM_VARIABLE
from tests.jvm import QUICK
from tests.logs import until
from tests.test_docs import ROOT, blocks

# A small machine: one core for each worker. Slow machines must not lose a worker.
SMALL = {
    "DETENT_WORKER__SPARK__MASTER": "local[1]",
    "DETENT_WORKER__SPARK__CONF__spark__driver__memory": "512m",
    "DETENT_WORKER__SPARK__CONF__spark__driver__extraJavaOptions": QUICK,
    "DETENT_WORKER__LEASE_MS": "60000",
    "DETENT_COORDINATOR__LEASE_MS": "60000",
    "DETENT_WEB__PORT": "0",
}


@dataclass
class Reader:
    """Somebody with a fresh clone, who types what they read."""

    folder: Path
    background: list[tuple[subprocess.Popen[bytes], Path]] = field(default_factory=list)

    def types(self, line: str) -> str:
        """Returns what it printed; it must end well."""
        if line.endswith("&"):
            self._starts(line.removesuffix("&").strip())
            return ""
        done = subprocess.run(
            shlex.split(line), cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=150,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}\n{self.said()}"
        return done.stdout

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DETENT_")}
        system = {name: os.environ[name] for name in ("DETENT_CACHE", JVM_VARIABLE) if name in os.environ}
        return kept | system | {"PYTHONPATH": str(ROOT)} | SMALL

    def _starts(self, line: str) -> None:
        log = self.folder / f"background-{len(self.background)}"
        with log.open("wb") as file:
            process = subprocess.Popen(
                shlex.split(line), cwd=self.folder, env=self.environment, stdout=file, stderr=file
            )
        self.background.append((process, log))
        until(lambda: "web is ready" in self.said() and "worker-1 is ready" in self.said(), "it to be ready", 120)

    def said(self) -> str:
        return "".join(log.read_text() for _, log in self.background)

    def leaves(self) -> None:
        for process, _ in self.background:
            process.send_signal(signal.SIGINT)
        for process, _ in self.background:
            assert process.wait(90) == 0, self.said()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """In a folder with what a clone has, as far as these documents use it."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "Makefile").write_text("setup:\n\t@true\n")
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    for name, module in (("detent", "-m detent"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
        (programs / name).chmod(0o755)
    reader = Reader(tmp_path)
    yield reader
    reader.leaves()


def lines(document: str, after: str = "") -> list[str]:
    text = (ROOT / document).read_text()
    found = re.findall(r"```sh\n(.*?)```", text[text.index(after) :], re.DOTALL)
    return [line.split("#")[0].strip() for block in found for line in block.splitlines() if line.strip()]


@pytest.mark.broker
def test_the_tour_of_the_readme(reader: Reader) -> None:
    said = {line: reader.types(line) for line in lines("README.md", "## A five-minute tour")}
    (watched,) = [text for line, text in said.items() if "submit" in line]
    assert "hello FINISHED: 10,000 rows" in watched
    assert "hello" in said[".venv/bin/detent jobs"]
    assert "FINISHED" in said[".venv/bin/detent explain hello"]
    (program,) = blocks(ROOT / "README.md", "python")
    (reader.folder / "tour.py").write_text(program)
    assert reader.types(".venv/bin/python tour.py") == "FINISHED\n"


@pytest.mark.broker
def test_the_tutorial(reader: Reader) -> None:
    said = {}
    for line in lines("docs/tutorial.md"):
        if "pause stream" in line:
            until(lambda: "COMMITTED" in reader.types(".venv/bin/detent checkpoints stream"), "a checkpoint")
        if "resume stream" in line:
            until(lambda: "PAUSED" in reader.types(".venv/bin/detent job stream"), "the pause")
        if "--stop" in line:
            until(lambda: "RUNNING" in reader.types(".venv/bin/detent job stream"), "it to go on")
        said[line] = reader.types(line)
    assert "orders FINISHED: 220,000 rows" in said[".venv/bin/detent submit examples/orders.yaml --watch"]
    assert "FINISHED" in said[".venv/bin/detent watch stream"]


def test_tables_in_the_documents_are_current() -> None:
    assert exits.page() in (ROOT / "docs/operations.md").read_text()
    failures = (ROOT / "docs/failures.md").read_text()
    for (kind, to), (_, meaning) in REPAIRS.items():
        assert f"| {kind} | {to} | {meaning} |" in failures
