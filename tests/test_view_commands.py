"""The commands that look at the log, on a real broker: stories of the scenarios are put on it, and asked about. Through
a pipe, as JSON, and through a pseudo-terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect  # type: ignore[import-untyped]
import pytest
from typer.testing import CliRunner, Result

from detent import times
from detent.cli import build_app
from detent.forensics_commands import COLUMNS
from detent.looking import UnknownJob
from detent.reaching import NothingRuns
from events.cluster import Cluster
from events.embedded import EmbeddedBroker
from events.records import CheckpointAcked, CheckpointCommitted, Staged, TaskRunning
from events.topics import ensure_topics
from tests.logs import own_cluster
from tests.published import events_of, publish
from tests.scenarios.runner import find, tell
from tests.shard import Shard

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def at_utc() -> Iterator[None]:
    """Times are of this machine's zone; here they are compared."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    yield
    os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
    time.tzset()


@pytest.fixture(scope="module")
def cluster(broker: EmbeddedBroker, at_utc: None) -> Cluster:
    """A log on which the story of D9 has happened: a worker that was killed and came back."""
    made = own_cluster(broker.bootstrap_servers)
    ensure_topics(made)
    publish(made, events_of(tell(find("D9")[0]).broker))
    return made


@pytest.fixture(scope="module")
def running(broker: EmbeddedBroker, at_utc: None) -> Cluster:
    """A log with a job that runs, and one that waits for room."""
    made = own_cluster(broker.bootstrap_servers)
    ensure_topics(made)
    shard = Shard(now=times.now_ms() - 600_000)
    shard.worker("w1", slots=2)
    shard.submit("orders", 2, checkpoint={"interval_ms": 1000})
    shard.submit("invoices", 1)
    for task in (0, 1):
        shard.report("orders", task, TaskRunning())
    shard.wait(1000)
    for task in (0, 1):
        staged = (Staged(name=f"{task}", rows=500, size=4000),)
        shard.report("orders", task, CheckpointAcked(checkpoint=1, position=b"1", staged=staged, rows=500))
    shard.report("orders", -1, CheckpointCommitted(checkpoint=1), worker="w1")
    publish(made, shard.log)
    return made


def options(cluster: Cluster) -> list[str]:
    return ["--bootstrap-servers", cluster.bootstrap_servers, "--set", f"kafka.topic_prefix={cluster.prefix}"]


def run(cluster: Cluster, *arguments: str) -> Result:
    return CliRunner().invoke(build_app(), [*arguments, *options(cluster)])


