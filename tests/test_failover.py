"""The scenarios marked K, on a real broker with real processes that are killed with -9, frozen and woken.

Each test shows by the log that it hit the moment that it names, and ends with the oracle (tests/oracle), which judges
the whole run by the log and the output. Deadlines here are for hanging; no test asserts a time. Where a moment would
pass by itself, those who would end it are frozen in it: a busy machine must not miss it.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from events.embedded import EmbeddedBroker
from events.records import (
    Cancel,
    Checkpoint,
    DeadLetter,
    Event,
    Job,
    Restore,
    Stop,
    TakeSavepoint,
    Task,
    TaskFailed,
    TaskReady,
    TaskRefused,
    TaskRunning,
)
from tests.logs import a_writer
from tests.oracle.facts import decoded
from tests.scenes import EAGER, Scene, a_scene, numbers

pytestmark = pytest.mark.broker


@pytest.fixture
def where(broker: EmbeddedBroker, tmp_path: Path) -> tuple[str, Path]:
    """The broker and a directory."""
    return broker.bootstrap_servers, tmp_path


def marked(known: dict[str, Event], job: str) -> int:
    return sum(key.startswith(f"ready/{job}/") for key in known)


def a_checkpoint(known: dict[str, Event], job: str, kind: str = "checkpoint") -> tuple[str, Checkpoint]:
    """Its state and what is known of it."""
    event = known[f"{kind}/{job}/0"]
    assert isinstance(event.state, Checkpoint)
    return event.to, event.state


def a_task(known: dict[str, Event], job: str, number: int = 0) -> Task:
    state = known[f"task/{job}/0/{number}"].state
    assert isinstance(state, Task)
    return state


# D: deploying is idempotent ------------------------------------------------------------------------------------------


def test_D1_K_a_deploy_order_for_a_task_that_never_stopped_does_not_touch_it(where: tuple[str, Path]) -> None:
    """A rolling restart of the coordinators, and then the order once more."""
    with a_scene(*where) as scene:
        scene.submit("a", numbers("in", rate=300))
        scene.until_job("a", "RUNNING")
        for _ in range(2):
            assert scene.kill_leader().before["task/a/0/0"].to == "RUNNING"
        ((record, order),) = scene.deploys("a")
        answered = len(scene.said("a", TaskRunning))
        now = replace(order, epoch=scene.event("leader/0").epoch)  # the new leader's own
        scene.again(record._replace(value=scene.fleet.codec.encode(now)))
        scene.until(lambda: len(scene.said("a", TaskRunning)) > answered, "an answer to the order")
        assert scene.look.state("task/a/0/0") == "RUNNING"
        scene.send("a", Stop())
        scene.until_job("a", "FINISHED")
        assert scene.starts("a") == [("w0", 1)]


def test_D3_K_the_same_deploy_order_many_times_at_once_is_one_start(where: tuple[str, Path]) -> None:
    with a_scene(*where, coordinators=1) as scene:
        worker = scene.workers["w0"]
        worker.freeze()
        scene.submit("a", numbers("in", 500, rate=500))
        scene.until(lambda: scene.look.state("task/a/0/0") == "DEPLOYING", "the task to be placed")
        ((record, _),) = scene.deploys("a")
        threads = [threading.Thread(target=scene.again, args=(record, 25)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(scene.deploys("a")) == 101
        assert not scene.starts("a")
        worker.wake()
        scene.until_job("a", "RUNNING")
        scene.again(record, 10)
        scene.until(lambda: len(scene.said("a", TaskRunning)) > 10, "an answer to each that came since")
        scene.until_job("a", "FINISHED")
        assert scene.starts("a") == [("w0", 1)]
        assert not scene.said("a", TaskRefused)
        assert not scene.said("a", TaskFailed)


def test_D5_K_the_leader_dies_after_the_task_started_and_before_it_wrote_so(where: tuple[str, Path]) -> None:
    with a_scene(*where) as scene:
        worker, leader = scene.workers["w0"], scene.led()
        worker.freeze()
        scene.submit("a", numbers("in", 1000, rate=1000))
        scene.until(lambda: scene.look.state("task/a/0/0") == "DEPLOYING", "the task to be placed")
        leader.freeze()
        worker.wake()
        scene.until(lambda: scene.starts("a") and scene.said("a", TaskRunning), "the worker to start it and say so")
        before = scene.next_leader(leader.kill).before
        assert before["task/a/0/0"].to == "DEPLOYING"
        scene.until_job("a", "FINISHED")
        assert scene.starts("a") == [("w0", 1)]


def test_D7_K_a_task_that_is_stuck_is_seen_and_started_anew_or_shown_for_as_long(where: tuple[str, Path]) -> None:
    with a_scene(*where, worker__stall_ms=700) as scene:
        scene.submit("anew", numbers("in", 1000, stall_after_rows=400))
        scene.submit("shown", numbers("in", 1000, stall_after_rows=400, stall_times=-1), restart_stalled=False)

        def stalled(known: dict[str, Event]) -> bool:
            return a_task(known, "shown").reason.startswith("STALLED")

        scene.until(lambda: scene.look.state("task/shown/0/0") and stalled(scene.look.known), "the stall to be seen")
        assert 'detent_worker_tasks{phase="RUNNING"}' in scene.workers["w0"].page("/metrics")[1]
        assert stalled(scene.kill_leader().before)
        record, order = scene.deploys("shown")[0]
        answered = len(scene.said("shown", TaskRunning))
        now = replace(order, epoch=scene.event("leader/0").epoch)
        scene.again(record._replace(value=scene.fleet.codec.encode(now)))
        scene.until(lambda: len(scene.said("shown", TaskRunning)) > answered, "an answer: it runs")
        assert stalled(scene.look.known)
        scene.until_job("anew", "FINISHED")
        assert scene.starts("anew") == [("w0", 1), ("w0", 2)]
        scene.send("shown", Cancel())
        scene.until_job("shown", "CANCELED")


def test_D9_K_a_worker_that_was_killed_tells_at_once_what_it_lost(where: tuple[str, Path]) -> None:
    with a_scene(*where, worker__lease_ms=600_000, coordinator__lease_ms=600_000) as scene:
        scene.submit("a", numbers("in", rate=1000))
        committed = scene.until_committed("a")
        scene.workers["w0"].kill()
        scene.look.follow()
        assert scene.look.state("task/a/0/0") == "RUNNING"
        scene.worker("w0")
        scene.until_runs("a/0/0", attempt=2)
        scene.until_committed("a", committed + 2)
        scene.send("a", Stop())
        scene.until_job("a", "FINISHED")
        order = next(order for _, order in scene.deploys("a") if order.attempt == 2)
        assert order.action.checkpoint >= committed  # type: ignore[union-attr]
        assert not [key for key in scene.look.known if key.startswith("worker/")], "nobody waited for the lease"


# R: ready-to-close is durable ----------------------------------------------------------------------------------------


def test_R1_K_the_leader_dies_when_some_tasks_of_a_pipeline_are_ready_and_some_are_not(where: tuple[str, Path]) -> None:
    with a_scene(*where) as scene:
        scene.submit("a", numbers("short", 100), numbers("long", 3000, parallelism=2, rate=500), numbers("tiny", 1))
        scene.until(lambda: marked(scene.look.known, "a") == 2, "two of four tasks to be ready")
        with scene.held():
            before = scene.kill_leader(again=False).before
        assert 0 < marked(before, "a") < 4
        assert before["pipeline/a/0"].to == "RUNNING"
        newest = a_checkpoint(before, "a")[1].id if "checkpoint/a/0" in before else 0
        scene.until_committed("a", newest + 1)  # a normal one
        scene.until_job("a", "FINISHED")


def test_R2_K_the_leader_dies_when_all_tasks_are_ready(where: tuple[str, Path]) -> None:
    """At three moments: the final checkpoint is not triggered, is pending, is completed and not committed."""
    with a_scene(*where, workers=2, worker__slots=1) as scene:  # a task on each
        not_triggered(scene)
        pending(scene)
        not_committed(scene)
        for job in ("a", "b", "c"):
            scene.until_job(job, "FINISHED")


def not_triggered(scene: Scene) -> None:
    """The last mark comes while an earlier checkpoint is being published."""
    scene.submit("a", numbers("one", 50), numbers("two", 900, rate=900), sink={"slow_publish_ms": 1000})
    scene.until(lambda: marked(scene.look.known, "a") == 2, "all tasks to be ready")
    with scene.held():
        before = scene.kill_leader().before
    assert marked(before, "a") == 2
    state, known = a_checkpoint(before, "a")
    assert (state, known.purpose) == ("COMPLETED", "PERIODIC")
    assert a_checkpoint(before, "a", "pending")[1].purpose == "PERIODIC"


def pending(scene: Scene) -> None:
    """One of the tasks can't acknowledge it: its worker is frozen."""
    scene.led()
    sources = numbers("one", 50), numbers("two", 1500, rate=500)
    scene.submit("b", *sources, checkpoint={"interval_ms": 60_000})
    scene.until(lambda: "ready/b/0/0" in scene.look.known, "the first task to be ready")
    frozen, other = (a_task(scene.look.known, "b", number).worker for number in (0, 1))
    assert frozen != other
    scene.workers[frozen].freeze()
    scene.until(lambda: marked(scene.look.known, "b") == 2, "all tasks to be ready")
    before = scene.kill_leader().before
    state, known = a_checkpoint(before, "b", "pending")
    assert (state, known.purpose) == ("TRIGGERED", "FINAL")
    scene.workers[frozen].wake()


