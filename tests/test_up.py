"""`detent up` and the commands of a running Detent, as a user calls them: through a pipe and on a terminal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pexpect
import pytest

from bench.fleet import published
from tests.logs import until
from tests.test_supervisor import is_running

pytestmark = pytest.mark.broker
ROOT = Path(__file__).parent.parent


@dataclass
class Up:
    """A Detent that `detent up` runs, with the trial engine."""

    directory: Path
    process: subprocess.Popen[bytes]

    @property
    def changes(self) -> list[dict[str, str]]:
        text = (self.directory / "said").read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def count(self, name: str, what: str) -> int:
        return sum((change["name"], change["what"]) == (name, what) for change in self.changes)

    def detent(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "detent", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=self.directory, env=environment(), timeout=100, check=False
        )

    def job(self, name: str, rows: int, rate: float = 0.0) -> Path:
        path = self.directory / f"{name}.yaml"
        options = {"rows": rows, "rate": rate}
        path.write_text(
            json.dumps(
                {
                    "env": {"checkpoint": {"interval_ms": 200}, "mode": "BATCH" if rows >= 0 else "STREAMING"},
                    "source": [{"name": "in", "kind": "numbers", "parallelism": 2, "options": options}],
                    "sink": [{"name": "out", "kind": "lines", "from": "in", "options": {"path": f"out/{name}"}}],
                }
            )
        )
        return path


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DETENT_")}
    return kept | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    directory = tmp_path_factory.mktemp("up")
    quick = ["--set", "worker.heartbeat_ms=100", "--set", "coordinator.sweep_ms=200", "--set", "kafka.shards=2"]
    command = [sys.executable, "-m", "detent", "up", "--engine", "workers.trial:TrialEngine", "--coordinators", "2",
               "--set", "web.port=0"]  # fmt: skip
    with (directory / "said").open("wb") as said:
        process = subprocess.Popen(
            [*command, *quick, "--json"], cwd=directory, env=environment(), stdout=said, stderr=said
        )
    running = Up(directory, process)
    try:
        names = ("coordinator-1", "coordinator-2", "worker-1", "web")
        until(lambda: all(running.count(name, "ready") for name in names), f"all to be ready: {running.changes}")
        yield running
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(90)
    pids = [int(re.findall(r"\d+", change["detail"])[0]) for change in running.changes if change["what"] == "started"]
    assert code == 0, (directory / "said").read_text()
    assert not any(is_running(pid) for pid in pids)


def answered(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_job_is_submitted_and_waited_for(up: Up) -> None:
    done = up.detent("submit", str(up.job("plain", 500)), "--wait")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"plain: Submit accepted, incarnation \d+\nplain: FINISHED\n", done.stdout)
    assert len(published(up.directory / "out/plain")) == 500


def test_the_same_again_is_refused_with_a_code_of_its_own(up: Up) -> None:
    path = str(up.job("twice", -1, 100))
    assert answered(up.detent("submit", path, "--json", "--command-id", "x", "--by", "me"))["by"] == "me"
    assert answered(up.detent("submit", path, "--json", "--command-id", "x"))["state"] == "ACCEPTED"
    refused = up.detent("submit", path)
    assert refused.returncode == 4
    assert refused.stderr.startswith("Error: Submit of job twice was refused: twice is there already")
    as_json = up.detent("submit", path, "--json")
    assert json.loads(as_json.stderr)["exitCode"] == 4
    assert up.detent("cancel", "twice", "--reason", "enough").returncode == 0
    assert up.detent("watch", "twice").returncode == 6


def test_the_life_of_a_job_on_the_command_line(up: Up) -> None:
    assert up.detent("submit", str(up.job("life", -1, 200))).returncode == 0
    assert "Pause accepted" in up.detent("pause", "life").stdout
    until(lambda: "Resume accepted" in up.detent("resume", "life").stdout, "it to be paused, and to go on")
    assert up.detent("savepoint", "life", "s", "--stop").returncode == 0
    assert up.detent("watch", "life").returncode == 0
    assert "from savepoint s" in up.detent("restore", "life", "--savepoint", "s").stdout
    assert up.detent("stop", "life").returncode == 2
    assert up.detent("stop", "life", "--drain").returncode == 0
    watched = up.detent("watch", "life", "--json")
    assert json.loads(watched.stdout.splitlines()[-1])["job"]["state"] == "FINISHED"
    assert up.detent("repair", "life", "job/life", "FAILING", "--reason", "no").returncode == 4


def test_watching_through_a_pipe_says_every_change(up: Up) -> None:
    done = up.detent("submit", str(up.job("piped", 600, 300)), "--watch")
    assert done.returncode == 0
    lines = [line[10:] for line in done.stdout.splitlines()[1:]]
    assert "task 0/1 attempt 1: RUNNING on w1" in lines
    assert "piped: FINISHED" in lines
    assert lines[-1].startswith("piped FINISHED: 600 rows")
    assert "\x1b" not in done.stdout


def test_watching_on_a_terminal_draws_a_table(up: Up) -> None:
    arguments = ["-m", "detent", "submit", str(up.job("drawn", 1000, 300)), "--watch"]
    child = pexpect.spawn(
        sys.executable, arguments, cwd=str(up.directory), env=environment(), dimensions=(40, 150), timeout=60
    )
    child.expect("drawn: Submit accepted")
    child.expect("rows/s")
    child.expect("0/0 +in +.*RUNNING")
    child.expect("drawn.*FINISHED.*1,000 rows")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_ctrl_c_ends_the_watching_and_not_the_job(up: Up) -> None:
    arguments = ["-m", "detent", "submit", str(up.job("left", -1, 100)), "--watch"]
    child = pexpect.spawn(
        sys.executable, arguments, cwd=str(up.directory), env=environment(), dimensions=(40, 150), timeout=60
    )
    child.expect("0/1 +in +.*RUNNING")
    child.sendintr()
    child.expect("stopped watching; left goes on")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130
    assert answered(up.detent("stop", "left", "--drain", "--json"))["state"] == "ACCEPTED"
    assert up.detent("watch", "left").returncode == 0


def test_the_page_is_served(up: Up) -> None:
    (ready,) = [change["detail"] for change in up.changes if (change["name"], change["what"]) == ("web", "ready")]
    with urllib.request.urlopen(ready.split(", ")[1] + "metrics", timeout=10) as page:
        assert page.status == 200


def test_what_is_killed_is_started_again(up: Up) -> None:
    started = [change for change in up.changes if (change["name"], change["what"]) == ("worker-1", "started")]
    os.kill(int(started[-1]["detail"].removeprefix("pid ")), signal.SIGKILL)
    until(lambda: up.count("worker-1", "ready") == 2, "the worker to be back")
    assert [c["detail"] for c in up.changes if c["what"] == "ended"] == ["by SIGKILL; it is started again in 0.5 s"]
    assert up.detent("submit", str(up.job("after", 100)), "--wait").returncode == 0


def test_the_doctor_finds_nothing_wrong(up: Up) -> None:
    done = up.detent("doctor", "--set", "kafka.shards=2", "--json")
    found = {(one["what"], one["verdict"]) for one in json.loads(done.stdout)["findings"]}
    for what in ("Java", "Spark", "broker", "topics", "rights", "clock", "processes"):
        assert (what, "good") in found, done.stdout
    assert (done.returncode == 0) == (not any(verdict == "bad" for _, verdict in found))


def test_the_doctor_says_what_to_do(up: Up) -> None:
    wrong = up.detent("doctor", "--set", "kafka.shards=3")
    assert wrong.returncode == 7
    assert "Set shards to 2" in wrong.stdout
    nowhere = up.detent("doctor", "--bootstrap-servers", "127.0.0.1:1")
    assert nowhere.returncode == 7
    assert "BAD  broker" in nowhere.stdout


def test_where_nothing_runs_it_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("{}")
    done = subprocess.run(
        [sys.executable, "-m", "detent", "cancel", "x"],
        capture_output=True, text=True, cwd=tmp_path, env=environment(), timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Start a Detent here with `detent up`" in done.stderr


def test_validate_has_a_code_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("source: []\n")
    done = subprocess.run(
        [sys.executable, "-m", "detent", "validate", "job.yaml", "none.yaml", "--json"],
        capture_output=True, text=True, cwd=tmp_path, env=environment(), timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    found = json.loads(done.stdout)["problems"]
    assert [(problem["file"], problem["line"]) for problem in found] == [("job.yaml", 1), ("none.yaml", 0)]
