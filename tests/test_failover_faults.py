"""What else happens to a fleet of real processes: leaders that sleep, hand over and are spread; brokers, networks,
disks and clocks that fail; input that nobody can use. As in tests/test_failover.py the oracle has the last word.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.fleet import Child, Launch, resident_mb
from coordinator import service as service_module
from coordinator.service import Service, ServiceSettings
from events import embedded, inputs
from events.cluster import Cluster
from events.codec import Codec
from events.embedded import EmbeddedBroker
from events.records import Task
from events.schema_topic import shared_codec
from events.topics import TopicFacts, TopicSettings, ensure_topics
from tests.logs import own_cluster, until
from tests.oracle import read_log
from tests.proxy import Proxy, proxied_broker
from tests.scenes import EAGER, Scene, a_scene, endless, finish, goes_on, numbers

pytestmark = pytest.mark.broker


@pytest.fixture
def where(broker: EmbeddedBroker, tmp_path: Path) -> tuple[str, Path]:
    return broker.bootstrap_servers, tmp_path


# Leaders -------------------------------------------------------------------------------------------------------------


def test_a_leader_that_slept_wakes_up_and_does_no_harm(where: tuple[str, Path]) -> None:
    # On a busy machine all are silent for some 100 ms at times, and the one that woke up would lead again.
    with a_scene(*where, eager=False, coordinator__detection_ms=2000) as scene:
        endless(scene, checkpoint={"interval_ms": 50})
        sleeper = scene.led()
        takeover = scene.next_leader(sleeper.freeze)
        assert takeover.by != sleeper.name
        goes_on(scene)
        fenced = scene.event("leader/0").epoch
        sleeper.wake()
        until(lambda: "fenced, stands by again" in sleeper.said() or "another leads" in sleeper.said(), "it to notice")
        until(lambda: '"stands by"' in sleeper.page("/readyz")[1], "it to stand by")
        goes_on(scene)
        assert scene.event("leader/0").epoch == fenced
        scene.kill_leader(again=False)  # and now it is needed
        goes_on(scene)
        assert scene.look.leader(0) == sleeper.name
        finish(scene)
        assert scene.starts("a") == [("w0", 1)]


def test_a_leader_that_is_stopped_hands_over_at_once_and_touches_no_task(where: tuple[str, Path]) -> None:
    with a_scene(*where) as scene:  # nobody would notice its silence for a minute
        endless(scene)
        leader = scene.led()
        takeover = scene.next_leader(leader.process.terminate)
        assert leader.process.wait(30) == 0
        assert takeover.before["leader/0"].transition == "resigned"
        assert takeover.before["task/a/0/0"].to == "RUNNING"
        goes_on(scene)
        finish(scene)
        assert scene.starts("a") == [("w0", 1)]


def test_shards_are_spread_evenly_and_anew_when_a_coordinator_comes_and_goes(where: tuple[str, Path]) -> None:
    with a_scene(*where, shards=4, coordinator__detection_ms=1000) as scene:

        def spread() -> list[int]:
            return sorted(Counter(scene.look.leader(shard) for shard in range(4)).values())

        scene.until(lambda: spread() == [2, 2], "two shards each")
        scene.coordinator("c2")
        scene.until(lambda: spread() == [1, 1, 2], "the third to get its share")
        scene.coordinators["c2"].stop()
        scene.until(lambda: spread() == [2, 2], "two shards each again")


def test_of_two_coordinators_with_one_id_the_later_one_goes(where: tuple[str, Path]) -> None:
    with a_scene(*where, coordinators=1) as scene:
        first = scene.led()
        second = scene.fleet.coordinator("c0")
        assert second.process.wait(60) == 1
        assert "is coordinator c0 already" in second.said()
        assert "Give this one another id" in second.said()
        assert first.alive
        endless(scene)
        finish(scene)


def with_logic(number: int) -> Launch:
    """A coordinator of another version: the same code with another number of its logic."""
    program = (
        "import sys; from importlib.util import find_spec, module_from_spec; spec = find_spec('coordinator.state'); "
        "module = sys.modules['coordinator.state'] = module_from_spec(spec); source = open(spec.origin).read(); "
        f"exec(compile(source.replace('LOGIC = 1 ', 'LOGIC = {number} '), spec.origin, 'exec'), module.__dict__); "
        f"assert module.LOGIC == {number}; from detent.cli import main; sys.argv[0] = 'detent'; main()"
    )
    return Launch((sys.executable, "-c", program))


def test_older_logic_does_not_lead_over_what_newer_logic_has_written(where: tuple[str, Path]) -> None:
    with a_scene(*where, coordinators=0) as scene:
        newer = scene.coordinator("newer", with_logic(2), **EAGER)
        older = scene.coordinator("older", **EAGER)
        scene.ready()
        scene.until(lambda: scene.look.leader(0) == "newer", "the newer one to lead")
        endless(scene)
        epoch = scene.event("leader/0").epoch
        scene.led()
        newer.kill()
        until(lambda: "does not lead shard=0" in older.said(), "the older one to refuse")
        assert "the log was written by logic 2, this process has logic 1; upgrade it" in older.said()
        scene.coordinator("newest", with_logic(2), **EAGER)
        assert scene.takeover(epoch).by == "newest"
        goes_on(scene)
        finish(scene)


# Brokers and networks ------------------------------------------------------------------------------------------------


def cpu_s(child: Child) -> float:
    """Processor time that a process has used so far."""
    fields = Path(f"/proc/{child.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def spins(*children: Child, over_s: float = 2.0) -> list[str]:
    """Who uses more than a third of a processor, for as long."""
    before, began = [cpu_s(child) for child in children], time.monotonic()
    until(lambda: time.monotonic() - began > over_s, "some time to pass")
    used = [cpu_s(child) - was for child, was in zip(children, before, strict=True)]
    return [child.name for child, seconds in zip(children, used, strict=True) if seconds > over_s / 3]


def test_a_broker_that_is_away_at_the_start_is_waited_for(frail: EmbeddedBroker, tmp_path: Path) -> None:
    cluster = own_cluster(frail.bootstrap_servers)
    with a_scene(frail.bootstrap_servers, tmp_path, coordinators=0, workers=0, cluster=cluster) as scene:
        embedded.stop(frail.directory.parent)
        try:
            children = [scene.coordinator("c0", **EAGER), scene.worker("w0")]
            for child in children:
                until(lambda c=child: "waits for the broker" in c.said(), f"{child.name} to say so")  # type: ignore[misc]
                assert child.alive
                assert child.page("/healthz")[0] == 200
                assert child.page("/readyz")[0] == 503
            assert not spins(*children)
        finally:
            frail.start()
        scene.ready()
        endless(scene)
        finish(scene)


def test_a_broker_that_is_killed_in_the_middle_of_a_job_loses_nothing(frail: EmbeddedBroker, tmp_path: Path) -> None:
    with a_scene(frail.bootstrap_servers, tmp_path) as scene:
        endless(scene, checkpoint={"interval_ms": 50})
        for _ in range(2):
            frail.kill()
            assert not spins(*scene.coordinators.values(), *scene.workers.values(), over_s=1.0)
            frail.start()
            goes_on(scene)
        finish(scene)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedBroker, Proxy]]:
    with proxied_broker(tmp_path_factory.mktemp("proxied")) as made:
        yield made


def test_a_broker_that_goes_away_amid_the_start_is_waited_for(
    network: tuple[EmbeddedBroker, Proxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Found by the soak: it was there for topics and schemas, and then away for longer than a question is asked."""
    proxy, tries = network[1], list[str]()

    def ensure(*arguments: Any, **options: Any) -> dict[str, TopicFacts]:
        tries.append(caplog.text)
        if len(tries) == 2:
            proxy.heal()
        return ensure_topics(*arguments, **options)

    def learn(cluster: Cluster) -> Codec:
        codec = shared_codec(cluster)
        if len(tries) == 1:
            proxy.refuse()
        return codec

    monkeypatch.setattr(service_module, "ensure_topics", ensure)
    monkeypatch.setattr(service_module, "shared_codec", learn)
    monkeypatch.setattr(inputs, "PATIENCE_S", 1.0)
    service = Service(own_cluster(proxy.address), ServiceSettings(name="c0", state_dir=tmp_path))
    prepared = service._prepare()
    assert prepared is not None
    assert len(tries) == 2
    assert "asking for the bounds of workers/0" in tries[1], "it is to go away where this asks"
    for listener in prepared[1:]:
        listener.start()
        listener.stop()


