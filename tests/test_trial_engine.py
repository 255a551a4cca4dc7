"""The trial engine: every row once, whenever its process is killed; its faults; and what it refuses."""

from __future__ import annotations

import json
import logging
import os
import queue
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from events import records as r
from tests.logs import until
from tests.tiny_coordinator import TinyCoordinator
from tests.trial_worker import Line, now_ms
from workers import happenings as h
from workers.engine import Surroundings
from workers.ledger import Identity
from workers.lines import Lines
from workers.plan import Step
from workers.trial import STARTS, TrialEngine

ROOT = Path(__file__).parent.parent
LOG = logging.getLogger(__name__)
KILLS = 12  # then it may end in peace
ROUNDS = int(os.environ.get("DETENT_TRIAL_ROUNDS", "1"))


def a_specification(path: Path, sources: list[dict[str, Any]] | None = None, **sink: Any) -> str:
    sources = sources or [{"rows": 10}]
    steps = [
        {"name": f"in{i}", "kind": "numbers", "parallelism": options.pop("parallelism", 1), "options": options}
        for i, options in enumerate(map(dict, sources))
    ]
    out = {"name": "out", "kind": "lines", "from": [step["name"] for step in steps],
           "options": {"path": str(path), **sink}}  # fmt: skip
    return json.dumps({"source": steps, "sink": [out]})


def published(path: Path) -> Counter[str]:
    return Counter(line for file in path.glob("*") if file.is_file() for line in file.read_text().splitlines())


# Killed at any instant -----------------------------------------------------------------------------------------------


class Process:
    """A worker process at the other end of two pipes."""

    def __init__(self, directory: Path, orders: list[Line], die_before: int) -> None:
        command = [sys.executable, "-m", "tests.trial_worker", str(directory), "--die-before", str(die_before)]
        self._child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._stdin, self._stdout = self._child.stdin, self._child.stdout
        self.reports: queue.SimpleQueue[r.Report] = queue.SimpleQueue()
        first = self._stdout.readline()
        self.position = int(first or -1)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        for line in orders[self.position :] if first else ():
            self.send(line)

    def _read(self) -> None:
        for line in self._stdout:
            if line.endswith(b"\n"):  # half a line is a report that was never sent
                self.reports.put(msgspec.json.decode(line, type=r.Report))

    def send(self, line: Line) -> None:
        try:
            self._stdin.write(msgspec.json.encode(line) + b"\n")
            self._stdin.flush()
        except BrokenPipeError:
            LOG.debug("it is dead; the next one reads it from the orders")

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    def kill(self) -> None:
        self._child.kill()
        self._child.wait(30)
        self._reader.join()
        try:
            self._stdin.close()
        except BrokenPipeError:
            LOG.debug("it was dead")
        self._stdout.close()


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_every_row_is_published_once_whenever_the_process_is_killed(tmp_path: Path, round_: int) -> None:
    seed = int(os.environ.get("DETENT_TRIAL_SEED", random.SystemRandom().randint(0, 2**31)))
    LOG.warning("seed=%d", seed)
    rng, out, orders = random.Random(seed), tmp_path / "out", list[Line]()
    sources = [{"rows": 1400, "rate": 300, "parallelism": 2}, {"rows": 600, "rate": 300}]
    process: Process | None = None

    def give(order: r.Order | h.Withdrawn) -> None:
        withdrawn = (order.job, order.pipeline, order.task) if isinstance(order, h.Withdrawn) else None
        orders.append(Line(len(orders) + 1, order if isinstance(order, r.Order) else None, withdrawn))
        if process is not None:
            process.send(orders[-1])

    coordinator = TinyCoordinator(a_specification(out, sources, slow_publish_ms=3), 3, give, interval_s=0.03)
    coordinator.start()
    kills, deadline = 0, time.monotonic() + 120
    while not coordinator.done:
        die_before = rng.choice([0, rng.randint(1, 300)]) if kills < KILLS else 0
        process = Process(tmp_path, orders, die_before)
        killed_at = time.monotonic() + (rng.uniform(0.05, 0.7) if kills < KILLS else 60)
        while process.alive and time.monotonic() < killed_at and not coordinator.done:
            assert time.monotonic() < deadline, f"seed {seed}: {coordinator}"
            while not process.reports.empty():
                coordinator.hear(process.reports.get())
            coordinator.tend()
            time.sleep(0.002)
        process.kill()
        kills += 1
        dead, process = process, None
        while not dead.reports.empty():
            coordinator.hear(dead.reports.get())
    LOG.warning("kills=%d restarts=%d checkpoints=%d", kills, coordinator.restarts, len(coordinator.committed))
    expected = Counter([f"in0 {n}" for n in range(1400)] + [f"in1 {n}" for n in range(600)])
    assert published(out) == expected, f"seed {seed}"
    assert kills > 3, f"seed {seed}: it was over before it was killed often"
    assert list((out / ".staging").iterdir()) == [], f"seed {seed}"