def not_committed(scene: Scene) -> None:
    scene.led()
    scene.submit("c", numbers("one", 50), sink={"slow_publish_ms": 1000}, checkpoint={"interval_ms": 60_000})
    scene.until(lambda: scene.look.state("checkpoint/c/0") == "COMPLETED", "the final checkpoint to be completed")
    with scene.held():
        before = scene.kill_leader(again=False).before
    state, known = a_checkpoint(before, "c")
    assert (state, known.purpose) == ("COMPLETED", "FINAL")


def test_R6_K_a_streaming_job_stays_running_and_its_checkpoint_ids_only_grow(where: tuple[str, Path]) -> None:
    with a_scene(*where) as scene:
        scene.submit("a", numbers("in", rate=300), checkpoint={"interval_ms": 50})
        last = scene.until_committed("a")
        for _ in range(3):
            before = scene.kill_leader().before
            assert before["job/a"].to == "RUNNING"
            last = scene.until_committed("a", a_checkpoint(before, "a")[1].id + 1)
        ids = [s.event.state.id for s in scene.look.seen if s.key == "pending/a/0" and s.event
               and s.event.to == "TRIGGERED" and isinstance(s.event.state, Checkpoint)]  # fmt: skip
        assert ids == sorted(set(ids))
        assert last in ids
        assert scene.count("job/a", "RUNNING") == 1
        scene.send("a", Stop())
        scene.until_job("a", "FINISHED")
        assert scene.starts("a") == [("w0", 1)]