@pytest.mark.parametrize("cut", [Proxy.hold, Proxy.refuse], ids=["held", "refused"])
def test_a_coordinator_that_is_cut_off_from_the_broker_does_no_harm(
    network: tuple[EmbeddedBroker, Proxy], tmp_path: Path, cut: Callable[[Proxy], None]
) -> None:
    broker, proxy = network
    through = EAGER | {"kafka.bootstrap_servers": proxy.address}
    with a_scene(broker.bootstrap_servers, tmp_path, coordinators=0, coordinator__detection_ms=1000) as scene:
        apart = scene.coordinator("c0", **through)
        scene.ready()
        scene.until(lambda: scene.look.leader(0) == "c0", "the one behind the proxy to lead")
        scene.coordinator("c1")
        scene.ready()
        endless(scene, checkpoint={"interval_ms": 50})
        takeover = scene.next_leader(lambda: cut(proxy))
        assert takeover.by == "c1"
        goes_on(scene)
        assert apart.alive
        proxy.heal()
        until(lambda: "stands by" in apart.page("/readyz")[1], "it to stand by again")
        goes_on(scene)
        finish(scene)
        assert scene.starts("a") == [("w0", 1)]


def test_B7_K_a_worker_that_is_cut_off_stops_its_tasks_and_others_take_them_over(
    network: tuple[EmbeddedBroker, Proxy], tmp_path: Path
) -> None:
    broker, proxy = network
    leases = {"worker__lease_ms": 1500, "coordinator__lease_ms": 3000}
    with a_scene(broker.bootstrap_servers, tmp_path, coordinators=1, workers=0, **leases) as scene:  # type: ignore[arg-type]
        apart = scene.worker("w0", **{"kafka.bootstrap_servers": proxy.address})
        scene.ready()
        endless(scene)
        scene.worker("w1")
        scene.ready()
        proxy.hold()
        until(lambda: "lease lost" in apart.said(), "it to stop its task by itself")
        scene.look.follow()
        assert scene.event("task/a/0/0").attempt == 1
        scene.until(lambda: on(scene, "a") == ("w1", 2, "RUNNING"), "the other one to take it over")
        goes_on(scene)
        proxy.heal()
        until(lambda: apart.page("/readyz")[0] == 200, "it to be back")
        scene.until(lambda: scene.look.state("worker/w0") == "BACK", "it to be heard")
        goes_on(scene)
        finish(scene)
        assert scene.starts("a") == [("w0", 1), ("w1", 2)]