# One engine in the hand ----------------------------------------------------------------------------------------------


class Heard:
    """What an engine says, in order."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def __call__(self, it: Any) -> None:
        self.all.append(it)

    def of(self, *kinds: type[Any]) -> list[Any]:
        return [it for it in list(self.all) if isinstance(it, kinds)]

    def next(self, kind: type[Any], count: int = 1) -> Any:
        """The count-th of its kind, waited for."""
        until(lambda: len(self.of(kind)) >= count, f"{count} {kind.__name__}, not only {self.all}", 20)
        return self.of(kind)[count - 1]


WHO = Identity("a job/1", 2, 0, 0, 1)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    made = TrialEngine(Surroundings("w1", "i", tmp_path, now_ms))
    yield made
    made.close(10)


def staged_of(engine: TrialEngine, heard: Heard, specification: str, who: Identity = WHO, at: bytes = b"") -> h.Staged:
    """Run an attempt to its source's end and stage what it has read."""
    engine.start(who, r.Deploy(specification=specification, position=at), heard)
    until(lambda: any(it.who == who for it in heard.of(h.Exhausted)), "the source's end", 20)
    engine.stage(who, 1)
    until(lambda: any(it.who == who for it in heard.of(h.Staged)), "staged output", 20)
    return next(it for it in heard.of(h.Staged) if it.who == who)


def publish_of(specification: str, staged: tuple[r.Staged, ...], checkpoint: int = 1, **fields: Any) -> h.Publish:
    return h.Publish(WHO.job, WHO.incarnation, WHO.pipeline, checkpoint, specification, staged, **fields)


def test_a_loop_says_what_it_does_in_order(engine: TrialEngine, heard: Heard, tmp_path: Path) -> None:
    staged = staged_of(engine, heard, a_specification(tmp_path / "out", [{"rows": 2500, "start": 7}]))
    assert (staged.checkpoint, staged.position, staged.rows) == (1, b"2500", 2500)
    kinds = [type(it) for it in heard.all]
    assert kinds[0] is h.Started
    assert kinds.index(h.Progressed) < kinds.index(h.Exhausted) < kinds.index(h.Staged)
    (piece,) = staged.pieces
    content = (tmp_path / "out/.staging/a%20job%2F1-2" / piece.name).read_text()
    assert content.splitlines() == [f"in0 {n}" for n in range(7, 2507)]
    assert (piece.rows, piece.size) == (2500, len(content))
    assert not published(tmp_path / "out")
    engine.stage(WHO, 2)  # nothing was read since
    assert heard.next(h.Staged, 2).pieces == ()
    engine.stop(WHO, "told to")
    assert heard.next(h.Stopped) == h.Stopped(WHO, "told to")
    engine.stop(WHO, "again")
    engine.stage(WHO, 3)
    assert heard.all[-1] == h.Stopped(WHO, "told to")
    (start,) = (tmp_path / STARTS).read_text().splitlines()
    assert json.loads(start) == {**WHO._asdict(), "instance": "i"}


def test_an_attempt_goes_on_from_its_position(engine: TrialEngine, heard: Heard, tmp_path: Path) -> None:
    specification = a_specification(tmp_path / "out", [{"rows": 10, "parallelism": 3}])
    (piece,) = staged_of(engine, heard, specification, WHO._replace(task=1), b"2").pieces
    assert piece.rows == 1
    (only,) = (tmp_path / "out/.staging").glob("*/*")
    assert only.read_text() == "in0 7\n"  # of 1, 4, 7