# T: terminal states stay for a while, then go for good ---------------------------------------------------------------


def test_T2_K_the_cleanup_survives_two_leaders_that_die_during_its_delay(where: tuple[str, Path]) -> None:
    with a_scene(*where, coordinators=3) as scene:
        scene.submit("a", numbers("in", 100), cleanup_delay_ms=6000)
        scene.until_job("a", "FINISHED")
        for _ in range(2):
            assert scene.kill_leader(again=False).before["cleanup/a/1"].to == "PROMISED"
        scene.until_gone("a")
        begun = [
            s.event for s in scene.look.seen if s.key == "cleanup/a/1" and s.event and s.event.transition == "begun"
        ]
        assert len(begun) == 1
        assert scene.look.state("summary/a/1") == "LISTED"


def test_T7_K_a_job_that_loses_its_worker_and_has_no_retries_fails_and_leaves_nothing(where: tuple[str, Path]) -> None:
    with a_scene(*where, workers=2, worker__lease_ms=2000, coordinator__lease_ms=2500) as scene:
        never = {"interval_ms": 600_000}
        scene.submit("a", numbers("in", rate=500), restart={"retries": 0}, checkpoint=never, cleanup_delay_ms=1000)
        scene.until_job("a", "RUNNING")
        worker = scene.workers[a_task(scene.look.known, "a").worker]
        assert "checkpoint/a/0" not in scene.look.known
        assert scene.look.state("job/a") == "RUNNING"
        worker.kill()
        scene.until_job("a", "FAILED")
        before = scene.kill_leader(again=False).before
        assert before["job/a"].to == "FAILED"
        assert f"worker {worker.name} is lost" in before["job/a"].state.reason  # type: ignore[union-attr]
        scene.until_gone("a")
        assert scene.starts("a") == [(worker.name, 1)]
        assert scene.files("a") == []


