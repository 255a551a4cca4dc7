"""The worker as a process, on a real broker: orders followed once, reports repeated, restarts, cuts and ends."""

from __future__ import annotations

import json
import logging
import resource
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from events import records as r
from events.cluster import Cluster
from events.embedded import EmbeddedBroker
from events.errors import Place
from events.keys import order_key, shard_of
from events.reader import PartitionReader
from events.topics import ensure_topics
from events.writer import Outgoing
from tests.kafka_worker import CODEC, DEPLOY, Puppet, Script, inside, of, outside, who
from tests.logs import own_cluster, until
from tests.tiny_coordinator import TinyCoordinator
from workers import happenings as h
from workers import orders
from workers import store as stores
from workers.ledger import Phase, TaskKey
from workers.sender import REPORTS, Sender
from workers.store import LedgerDamaged, LedgerForeign

pytestmark = pytest.mark.broker
NOWHERE = Place("dead-letters", 0, -1)
LOG = logging.getLogger(__name__)


@pytest.fixture
def cluster(broker: EmbeddedBroker) -> Cluster:
    made = own_cluster(broker.bootstrap_servers, shards=2)
    ensure_topics(made)
    return made


@pytest.fixture
def script(cluster: Cluster) -> Iterator[Script]:
    made = Script(cluster)
    yield made
    made.close()


@pytest.fixture
def puppet() -> Puppet:
    return Puppet()


def numbers(path: Path, **options: Any) -> str:
    source = {"name": "in", "kind": "numbers", "options": options}
    return json.dumps({"source": [source], "sink": [{"name": "out", "kind": "lines", "from": ["in"],
                                                     "options": {"path": str(path)}}]})  # fmt: skip


# Orders are followed once --------------------------------------------------------------------------------------------


def test_D1_a_task_that_runs_is_not_started_again(
    cluster: Cluster, script: Script, puppet: Puppet, tmp_path: Path
) -> None:
    with inside(cluster, tmp_path, puppet):
        script.heard()
        script.order(DEPLOY)
        first = script.said(r.TaskRunning)
        assert script.heard(lambda beat: bool(beat.tasks)).tasks[0].attempt == 1
        script.order(DEPLOY)
        assert script.said(r.TaskRunning, count=2) == first
        puppet.says[who()](h.Crashed(who(), "boom"))
        assert script.said(r.TaskFailed).reason == "boom"  # as usual
        script.order(DEPLOY)
        script.said(r.TaskFailed, count=2)
        assert puppet.done == ["start 0/1"]


def test_D3_the_same_deploy_many_times_at_once_is_one_start_and_every_one_is_answered(
    cluster: Cluster, script: Script, puppet: Puppet, tmp_path: Path
) -> None:
    puppet.starts_by_itself = False
    copies = [script.outgoing(DEPLOY, who()) for _ in range(50)]
    with inside(cluster, tmp_path, puppet) as worker:
        script.heard()
        script.write(*copies)
        until(lambda: worker.service.metrics.orders.labels("Deploy")._value.get() == 50, "all orders")
        assert puppet.done == ["start 0/1"]
        assert not [x for x in script.listen() if isinstance(x.happening, r.TaskRunning)]
        puppet.says[who()](h.Started(who()))
        script.said(r.TaskRunning)  # the answer to all that came before
        for _ in range(3):
            script.write(*copies)
        script.said(r.TaskRunning, count=151)
        assert puppet.done == ["start 0/1"]


