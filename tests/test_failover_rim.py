"""Topics that are deleted under a fleet, and wall clocks that jump."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from bench.fleet import Child, Launch
from events.embedded import EmbeddedBroker
from tests.logs import until
from tests.scenes import EAGER, a_scene, endless, finish, goes_on, numbers
from tests.test_failover_faults import spins

pytestmark = pytest.mark.broker


@pytest.fixture
def where(broker: EmbeddedBroker, tmp_path: Path) -> tuple[str, Path]:
    return broker.bootstrap_servers, tmp_path


def test_topics_that_are_deleted_under_it_are_named_and_never_made_anew(where: tuple[str, Path]) -> None:
    with a_scene(*where, judged=False, coordinator__detection_ms=1000) as scene:
        endless(scene)
        names = [scene.cluster.topic(name) for name in ("events", "commands", "reports", "orders")]
        admin = scene.cluster.admin()
        for deleted in admin.delete_topics(names).values():
            deleted.result(30)
        children = [*scene.coordinators.values()]
        for child in children:
            until(lambda c=child: "events/0" in c.said() and "deleted" in c.said(), f"{child.name} to say so")  # type: ignore[misc]
        assert not spins(*[child for child in children if child.alive])
        there = admin.list_topics(timeout=10).topics
        assert not [name for name in names if name in there]


def a_liar(offset: Path) -> Launch:
    """A process whose wall clock is off by the seconds that stand in a file. Its steady clock is right, and so is that
    of the client library, whose record times the broker does not go by."""
    program = (
        f"import pathlib, sys, time; right, offset = time.time, pathlib.Path({str(offset)!r}); "
        "time.time = lambda: right() + float(offset.read_text()); time.time_ns = lambda: int(time.time() * 1e9); "
        "from detent.cli import main; sys.argv[0] = 'detent'; main()"
    )
    return Launch((sys.executable, "-c", program))


def set_clock(offset: Path, seconds: int) -> None:
    written = offset.with_suffix(".new")
    written.write_text(str(seconds))
    written.replace(offset)  # at once, for whoever reads it


@pytest.mark.parametrize("jump", [86_400, -86_400])
def test_a_wall_clock_that_jumps_moves_no_deadline_and_loses_no_worker(where: tuple[str, Path], jump: int) -> None:
    now = where[1] / "now"
    set_clock(now, 0)
    leases = {"worker__lease_ms": 2000, "coordinator__lease_ms": 4000}
    with a_scene(*where, coordinators=0, workers=1, **leases) as scene:  # type: ignore[arg-type]
        leader = scene.coordinator("c0", a_liar(now), **EAGER)
        scene.ready()
        scene.submit("done", numbers("in", 100), cleanup_delay_ms=600_000)
        endless(scene)
        scene.until_job("done", "FINISHED")
        before = said_at(leader)
        set_clock(now, jump)
        goes_on(scene)
        began = time.monotonic()
        scene.until(lambda: time.monotonic() - began > 5, "the lease to be over, had the wall clock measured it")
        goes_on(scene)
        scene.submit("later", numbers("in", 10))
        scene.until_job("later", "FINISHED")
        scene.until(lambda: abs((said_at(leader) - before).days) >= 1, "it to say what it did, by a clock that jumped")
        assert scene.look.state("cleanup/done/1") == "PROMISED"
        assert not [key for key in scene.look.known if key.startswith("worker/")]
        assert leader.alive
        scene.coordinator("c1")
        scene.ready()
        scene.kill_leader(again=False)  # the next one's clock is right
        goes_on(scene)
        finish(scene)
        assert scene.starts("a") == [("w0", 1)]


def said_at(child: Child) -> datetime:
    """The wall clock in the last line of a process's log."""
    times = [part for part in child.said().split() if part.startswith("time=")]
    return datetime.fromisoformat(times[-1].removeprefix("time=").replace("Z", "+00:00"))