# Z: no zombies -------------------------------------------------------------------------------------------------------


def test_Z1_K_a_job_that_has_ended_is_never_restored(where: tuple[str, Path]) -> None:
    """The leader dies right after the terminal event of each kind; every later one sees all that ended before."""
    with a_scene(*where) as scene:
        ended: dict[str, str] = {}
        for job, state in (("fails", "FAILED"), ("off", "CANCELED"), ("done", "FINISHED"), ("kept", "SAVEPOINTED")):
            ends(scene, job, state)
            ended[job] = state
            takeover = scene.kill_leader(again=len(ended) < 4)
            assert {job: takeover.before[f"job/{job}"].to for job in ended} == ended
            assert takeover.before[f"cleanup/{job}/{takeover.before[f'job/{job}'].incarnation}"].to == "PROMISED"
        scene.submit("last", numbers("in", 10))
        scene.until_job("last", "FINISHED")
        assert {job: scene.look.state(f"job/{job}") for job in ended} == ended
        assert all(len(scene.starts(job)) == 1 for job in ended)


def ends(scene: Scene, job: str, state: str) -> None:
    """Submit a job and see it end so."""
    sources: dict[str, dict[str, Any]] = {
        "FAILED": numbers("in", 500, fail_after_rows=50, fail_lasting=True),
        "FINISHED": numbers("in", 50),
    }
    scene.submit(job, sources.get(state, numbers("in", rate=300)))
    if state in ("CANCELED", "SAVEPOINTED"):
        scene.until_job(job, "RUNNING")
        scene.send(job, Cancel() if state == "CANCELED" else TakeSavepoint(name="end", stop=True))
    scene.until_job(job, state)


# O: the last step is healed, not lost --------------------------------------------------------------------------------


def test_O2_K_the_transaction_that_completes_the_last_task_aborts(where: tuple[str, Path]) -> None:
    """The leader is fenced before it commits what the last task said: the report is decided on again. And where nobody
    leads for a while, the worker repeats it until somebody does."""
    with a_scene(*where, coordinators=1) as scene:
        leader = scene.led()
        never = {"interval_ms": 600_000}
        scene.submit("a", numbers("in", 600, rate=600), checkpoint=never)
        scene.until_job("a", "RUNNING")
        epoch = scene.event("leader/0").epoch
        a_writer(scene.cluster).close()  # from now on the leader's next commit fails
        takeover = scene.takeover(epoch)
        assert takeover.before["task/a/0/0"].to == "RUNNING"
        scene.until(lambda: scene.said("a", TaskReady), "the last task to have said that it is done")
        assert "fenced, stands by again" in leader.said()
        scene.until_job("a", "FINISHED")

        scene.submit("b", numbers("in", 600, rate=600), checkpoint=never)
        scene.until_job("b", "RUNNING")
        leader.kill()
        scene.until(lambda: len(scene.said("b", TaskReady)) >= 3, "the worker to repeat its report")
        scene.look.follow()
        assert marked(scene.look.known, "b") == 0
        scene.coordinator("c1", **EAGER)
        scene.until_job("b", "FINISHED")
        assert scene.count("ready/a/0/0", "READY") == scene.count("ready/b/0/0", "READY") == 1


def test_O3_K_publishing_that_fails_is_tried_again_visibly_or_ends_the_job_untouched(where: tuple[str, Path]) -> None:
    with a_scene(*where) as scene:
        slow = {"backoff_ms": 300, "max_backoff_ms": 300}
        scene.submit("a", numbers("in", 100), sink={"refuse_publish_times": 8}, commit=slow)
        scene.submit("b", numbers("in", 100), sink={"refuse_publish_for_good": True}, cleanup_delay_ms=100)

        def tried(known: dict[str, Event]) -> bool:
            state, checkpoint = a_checkpoint(known, "a")
            return state == "COMPLETED" and checkpoint.tries >= 2 and "refuses for now" in checkpoint.reason

        scene.until(lambda: "checkpoint/a/0" in scene.look.known and tried(scene.look.known), "some tries")
        assert tried(scene.kill_leader(again=False).before)
        scene.until_job("a", "FINISHED")
        scene.until_gone("b")
        assert scene.count("job/b", "FAILED") == 1
        assert scene.files("b") == []