def test_D6_a_lower_attempt_is_refused_and_a_higher_one_fences_first(
    cluster: Cluster, script: Script, puppet: Puppet, tmp_path: Path
) -> None:
    puppet.stops_by_itself = False
    with inside(cluster, tmp_path, puppet, stop_patience_ms=60_000) as worker:
        script.heard()
        script.order(DEPLOY, who(2))
        script.said(r.TaskRunning, who(2))
        script.order(DEPLOY, who(1))
        assert script.said(r.TaskRefused, who(1)).reason.startswith("stale")
        script.order(DEPLOY, who(3))
        until(lambda: "stop 0/2" in puppet.done, "the fence")
        until(lambda: worker.service.metrics.orders.labels("Deploy")._value.get() == 3, "all orders")
        assert puppet.done == ["start 0/2", "stop 0/2"]
        puppet.says[who(2)](h.Stopped(who(2)))
        assert "fenced by attempt 3" in script.said(r.TaskStopped, who(2)).reason
        script.said(r.TaskRunning, who(3))
        assert puppet.done == ["start 0/2", "stop 0/2", "start 0/3"]
        puppet.stops_by_itself = True


def test_orders_of_other_workers_are_passed_over_and_the_position_moves_on(
    cluster: Cluster, script: Script, puppet: Puppet, tmp_path: Path
) -> None:
    neighbour = next(f"w1{i}" for i in range(100) if shard_of(f"w1{i}", 2) == shard_of("w1", 2))
    with inside(cluster, tmp_path, puppet) as worker:
        script.heard()
        script.write(*[script.outgoing(DEPLOY, who(job=f"j{i}"), worker=neighbour) for i in range(20)])
        script.order(DEPLOY)
        script.said(r.TaskRunning)
        script.write(*[script.outgoing(DEPLOY, who(job=f"j{i}"), worker=neighbour) for i in range(20)])
        until(lambda: worker.service.decider.store.position >= 41, "the position")
        assert worker.service.metrics.orders_of_others._value.get() == 40
    assert puppet.done[0] == "start 0/1"
    assert len([it for it in puppet.done if it.startswith("start")]) == 1


def test_an_order_that_can_not_be_read_is_put_aside_and_stops_nobody(
    cluster: Cluster, script: Script, puppet: Puppet, tmp_path: Path
) -> None:
    shard = shard_of("w1", cluster.shards)
    with inside(cluster, tmp_path, puppet) as worker:
        script.heard()
        rubbish = Outgoing("orders", shard, order_key("w1", "job", 0, 7), b"\xc3\x01rubbish")
        no_key = Outgoing("orders", shard, b"w1/job/x/0", None)
        script.write(rubbish, no_key, script.outgoing(DEPLOY, who()))
        script.said(r.TaskRunning)
        assert worker.service.metrics.dead_letters._value.get() == 2
    with PartitionReader(cluster, "dead-letters", 0) as reader:
        found: list[r.DeadLetter] = []

        def both() -> bool:
            found.extend(CODEC.decode(m.value(), r.DeadLetter, NOWHERE) for m in reader.poll(0.1))
            return len(found) == 2

        until(both, "two dead letters")
    assert found[0].value == b"\xc3\x01rubbish"
    assert {letter.by for letter in found} == {"worker w1"}
    assert "worker/job/pipeline/task" in found[1].reason


# Restarts ------------------------------------------------------------------------------------------------------------


def test_D9_a_worker_killed_and_started_again_tells_at_once_what_was_lost(
    cluster: Cluster, script: Script, tmp_path: Path
) -> None:
    deploy = r.Deploy(specification=numbers(tmp_path / "out", rows=-1, rate=50))
    with outside(cluster, tmp_path / "state") as worker:
        old = script.heard().instance
        script.order(deploy)
        script.said(r.TaskRunning)
        assert script.heard(lambda beat: bool(beat.tasks)).tasks[0].attempt == 1  # it runs when it is killed
        worker.kill()
    killed = time.monotonic()
    script.listen()
    heard = len(script.reports)
    with outside(cluster, tmp_path / "state") as worker:
        assert script.said(r.TaskFailed).reason == "the worker restarted"
        took_s = time.monotonic() - killed
        LOG.warning("the loss was told after %.2f s, of which the start of the process is nearly all", took_s)
        assert isinstance(script.reports[heard].happening, r.TaskFailed), "it is the first thing that is said"
        new = script.heard(lambda beat: beat.instance != old)
        assert not new.tasks
        script.withdraw()
        script.order(deploy, who(2))
        script.said(r.TaskRunning, who(2))
        assert worker.measured("starts_total") == 1