def on(scene: Scene, job: str) -> tuple[str, int, str]:
    """Where the first task is, its attempt and its state."""
    event = scene.event(f"task/{job}/0/0")
    assert isinstance(event.state, Task)
    return event.state.worker, event.attempt, event.to


def test_D10_a_worker_that_slept_past_its_lease_publishes_nothing(where: tuple[str, Path]) -> None:
    with a_scene(*where, workers=0, worker__lease_ms=1500, coordinator__lease_ms=3000) as scene:
        sleeper = scene.worker("w0")
        scene.ready()
        endless(scene, checkpoint={"interval_ms": 50})
        scene.worker("w1")
        scene.ready()
        sleeper.freeze()
        scene.until(lambda: on(scene, "a") == ("w1", 2, "RUNNING"), "the other one to take it over")
        goes_on(scene)
        sleeper.wake()
        scene.until(lambda: scene.look.state("worker/w0") == "BACK", "it to be heard")
        goes_on(scene)
        finish(scene)


# Topics, disks, clocks and garbage -----------------------------------------------------------------------------------


def test_a_flood_of_garbage_stops_nobody_and_is_all_put_aside(where: tuple[str, Path]) -> None:
    with a_scene(*where, coordinators=1) as scene:
        leader = scene.led()
        endless(scene)
        before = resident_mb(leader.process.pid)
        topic, garbage = scene.cluster.topic("commands"), 20_000
        for number in range(garbage):
            scene.fleet.producer.produce(topic, os.urandom(200), b"k%d" % number, 0)
            if number % 5000 == 0:
                scene.fleet.producer.flush(30)
                scene.submit(f"valid-{number}", numbers("in", 10))
        scene.fleet.producer.flush(60)
        scene.submit("last", numbers("in", 10))
        for job in (*(f"valid-{number}" for number in range(0, garbage, 5000)), "last"):
            scene.until_job(job, "FINISHED")
        goes_on(scene)
        finish(scene)
        until(lambda: len(scene.recorder.log.partition("dead-letters", 0)) == garbage, "all of it in dead letters")
        assert 0 < resident_mb(leader.process.pid) < before + 150