def test_publishing_twice_changes_nothing(engine: TrialEngine, heard: Heard, tmp_path: Path) -> None:
    specification, out = a_specification(tmp_path / "out"), tmp_path / "out"
    effect = publish_of(specification, staged_of(engine, heard, specification).pieces)
    engine.publish(effect, lambda: True, heard)
    assert heard.next(h.Published) == h.Published(WHO.job, 2, 0, 1, 10)
    (file,) = (path for path in out.iterdir() if path.is_file())
    assert file.name.startswith("a%20job%2F1-2-0-1-0-0-1-")  # job, incarnation, pipeline, checkpoint, then the piece
    before = file.stat()
    engine.publish(effect, lambda: False, heard)  # it is there: nobody need be asked
    assert heard.next(h.Published, 2).rows == 10
    assert file.stat() == before
    file.rename(tmp_path / "taken")  # somebody reads what is published, and takes it
    engine.publish(effect, lambda: True, heard)
    assert heard.next(h.Published, 3).rows == 10
    assert not published(out)


def test_O4_what_was_published_before_its_mark_was_written_is_found(
    engine: TrialEngine, heard: Heard, tmp_path: Path
) -> None:
    specification, out = a_specification(tmp_path / "out"), tmp_path / "out"
    effect = publish_of(specification, staged_of(engine, heard, specification).pieces)
    engine.publish(effect, lambda: True, heard)
    heard.next(h.Published)
    (mark,) = (out / ".staging").glob("*/published-0-1")
    mark.unlink()  # killed right before
    engine.publish(effect, lambda: True, heard)
    assert heard.next(h.Published, 2).rows == 10
    assert published(out) == Counter(f"in0 {n}" for n in range(10))
    assert mark.exists()


def test_two_that_publish_at_once_publish_once(engine: TrialEngine, heard: Heard, tmp_path: Path) -> None:
    specification = a_specification(tmp_path / "out", [{"rows": 3}, {"rows": 4}], slow_publish_ms=5)
    pieces = [staged_of(engine, heard, specification, WHO._replace(task=task)).pieces for task in (0, 1)]
    effect = publish_of(specification, (*pieces[0], *pieces[1]))
    for _ in range(8):
        engine.publish(effect, lambda: True, heard)
    assert {heard.next(h.Published, count).rows for count in range(1, 9)} == {7}
    assert sorted(published(tmp_path / "out").values()) == [1] * 7


def test_nothing_is_published_without_a_lease(engine: TrialEngine, heard: Heard, tmp_path: Path) -> None:
    specification, out = a_specification(tmp_path / "out", [{"rows": 3}, {"rows": 4}]), tmp_path / "out"
    pieces = [staged_of(engine, heard, specification, WHO._replace(task=task)).pieces for task in (0, 1)]
    asked: list[bool] = []

    def lost_after_one() -> bool:
        asked.append(not asked)
        return asked[-1]

    effect = publish_of(specification, (*pieces[0], *pieces[1]), conclusive=True, tries=3)
    engine.publish(effect, lost_after_one, heard)
    failed = heard.next(h.PublishFailed)
    assert (failed.reason, failed.lasting) == ("the worker's lease is lost", False)
    assert (failed.conclusive, failed.tries) == (True, 3)  # given back
    assert asked == [True, False]  # right before each piece
    assert sum(published(out).values()) == 3
    engine.publish(effect, lambda: True, heard)
    assert heard.next(h.Published).rows == 7
    assert sum(published(out).values()) == 7


def test_output_that_is_gone_can_never_be_published(engine: TrialEngine, heard: Heard, tmp_path: Path) -> None:
    specification, out = a_specification(tmp_path / "out", [{"rows": 3}, {"rows": 4}]), tmp_path / "out"
    pieces = [staged_of(engine, heard, specification, WHO._replace(task=task)).pieces[0] for task in (0, 1)]
    next((out / ".staging").glob(f"*/{pieces[1].name}")).unlink()
    engine.publish(publish_of(specification, tuple(pieces)), lambda: True, heard)
    failed = heard.next(h.PublishFailed)
    assert failed.lasting
    assert pieces[1].name in failed.reason
    assert not published(out)  # not a part of it