def test_O4_K_a_crash_after_publishing_and_before_its_event_publishes_nothing_twice(where: tuple[str, Path]) -> None:
    with a_scene(*where) as scene:
        leader, worker = scene.led(), scene.workers["w0"]
        never = {"interval_ms": 600_000}
        scene.submit("a", numbers("one", 50), numbers("two", 50), sink={"slow_publish_ms": 1000}, checkpoint=never)
        scene.until(lambda: scene.look.state("checkpoint/a/0") == "COMPLETED", "the final checkpoint to be completed")
        leader.freeze()
        scene.until(lambda: scene.files("a"), "something to be published")
        worker.kill()
        published = set(scene.files("a"))
        before = scene.next_leader(leader.kill).before
        assert before["checkpoint/a/0"].to == "COMPLETED"
        scene.worker("w0")
        scene.until_job("a", "FINISHED")
        assert published <= set(scene.files("a"))


# B: what the users of such engines still ask for ---------------------------------------------------------------------


def test_B2_K_whatever_failed_before_a_job_goes_on_from_its_newest_committed_checkpoint(
    where: tuple[str, Path],
) -> None:
    with a_scene(*where) as scene:
        scene.submit("a", numbers("in", rate=500), checkpoint={"interval_ms": 100})
        scene.until_committed("a", 2)
        scene.kill_leader()
        scene.until_committed("a", a_checkpoint(scene.look.known, "a")[1].id + 1)
        scene.kill_leader()
        scene.workers["w0"].kill()
        scene.look.follow()
        committed = a_checkpoint(scene.look.known, "a")[1].id
        assert committed >= 3
        scene.worker("w0")
        scene.until_runs("a/0/0", attempt=2)
        scene.until_committed("a", committed + 1)
        scene.send("a", Cancel())
        scene.until_job("a", "CANCELED")
        last = a_checkpoint(scene.look.known, "a")[1].id
        assert "incarnation 2" in scene.send("a", Restore()).reason
        scene.until_committed("a", last + 1)
        begins = {(order.incarnation, order.attempt): order.action.checkpoint for _, order in scene.deploys("a")}  # type: ignore[union-attr]
        assert begins[1, 1] == 0
        assert begins[1, 2] >= committed
        assert begins[2, 1] == last
        scene.send("a", Stop())
        scene.until_job("a", "FINISHED")


def test_B5_K_a_record_that_can_not_be_read_ends_its_job_and_no_other(where: tuple[str, Path]) -> None:
    with a_scene(*where) as scene:
        for job in ("a", "b"):
            scene.submit(job, numbers("in", rate=500))
            scene.until_committed(job)
        place = plant(scene, b"task/a/0/0", b"\xc3\x01 what is this?")
        scene.until_committed("a", scene.until_committed("a") + 1)  # the leader, who knows it by heart, goes on
        takeover = scene.kill_leader(again=False)
        assert takeover.before["job/a"].to == takeover.before["job/b"].to == "RUNNING"
        scene.until_job("a", "FAILED")
        ended = scene.event("job/a").state
        assert isinstance(ended, Job)
        assert ended.quarantined
        assert "task/a/0/0 can't be read" in ended.reason
        scene.send("b", Stop())
        scene.until_job("b", "FINISHED")
        scene.until(lambda: scene.recorder.log.partition("dead-letters", 0), "the dead letter")
        letter: DeadLetter = decoded(scene.fleet.codec, scene.recorder.log.partition("dead-letters", 0)[0], DeadLetter)
        assert (letter.topic, letter.key, letter.value) == ("events", b"task/a/0/0", b"\xc3\x01 what is this?")
        assert place[0] == "events"


def plant(scene: Scene, key: bytes, value: bytes) -> tuple[str, int, int]:
    """Write a record onto the events topic, in a transaction as everybody does."""
    producer = scene.cluster.producer(transactional_id=f"{scene.cluster.prefix}-somebody")
    producer.init_transactions(30)
    producer.begin_transaction()
    offsets: list[int] = []
    topic = scene.cluster.topic("events")
    producer.produce(topic, value, key, 0, on_delivery=lambda _, message: offsets.append(message.offset() or 0))
    producer.commit_transaction(30)
    scene.planted.append(("events", 0, offsets[0]))
    return scene.planted[-1]