def test_a_full_disk_under_the_mirror_costs_the_mirror_and_nothing_else(where: tuple[str, Path]) -> None:
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow a mount namespace of one's own (unshare -rm)")
    disk = where[1] / "disk"
    disk.mkdir()
    small = f'mount -t tmpfs -o size=2m tmpfs {disk} && exec {sys.executable} -m detent "$@"'
    with a_scene(*where, coordinators=0) as scene:
        program = Launch(("unshare", "-rm", "sh", "-c", small, "detent"))
        full = scene.coordinator("c0", program, **EAGER, **{"coordinator.state_dir": disk})
        scene.ready()
        scene.led()
        endless(scene)
        for number in range(6):  # each waits for a worker that has these labels, which can't be compressed
            scene.submit(f"large-{number}", numbers("in", 1), labels={"wanted": os.urandom(250_000).hex()})
        until(lambda: "can't be written and is behind" in full.said(), "the disk to be full")
        goes_on(scene)
        scene.coordinator("c1")
        scene.ready()
        scene.kill_leader(again=False)
        goes_on(scene)
        finish(scene)
        assert all(scene.look.state(f"job/large-{number}") == "CREATED" for number in range(6))


COMPACTED_SOON = {
    "segment.bytes": str(1024 * 1024), "segment.ms": "300", "min.cleanable.dirty.ratio": "0.001",
    "max.compaction.lag.ms": "300",
}  # fmt: skip


def test_a_new_leader_goes_on_from_what_compaction_has_left(where: tuple[str, Path]) -> None:
    topics = TopicSettings(forensics_window_ms=0, delete_retention_ms=60_000, extra={"events": COMPACTED_SOON})
    allowed = {"kafka__forensics_window_ms": 0, "kafka__delete_retention_ms": 60_000}
    with a_scene(*where, coordinators=1, topics=topics, **allowed) as scene:  # type: ignore[arg-type]
        scene.compacted = True
        scene.submit("done", numbers("in", 100))
        endless(scene, checkpoint={"interval_ms": 50})

        def cleaned() -> bool:
            left = sum(1 for _ in read_log(scene.cluster, {"events": 1}).of("events"))
            return left < len(scene.recorder.log.partition("events", 0)) / 2

        scene.until(cleaned, "the cleaner to have run", limit_s=120)
        scene.coordinator("c1", **{"coordinator.state_dir": where[1] / "empty"})
        scene.ready()
        before = scene.kill_leader(again=False).before
        assert before["job/a"].to == "RUNNING"
        goes_on(scene)
        assert scene.look.state("job/done") == "FINISHED"
        finish(scene)
