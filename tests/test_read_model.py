"""The read model: its indexes against the plain way of counting, and a whole one on a real log."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from coordinator.health_watch import HealthWatch
from coordinator.job_index import JobIndex
from coordinator.lifecycle import TERMINAL_JOB
from coordinator.read_model import Change, ReadModel
from coordinator.soft_reading import SoftReading
from events.cluster import Cluster
from events.codec import Codec
from events.embedded import EmbeddedBroker
from events.records import (
    Beat,
    Cancel,
    Event,
    Heartbeat,
    Job,
    ShardLed,
    StagingRemoved,
    Summary,
    TaskProgress,
    TaskRunning,
)
from events.topics import ensure_topics
from tests.logs import own_cluster, until
from tests.published import publish
from tests.scenes import a_scene, numbers
from tests.shard import Shard
from tests.strategies import an_event

STATES = ["CREATED", "RUNNING", "FINISHED", "FAILED"]


def job_event(name: str, incarnation: int, state: str, at: int) -> Event:
    event = an_event(f"job/{name}", 1, incarnation, 0, 1, Job(pipelines=1, submitted_at=at))
    return replace(event, job=name, to=state)


def summary_event(name: str, incarnation: int, state: str, at: int) -> Event:
    summary = Summary(submitted_at=at, ended_at=at + 1, reason=f"{state}: because")
    return replace(an_event(f"summary/{name}/{incarnation}", 1, incarnation, 0, 1, summary), job=name)


# One step: which job, its incarnation, and what becomes of it. None is that it goes.
STEPS = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.integers(1, 2), st.sampled_from([*STATES, None]), st.sampled_from(["job", "summary"])
    ),
    max_size=40,
)


@given(STEPS)
def test_the_index_lists_what_there_is_in_order(steps: list[tuple[str, int, str | None, str]]) -> None:
    index, known = JobIndex(), dict[tuple[str, str, int], Event]()
    for name, incarnation, state, kind in steps:
        make = job_event if kind == "job" else summary_event
        after = make(name, incarnation, state, 100 * incarnation + ord(name)) if state else None
        # The key of a job is its id: a new incarnation takes the place of the one before.
        replaced = [key for key in known if key[:2] == (kind, name) and (kind == "job" or key[2] == incarnation)]
        before = known.pop(replaced[0]) if replaced else None
        index.note(before, after)
        if after is not None:
            known[kind, name, incarnation] = after
    expected = dict[tuple[str, int], str]()
    for (kind, name, incarnation), event in known.items():
        if kind == "summary" and isinstance(event.state, Summary):
            expected.setdefault((name, incarnation), event.state.reason.partition(":")[0])
    for (kind, name, incarnation), event in known.items():
        if kind == "job":
            expected[name, incarnation] = event.to
    again = JobIndex()
    again.load(known.values())
    for one in (index, again):
        found, total = one.find(limit=100)
        assert total == len(found) == len(expected)
        assert {each.key for each in found} == set(expected)
        assert found == sorted(found)
        for state in STATES:
            assert {each.key for each in one.find([state])[0]} == {
                key for key, is_in in expected.items() if is_in == state
            }
        ended = {key for key, is_in in expected.items() if is_in in TERMINAL_JOB}
        assert {each.key for each in one.find(["ended"])[0]} == ended
        assert {each.key for each in one.find(["running"])[0]} == set(expected) - ended
        assert sum(one.counts().values()) == len(expected)
        assert one.newest("a") == max((number for name, number in expected if name == "a"), default=0)


def test_a_page_is_a_part_of_what_the_filter_lets_through() -> None:
    index = JobIndex()
    index.load(job_event(f"job-{n:03}", 1, STATES[n % 2], n) for n in range(100))
    found, total = index.find(["CREATED"], start=10, limit=5)
    assert (total, [each.job for each in found]) == (50, ["job-078", "job-076", "job-074", "job-072", "job-070"])
    found, total = index.find(["CREATED", "RUNNING"], search="9", limit=3)
    assert (total, [each.job for each in found]) == (19, ["job-099", "job-098", "job-097"])
    assert index.find(["PAUSED"]) == ([], 0)


def test_Z2_a_job_becomes_unhealthy_by_time_alone_and_is_found_without_looking_at_all() -> None:
    shard = Shard()
    shard.worker("w1")
    shard.submit("a", 1, checkpoint={"interval_ms": 100, "timeout_ms": 500, "tolerated_failures": 100})
    shard.report("a", 0, TaskRunning())
    watch = HealthWatch(lambda name: shard.state.jobs.get(name))
    watch.touch("a")
    watch.look(shard.now)
    assert watch.unhealthy == {}
    watch.look(shard.now + 800)
    assert watch.unhealthy == {}
    watch.look(shard.now + 802)
    assert list(watch.unhealthy) == ["a"]
    del shard.state.jobs["a"]
    watch.look(shard.now + 10_000)
    assert watch.unhealthy == {}


def test_rates_come_from_what_workers_say_and_only_of_the_newest_attempt() -> None:
    soft = SoftReading(Codec(), lambda: 0)

    def say(worker: str, at: int, attempt: int, rows: int) -> set[str]:
        task = TaskProgress(incarnation=1, job="a", pipeline=0, task=0, attempt=attempt, rows=rows)
        return soft.hear_worker(Heartbeat(worker=worker, instance="1", time=at, slots=1, tasks=(task,)), at)

    assert say("w1", 1000, 1, 100) == {"a"}
    say("w1", 2000, 1, 600)
    assert soft.progress["a", 0, 0].rows_per_second == 500.0
    say("w2", 3000, 2, 10)
    say("w1", 3000, 1, 5000)
    assert (soft.progress["a", 0, 0].attempt, soft.progress["a", 0, 0].rows) == (2, 10)
    assert soft.forget("w2") == {"a"}
    led = ShardLed(shard=0, epoch=3, first_commit_ms=4)
    soft.hear_beat(Beat(coordinator="c1", instance="1", time=0, shards=(led,)), 100)
    assert soft.first_commits == {(0, 3): 4}
    assert [beat.coordinator for beat in soft.living_beats(200, 100)] == ["c1"]
    assert soft.living_beats(201, 100) == []
    assert (list(soft.workers_since(2000)), list(soft.workers_since(4000))) == (["w1"], [])


@pytest.fixture
def cluster(broker: EmbeddedBroker) -> Cluster:
    made = own_cluster(broker.bootstrap_servers)
    ensure_topics(made)
    return made


def a_shard() -> Shard:
    shard = Shard()
    shard.worker("w1", slots=10)
    shard.submit("a", 2, cleanup_delay_ms=1000)
    for task in (0, 1):
        shard.report("a", task, TaskRunning())
    return shard


@pytest.mark.broker
def test_it_answers_from_the_log_and_follows_it(cluster: Cluster) -> None:
    shard = a_shard()
    publish(cluster, shard.log)
    with ReadModel(cluster, clock=lambda: shard.now) as model:
        model.start()
        page = model.jobs()
        assert [(job.id, job.state) for job in page.items] == [("a", "RUNNING")]
        assert (page.total, page.counts) == (1, {"RUNNING": 1})
        changes, arrived = list[Change](), threading.Event()
        end = model.listen(lambda change: (changes.append(change), arrived.set())[1])  # type: ignore[func-returns-value]
        written = len(shard.log)
        shard.command("a", Cancel(reason="enough"), "cancel-a")
        shard.submit("b", 1)
        last = publish(cluster, shard.log[written:])
        assert model.wait_for(0, last, 30.0)
        assert arrived.wait(30.0)
        end()
        assert {job for change in changes for job in change.jobs} == {"a", "b"}
        assert [(job.id, job.state) for job in model.jobs(["running"]).items] == [("b", "SCHEDULED")]
        (ended,) = model.jobs(["ended"]).items
        assert (ended.id, ended.state, ended.reason) == ("a", "CANCELED", "enough")
        answer = model.wait_for_command("a", "cancel-a", 1.0)
        assert answer is not None
        assert (answer.state, answer.action) == ("ACCEPTED", "Cancel")
        written = len(shard.log)
        shard.wait(1000)
        shard.report("a", -1, StagingRemoved(), pipeline=-1, worker="w1")
        assert model.wait_for(0, publish(cluster, shard.log[written:]), 30.0)
        detail = model.job("a")
        assert detail is not None
        assert (detail.job.state, detail.tasks) == ("CANCELED", ())
        assert (model.job("c"), model.near("aa"), model.job_line("c")) == (None, ["a"], None)
        assert model.failed is None


@pytest.mark.broker
def test_half_a_transaction_is_not_seen(cluster: Cluster) -> None:
    shard = a_shard()
    end = max(i for i, event in enumerate(shard.log) if event.entity == "cursor/0")
    publish(cluster, shard.log[:end])  # the last transaction lacks its cursor, and is never committed
    with ReadModel(cluster) as model:
        model.catch_up()
        assert model.jobs().items[0].state == "SCHEDULED"
        assert not model.wait_for(0, 10_000, 0.01)


@pytest.mark.broker
def test_it_knows_workers_leaders_and_takeovers_of_a_running_fleet(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with a_scene(broker.bootstrap_servers, tmp_path, coordinators=2, workers=2) as scene:
        scene.submit("orders", numbers("in", 4000, parallelism=2, rate=500))
        with ReadModel(scene.cluster) as model:
            model.start()
            until(lambda: (job := model.job_line("orders")) is not None and job.rows_per_second > 0, "a rate")
            first = model.shards()[0]
            scene.kill_leader()
            until(lambda: model.shards()[0].epoch > first.epoch, "a takeover")
            until(lambda: model.shards()[0].takeovers[-1].first_commit_ms, "its parts")
            shard = model.shards()[0]
            taken = shard.takeovers[-1]
            assert (taken.before, taken.leader) == (first.leader, shard.leader)
            assert taken.total_ms is not None
            assert taken.detect_ms is not None
            assert {worker.state for worker in model.workers()} == {"HEARD"}
            assert {worker.id for worker in model.workers()} == {"w0", "w1"}
            assert shard.leader in {each.id for each in model.coordinators()}
            scene.until_job("orders", "FINISHED")
            until(lambda: (job := model.job_line("orders")) is not None and job.is_ended, "the end")
            done = model.job_line("orders")
            assert done is not None
            assert (done.state, done.rows_published) == ("FINISHED", 4000)