def test_O2_a_report_is_repeated_until_it_is_withdrawn(
    cluster: Cluster, script: Script, puppet: Puppet, tmp_path: Path
) -> None:
    with inside(cluster, tmp_path, puppet) as worker:
        script.heard()
        script.order(DEPLOY)
        script.said(r.TaskRunning)
        puppet.says[who()](h.Exhausted(who(), b"end"))
        script.said(r.TaskReady, count=3)  # nobody has noted it
        puppet.says[who()](h.Crashed(who(), "boom"))
        script.said(r.TaskFailed, count=3)
        assert worker.service.decider.store.entries == 1
    counted = len([x for x in script.listen() if isinstance(x.happening, r.TaskFailed)])
    with inside(cluster, tmp_path, puppet) as worker:  # the next process holds it as well
        script.said(r.TaskFailed, count=counted + 2)
        script.withdraw()
        until(lambda: worker.service.decider.store.entries == 0, "the withdrawal")
        script.listen()
        counted = len(script.reports)
        for _ in range(10):
            script.heard()  # a second, by its own beats; a repetition is due after 400 ms at most
        assert len(script.reports) == counted
    assert puppet.done == ["start 0/1", "close", "close"]


def test_O2_kept_reports_are_on_the_log_before_a_new_process_is_heard(
    cluster: Cluster, script: Script, puppet: Puppet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its heartbeat, which knows nothing of the attempt, may be decided on first: the failure loses its cause."""
    with inside(cluster, tmp_path, puppet):
        script.heard()
        script.order(DEPLOY)
        script.said(r.TaskRunning)
        puppet.says[who()](h.Crashed(who(), "boom", lasting=True))
        script.said(r.TaskFailed)
    happened: list[str] = []
    beat, delivered = Sender.heartbeat, Sender._delivered

    def noting_beats(sender: Sender, *given: Any, **options: Any) -> None:
        happened.append("a heartbeat is sent")
        beat(sender, *given, **options)

    def noting_answers(sender: Sender, by: int, topic: str, sent_ms: int, error: Any, message: Any) -> None:
        happened.append(f"sent to {topic}: {error or 'taken'}")
        delivered(sender, by, topic, sent_ms, error, message)

    monkeypatch.setattr(Sender, "heartbeat", noting_beats)
    monkeypatch.setattr(Sender, "_delivered", noting_answers)
    told = len([report for report in script.listen() if isinstance(report.happening, r.TaskFailed)])
    with inside(cluster, tmp_path, puppet, instance="i2"):
        script.heard(lambda it: it.instance == "i2")
        assert script.said(r.TaskFailed, count=told + 1).lasting
    assert happened[0] == f"sent to {REPORTS}: taken"


def test_an_order_that_was_followed_and_withdrawn_is_not_followed_again_after_a_restart(
    cluster: Cluster, script: Script, puppet: Puppet, tmp_path: Path
) -> None:
    with inside(cluster, tmp_path, puppet) as worker:
        script.heard()
        script.order(DEPLOY)
        script.said(r.TaskRunning)
        script.withdraw()
        until(lambda: worker.service.decider.store.entries == 0, "the withdrawal")
    with inside(cluster, tmp_path, puppet):
        script.heard()
        script.order(DEPLOY, who(task=1))
        script.said(r.TaskRunning, who(task=1))
    assert [it for it in puppet.done if it.startswith("start")] == ["start 0/1", "start 1/1"]


def test_a_lost_disk_begins_at_the_end_of_the_orders_and_says_so(
    cluster: Cluster, script: Script, puppet: Puppet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script.order(DEPLOY)  # of a life that this worker has forgotten
    with inside(cluster, tmp_path, puppet):
        script.heard()
        script.order(DEPLOY, who(task=1))
        script.said(r.TaskRunning, who(task=1))
    assert [it for it in puppet.done if it.startswith("start")] == ["start 1/1"]
    (said,) = [line for line in caplog.records if "there is no ledger" in line.message]
    assert "its disk was lost" in said.message
    assert said.message.endswith(f"worker=w1 partition={shard_of('w1', 2)} position=2")  # the order and its marker


def test_a_ledger_that_can_not_be_trusted_is_refused(
    cluster: Cluster, script: Script, puppet: Puppet, tmp_path: Path, broker: EmbeddedBroker
) -> None:
    with inside(cluster, tmp_path, puppet):
        script.heard()
    another = own_cluster(broker.bootstrap_servers, shards=2)
    with pytest.raises(LedgerForeign, match="made anew"), inside(another, tmp_path, puppet) as worker:
        worker.thread.join(60)
    (tmp_path / "ledger/CURRENT").unlink()
    with pytest.raises(LedgerDamaged, match="Move that directory away"), inside(cluster, tmp_path, puppet) as worker:
        worker.thread.join(60)


# The end -------------------------------------------------------------------------------------------------------------


def test_a_graceful_stop_tells_of_everything_and_ends_with_0(cluster: Cluster, script: Script, tmp_path: Path) -> None:
    deploy = r.Deploy(specification=numbers(tmp_path / "out", rows=-1, rate=50))
    with outside(cluster, tmp_path / "state") as worker:
        script.heard()
        for job in ("a", "b"):
            script.order(deploy, who(job=job))
            script.said(r.TaskRunning, who(job=job))
        assert worker.page("/readyz")[0] == 200
        assert worker.page("/healthz") == (200, "ok\n")
        worker.signal(signal.SIGTERM)
        began = time.monotonic()
        assert worker.ended(20) == 0
        LOG.warning("it took %.2f s to stop", time.monotonic() - began)
        for job in ("a", "b"):
            assert script.said(r.TaskStopped, who(job=job)).reason == "the worker is shutting down"
        until(lambda: script.listen() and script.beats[-1].draining and not script.beats[-1].tasks, "its last beat")
        assert "stopped" in worker.said
    with outside(cluster, tmp_path / "state"):
        script.said(r.TaskStopped, who(job="b"), count=2)  # until it is withdrawn


def test_a_task_that_does_not_stop_does_not_keep_the_worker(
    cluster: Cluster, script: Script, puppet: Puppet, tmp_path: Path
) -> None:
    puppet.stops_by_itself = False
    with inside(cluster, tmp_path, puppet, stop_patience_ms=300) as worker:
        script.heard()
        script.order(DEPLOY)
        script.said(r.TaskRunning)
        assert worker.stop() == 0
    assert "did not stop in time" in script.said(r.TaskStopped).reason


def test_no_deploy_is_followed_while_it_drains(
    cluster: Cluster, script: Script, puppet: Puppet, tmp_path: Path
) -> None:
    puppet.stops_by_itself = False
    with inside(cluster, tmp_path, puppet, stop_patience_ms=20_000) as worker:
        script.heard()
        script.order(DEPLOY)
        script.said(r.TaskRunning)
        worker.service.stop()
        script.heard(lambda beat: beat.draining)
        script.order(DEPLOY, who(task=1))
        assert "draining" in script.said(r.TaskRefused, who(task=1)).reason
        puppet.says[who()](h.Stopped(who()))
        assert worker.stop() == 0
    assert puppet.done == ["start 0/1", "stop 0/1", "close"]


def test_a_full_disk_ends_the_worker_and_nothing_is_told_that_is_not_stored(
    cluster: Cluster, script: Script, tmp_path: Path
) -> None:
    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))

    state = tmp_path / "state"
    endless = r.Deploy(specification=numbers(tmp_path / "out", rows=-1, rate=5))
    with outside(cluster, state, before=full) as worker:
        script.heard()
        script.order(endless, who(job="endless"))
        script.said(r.TaskRunning, who(job="endless"))
        attempt, job = 0, "stored" * 80
        while worker.child.poll() is None and attempt < 5000:
            attempt += 1
            script.order(r.StopTask(reason="x" * 500), who(attempt, job=job))
        assert worker.ended(30) == 1, worker.said
        assert "can't be written" in worker.said
        assert "Free some space" in worker.said
    until(lambda: of(script.listen()[-1]).job == job, "the last word")
    told = max(of(x).attempt for x in script.reports if x.job == job)
    assert not [x for x in script.reports if x.job == "endless" and isinstance(x.happening, r.TaskStopped)]
    (path,) = state.glob("worker/id-w1/0/ledger")
    store, ledger = stores.load(path)
    store.close()
    stored = ledger.tasks[TaskKey(job, 0, 0)].who.attempt
    LOG.warning("attempts ordered=%d stored=%d told=%d", attempt, stored, told)
    assert told <= stored < attempt
    assert ledger.tasks[TaskKey("endless", 0, 0)].phase is Phase.RUNNING
    with outside(cluster, state):  # there is room again
        assert script.said(r.TaskFailed, who(job="endless")).reason == "the worker restarted"


def test_a_worker_whose_orders_are_gone_stops_its_tasks_and_ends(
    cluster: Cluster, script: Script, puppet: Puppet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "CHECK_EVERY_S", 0.3)
    with inside(cluster, tmp_path, puppet) as worker:
        script.heard()
        script.order(DEPLOY)
        script.said(r.TaskRunning)
        admin = cluster.admin()
        admin.delete_topics([cluster.topic("orders")])[cluster.topic("orders")].result(30)
        worker.thread.join(60)
        assert worker.code == 1
        assert puppet.done == ["start 0/1", "stop 0/1", "close"]
    assert script.said(r.TaskStopped).reason == "the worker is shutting down"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("worker.engine=os:system", "os is in none of the allowed modules"),
        ("worker.health_address=203.0.113.7:1", "Set worker.health_address"),
        ("worker.state_dir=/proc/nowhere", "Set worker.state_dir or state_dir"),
    ],
)
def test_what_it_can_not_start_with_is_said(cluster: Cluster, tmp_path: Path, change: str, reason: str) -> None:
    with outside(cluster, tmp_path / "state", change) as worker:
        assert worker.ended() == 1
        assert reason in worker.said
        assert "Traceback" not in worker.said


def test_two_processes_are_not_one_worker(cluster: Cluster, script: Script, tmp_path: Path) -> None:
    with outside(cluster, tmp_path / "state"):
        script.heard()
        with outside(cluster, tmp_path / "state") as second:
            assert second.ended() == 1
            assert "another process on this machine is worker w1 already" in second.said


# All together --------------------------------------------------------------------------------------------------------


def test_a_job_from_its_deployment_to_the_removal_of_its_staging(
    cluster: Cluster, script: Script, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def give(order: r.Order | h.Withdrawn) -> None:
        at = who()._replace(pipeline=order.pipeline, task=order.task)
        if isinstance(order, h.Withdrawn):
            script.withdraw(at)
        else:
            script.order(order.action, at._replace(attempt=order.attempt))

    coordinator = TinyCoordinator(numbers(out, rows=500, rate=500), 1, give)
    with outside(cluster, tmp_path / "state") as worker:
        script.heard()
        coordinator.start()
        seen = 0

        def tended() -> bool:
            nonlocal seen
            for report in script.listen()[seen:]:
                seen += 1
                coordinator.hear(report)
            coordinator.tend()
            return coordinator.done

        until(tended, "the job's end")
        assert worker.measured('publications_total{outcome="published"}') == len(coordinator.committed) > 1
        assert worker.measured("starts_total") == 1
        assert worker.measured('tasks{phase="RUNNING"}') == 0
    lines = Counter(line for file in out.glob("*") if file.is_file() for line in file.read_text().splitlines())
    assert lines == Counter(f"in {n}" for n in range(500))
    assert not list((out / ".staging").iterdir())