def test_what_is_acknowledged_and_what_is_said_to_be_published_is_durable(
    engine: TrialEngine, heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill takes nothing that the system has; a power cut does. So the order is looked at."""
    steps: list[str] = []
    out = tmp_path / "out"

    def noted(name: str, call: Any) -> Any:
        def noting(*args: Any) -> Any:
            path = Path(f"/proc/self/fd/{args[0]}").readlink() if name == "fsync" else Path(args[0])
            steps.append(f"{name} {path.relative_to(tmp_path)}")
            return call(*args)

        return noting

    specification = a_specification(out)
    engine.start(WHO, r.Deploy(specification=specification), heard)
    heard.next(h.Exhausted)
    monkeypatch.setattr(os, "fsync", noted("fsync", os.fsync))
    monkeypatch.setattr(Path, "rename", noted("rename", Path.rename))
    monkeypatch.setattr(Path, "replace", noted("replace", Path.replace))
    engine.stage(WHO, 1)
    (piece,) = heard.next(h.Staged).pieces
    staging = "out/.staging/a%20job%2F1-2"
    assert steps == [f"fsync {staging}/{piece.name}", f"fsync {staging}"]
    steps.clear()
    engine.publish(publish_of(specification, (piece,)), lambda: True, heard)
    heard.next(h.Published)
    assert steps[:3] == [f"rename {staging}/{piece.name}", "fsync out", f"fsync {staging}"]
    assert [step.split(" ")[0] for step in steps[3:]] == ["fsync", "replace", "fsync"]  # the mark
    assert "published-0-1" in steps[4]


def test_staging_is_removed_and_what_is_published_stays(engine: TrialEngine, heard: Heard, tmp_path: Path) -> None:
    specification, out = a_specification(tmp_path / "out"), tmp_path / "out"
    first = staged_of(engine, heard, specification)
    engine.publish(publish_of(specification, first.pieces), lambda: True, heard)
    heard.next(h.Published)
    staged_of(engine, heard, specification, WHO._replace(attempt=2))  # leaves a piece that nobody publishes
    other = staged_of(engine, heard, specification, WHO._replace(incarnation=3))
    engine.remove(h.RemoveStaging(WHO.job, WHO.incarnation, specification), heard)
    assert heard.next(h.StagingGone) == h.StagingGone(WHO.job, 2, 1)
    assert [path.name for path in (out / ".staging").glob("*/*")] == [other.pieces[0].name]
    assert sum(published(out).values()) == 10
    engine.remove(h.RemoveStaging(WHO.job, WHO.incarnation, specification), heard)
    assert heard.next(h.StagingGone, 2) == h.StagingGone(WHO.job, 2, 0)


# Faults and refusals -------------------------------------------------------------------------------------------------


def test_a_source_fails_when_it_is_told_to_and_only_so_often(engine: TrialEngine, heard: Heard, tmp_path: Path) -> None:
    specification = a_specification(tmp_path / "out", [{"rows": 10, "fail_after_rows": 4}])
    engine.start(WHO, r.Deploy(specification=specification), heard)
    assert heard.next(h.Crashed).reason == "source 'in0' fails after 4 rows (fail_after_rows)"
    assert not list((tmp_path / "out/.staging").glob("*-2/*"))
    assert staged_of(engine, heard, specification, WHO._replace(attempt=2)).rows == 10


def test_a_source_stalls_when_it_is_told_to_and_can_be_stopped(
    engine: TrialEngine, heard: Heard, tmp_path: Path
) -> None:
    specification = a_specification(tmp_path / "out", [{"rows": 10, "stall_after_rows": 4, "stall_times": -1}])
    engine.start(WHO, r.Deploy(specification=specification), heard)
    until(lambda: (tmp_path / "out/.staging/a%20job%2F1-2.faults/stalled-0-0").exists(), "the stall")
    engine.stage(WHO, 1)
    engine.stop(WHO, "fenced")
    assert heard.next(h.Stopped).reason == "fenced"
    assert not heard.of(h.Staged, h.Exhausted)


def test_a_sink_refuses_for_a_while_or_for_good(engine: TrialEngine, heard: Heard, tmp_path: Path) -> None:
    for_a_while = a_specification(tmp_path / "a", refuse_publish_times=2)
    effect = publish_of(for_a_while, staged_of(engine, heard, for_a_while).pieces)
    for count in (1, 2):
        engine.publish(effect, lambda: True, heard)
        assert not heard.next(h.PublishFailed, count).lasting
    engine.publish(effect, lambda: True, heard)
    assert heard.next(h.Published).rows == 10
    for_good = a_specification(tmp_path / "b", refuse_publish_for_good=True)
    pieces = staged_of(engine, heard, for_good, WHO._replace(attempt=2)).pieces
    engine.publish(publish_of(for_good, pieces), lambda: True, heard)
    assert heard.next(h.PublishFailed, 3).lasting
    assert not published(tmp_path / "b")


def test_T6_staging_is_stuck_when_it_is_told_to_be(engine: TrialEngine, heard: Heard, tmp_path: Path) -> None:
    specification = a_specification(tmp_path / "out", staging_stuck_times=1)
    staged_of(engine, heard, specification)
    effect = h.RemoveStaging(WHO.job, WHO.incarnation, specification)
    engine.remove(effect, heard)
    assert "is stuck" in heard.next(h.StagingStuck).reason
    engine.remove(effect, heard)
    assert heard.next(h.StagingGone).removed == 1
    assert not list((tmp_path / "out/.staging").iterdir())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"source": [{"name": "in0", "kind": "kafka"}]}, "of kind 'kafka'; the trial engine has the source 'numbers'"),
        (
            {
                "transform": [{"name": "t", "kind": "sql", "from": ["in0"]}],
                "sink": [{"name": "out", "kind": "lines", "from": ["t"]}],
            },
            "'t' is of kind 'sql'",
        ),
        ({"source": [{"name": "in0", "kind": "numbers", "options": {"row": 3}}]}, "It has the options rows, start"),
        ({"source": [{"name": "in0", "kind": "numbers", "options": {"rows": "many"}}]}, r"Expected `int`.*`\$.rows`"),
        ({"sink": [{"name": "out", "kind": "jdbc", "from": ["in0"]}]}, "sink 'out' is of kind 'jdbc'"),
        ({"sink": [{"name": "out", "kind": "lines", "from": ["in0"]}]}, "missing required field `path`"),
        ({"sink": [{"name": "out", "kind": "lines", "from": ["in9"]}]}, "reads from 'in9', which is not there"),
    ],
)
def test_what_it_can_not_run_is_refused_for_good(
    engine: TrialEngine, heard: Heard, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    specification = json.dumps(json.loads(a_specification(tmp_path / "out")) | change)
    engine.start(WHO, r.Deploy(specification=specification), heard)
    crashed = heard.next(h.Crashed)
    assert crashed.lasting
    assert re.search(reason, crashed.reason), crashed.reason
    engine.remove(h.RemoveStaging(WHO.job, WHO.incarnation, specification), heard)
    assert heard.next(h.StagingGone).removed == 0


@pytest.mark.parametrize("position", [b"11", b"x", b"-1"])
def test_Z3_a_position_that_the_source_does_not_have_fails_at_once(
    engine: TrialEngine, heard: Heard, tmp_path: Path, position: bytes
) -> None:
    deploy = r.Deploy(specification=a_specification(tmp_path / "out"), checkpoint=4, position=position)
    engine.start(WHO, deploy, heard)
    crashed = heard.next(h.Crashed)
    assert crashed.lasting
    assert "checkpoint 4" in crashed.reason
    assert repr(position) in crashed.reason
    assert "10 rows" in crashed.reason
    assert not heard.of(h.Started)


def test_rows_reach_every_sink_of_the_pipeline(engine: TrialEngine, heard: Heard, tmp_path: Path) -> None:
    specification = json.loads(a_specification(tmp_path / "a"))
    specification["sink"].append(
        {"name": "too", "kind": "lines", "from": ["in0"], "options": {"path": str(tmp_path / "b")}}
    )
    body = json.dumps(specification)
    pieces = staged_of(engine, heard, body).pieces
    assert [piece.detail for piece in pieces] == [b"out", b"too"]
    engine.publish(publish_of(body, pieces), lambda: True, heard)
    assert heard.next(h.Published).rows == 20
    assert published(tmp_path / "a") == published(tmp_path / "b") == Counter(f"in0 {n}" for n in range(10))


def test_long_and_strange_names_of_jobs_stay_apart(tmp_path: Path) -> None:
    step = Step(name="out", kind="lines", options={"path": str(tmp_path)})
    jobs = ["..", ".", "a/b", "a%2Fb", "é" * 256, "é" * 255, "x" * 512, "x" * 511]
    staging = {Lines(step, job, 1).staging for job in jobs}
    assert len(staging) == len(jobs)
    for path in staging:
        path.mkdir(parents=True)
        assert path.parent == tmp_path / ".staging"