def said(cluster: Cluster, *arguments: str) -> str:
    result = run(cluster, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def said_json(cluster: Cluster, *arguments: str) -> Any:
    return json.loads(said(cluster, *arguments, "--json"))


@pytest.mark.broker
def test_jobs_are_listed_and_filtered(running: Cluster) -> None:
    lines = said(running, "jobs").splitlines()
    assert lines[0].split()[:3] == ["JOB", "STATE", "HEALTH"]
    assert {line.split()[0] for line in lines[1:]} == {"orders", "invoices"}
    assert "1,000" in next(line for line in lines if line.startswith("orders"))
    assert "1 task waits for room on a worker" in next(line for line in lines if line.startswith("invoices"))
    page = said_json(running, "jobs", "--state", "running", "--search", "ord")
    assert [(job["id"], job["state"], job["rowsPublished"]) for job in page["items"]] == [("orders", "RUNNING", 1000)]
    assert page["items"][0]["lastCheckpointTime"]
    assert page["items"][0]["secondsSinceLastCheckpoint"] > 50
    assert said(running, "jobs", "--state", "failed") == "No job is like that.\n"
    assert "1 of 2 jobs; --start 1" in said(running, "jobs", "--limit", "1")
    wrong = run(running, "jobs", "--state", "dancing")
    assert (wrong.exit_code, "is no state" in wrong.output) == (2, True)


@pytest.mark.broker
def test_a_job_shows_all_about_it(running: Cluster) -> None:
    text = said(running, "job", "orders")
    assert text.startswith("orders is RUNNING since")
    for part in ("rows published", "1,000", "0/0", "w1", "Submit", "ACCEPTED", "detent explain orders"):
        assert part in text
    detail = said_json(running, "job", "orders")
    assert [task["state"] for task in detail["tasks"]] == ["RUNNING", "RUNNING"]
    result = run(running, "job", "order")
    assert isinstance(result.exception, UnknownJob)
    assert str(result.exception) == (
        "There is no job order, and the summary of none is kept. Did you mean orders? `detent jobs` lists all of them."
    )


@pytest.mark.broker
def test_checkpoints_workers_and_the_cluster_are_shown(running: Cluster) -> None:
    (one,) = said_json(running, "checkpoints", "orders")
    assert (one["id"], one["state"], one["rows"], one["size"]) == (1, "COMMITTED", 1000, 8000)
    assert "8.0 KB" in said(running, "checkpoints", "orders")
    assert said(running, "checkpoints", "invoices").startswith("invoices has had no checkpoint yet")
    (worker,) = said_json(running, "workers")
    assert (worker["id"], worker["state"], worker["used"]) == ("w1", "SILENT", 2)
    assert "SILENT" in said(running, "workers")
    (shard,) = said_json(running, "cluster")["shards"]
    assert (shard["leader"], shard["epoch"], shard["jobs"]) == ("c", 1, 2)
    assert "LEADING" in said(running, "cluster")


@pytest.mark.broker
def test_B8_the_log_of_a_job_has_every_transition(cluster: Cluster) -> None:
    lines = said(cluster, "log", "a", "--kind", "task").splitlines()
    assert lines[0].split() == [name.upper() for name in COLUMNS]
    (failed,) = [line for line in lines if " failed " in line]
    assert "00:01:40.450" in failed
    assert failed.split()[-8:] == ["RUNNING", "FAILED", "1", "w0", "reports/0@3", "the", "worker", "restarted"]
    records = [json.loads(line) for line in said(cluster, "log", "a", "--json").splitlines()]
    first = next(record for record in records if record["entity"] == "job/a")
    assert (first["from"], first["to"], first["transition"]) == ("", "CREATED", "submitted")
    assert {"cause", "time", "offset", "epoch", "leader", "attempt"} <= set(first)
    assert isinstance(run(cluster, "log", "b").exception, UnknownJob)
    assert run(cluster, "log", "a", "--kind", "dance").exit_code == 2


@pytest.mark.broker
def test_the_state_as_it_was(cluster: Cluster) -> None:
    assert "a is RUNNING since" in said(cluster, "at", "--time", "1970-01-01T00:01:40.3+00:00", "a")
    failed = next(
        json.loads(line) for line in said(cluster, "log", "a", "--kind", "task", "--json").splitlines()
        if json.loads(line)["to"] == "FAILED"
    )  # fmt: skip
    then = said_json(cluster, "at", "--offset", str(failed["offset"]), "a")
    assert (then["job"]["state"], then["tasks"][0]["attempt"], then["tasks"][0]["state"]) == ("SCHEDULED", 2, "CREATED")
    text = said(cluster, "at", "--offset", str(failed["offset"]))
    assert "shard 0  LEADING  c0  epoch 1" in text
    assert "1 CREATED" in text
    assert said_json(cluster, "at", "--time", "1s")["jobs"]["items"][0]["state"] == "FINISHED"
    assert run(cluster, "at").exit_code == 2
    assert "does not go back as far" in str(run(cluster, "at", "--time", "1970-01-01T00:00:00+00:00").exception)
    assert "is no time that is understood" in str(run(cluster, "at", "--time", "soon").exception)


@pytest.mark.broker
def test_explaining_says_why_and_what_happened(cluster: Cluster, running: Cluster) -> None:
    text = said(cluster, "explain", "a")
    assert text.startswith("Job a (incarnation 1) FINISHED at 1970-01-01 00:01:40.650 after 600 ms, with 55 rows")
    assert "Task 0/0 on w0 was deployed again as attempt 2; it goes on from checkpoint 1." in text
    waiting = said_json(running, "explain", "invoices")
    what = [wait["what"] for wait in waiting["waits"]]
    assert what[0] == "Nobody decides for it: nothing is heard of c, which led shard 0 last."
    assert what[1].startswith("Room on a worker for task 0/0")
    then = said(cluster, "explain", "a", "--time", "1970-01-01T00:01:40.5+00:00")
    assert "is SCHEDULED since" in then
    assert "Task 0/0 to start again as attempt 2, after: the worker restarted." in then


@pytest.mark.broker
def test_verifying_says_whether_the_log_is_sound_and_the_exit_code_too(
    broker: EmbeddedBroker, running: Cluster
) -> None:
    assert "The log is sound" in said(running, "verify")
    assert said_json(running, "verify")["sound"]
    assert run(running, "verify", "--live").exit_code == 7, "nobody leads: its deadlines are overdue"
    made = own_cluster(broker.bootstrap_servers)
    ensure_topics(made)
    log = events_of(tell(find("D9")[0]).broker)
    publish(made, [event for event in log if not event.entity.startswith("cleanup/")])
    result = run(made, "verify")
    assert result.exit_code == 7
    assert "it is FINISHED, and no cleanup is promised" in result.stdout
    assert "Something is wrong" in result.stdout


def a_process(cluster: Cluster, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "detent", *arguments, *options(cluster)]


@pytest.mark.broker
def test_through_a_pipe_errors_are_one_paragraph_and_an_exit_code(cluster: Cluster) -> None:
    done = subprocess.run(
        a_process(cluster, "explain", "nobody"), capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: There is no job nobody, and the summary of none is kept.")
    assert "Traceback" not in done.stderr


@pytest.mark.broker
def test_on_a_terminal_it_is_drawn_with_colours_and_followed_until_ctrl_c(cluster: Cluster) -> None:
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"}
    drawn = pexpect.run(
        " ".join(a_process(cluster, "jobs")), timeout=60, env=environment, cwd=str(ROOT), encoding="utf-8"
    )
    assert "\x1b[" in drawn
    assert "FINISHED" in drawn
    program, *arguments = a_process(cluster, "log", "a", "--follow", "--kind", "job")
    child = pexpect.spawn(program, arguments, timeout=60, env=environment, cwd=str(ROOT), encoding="utf-8")
    child.expect("finished: DRAINING")
    child.sendintr()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_where_nothing_has_ever_run_that_is_said(tmp_path: Path) -> None:
    result = CliRunner().invoke(build_app(), ["jobs", "--state-dir", str(tmp_path / "none")])
    assert isinstance(result.exception, NothingRuns)


def test_times_are_understood_as_people_write_them(at_utc: None) -> None:
    now = times.parse("2026-11-16T10:42:03+00:00")
    assert times.parse("5m", now) == now - 300_000
    assert times.parse("90s ago", now) == now - 90_000
    assert times.parse("10:42:00", now) == now - 3000
    assert times.parse(str(now), 0) == now
    assert times.clock(now, now) == "10:42:03.000"
    assert times.clock(now - 86_400_000, now) == "2026-11-15 10:42:03.000"
    assert times.ago(now - 2500, now) == "2.5 s ago"
    assert (times.clock(None), times.ago(0)) == ("", "")
    with pytest.raises(times.UnknownTime, match="is no time"):
        times.parse("tomorrow", now)
