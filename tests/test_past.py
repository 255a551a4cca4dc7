"""The past: the state as of any moment against a plain replay, histories, and both on a real log."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator import history
from coordinator.draft import Gone
from coordinator.past import NoSuchMoment, Past
from coordinator.state import State, entity_of, fold
from coordinator.timeline import Timeline
from events.cluster import Cluster
from events.codec import Codec
from events.embedded import EmbeddedBroker
from events.records import Cancel, Event, TaskFailed, TaskRunning
from events.table import Raw, tombstone_headers, transactions
from events.topics import ensure_topics
from tests.logs import own_cluster
from tests.published import events_of, publish
from tests.scenarios.runner import find, tell
from tests.shard import Shard

CODEC = Codec()


def raws(log: list[Event | Gone]) -> list[Raw]:
    """As they would stand on a topic."""
    return [
        Raw(offset, event.entity.encode(), CODEC.encode(event))
        if isinstance(event, Event)
        else Raw(offset, event.entity.encode(), None, tombstone_headers(event.epoch, event.incarnation))
        for offset, event in enumerate(log)
    ]


@functools.cache
def story(name: str) -> tuple[list[Event | Gone], list[list[Raw]]]:
    log = events_of(tell(find(name)[0]).broker)
    return log, transactions(raws(log), b"cursor/0")


def replay(log: list[Event | Gone], end: int) -> State:
    state = State(0)
    for event in log[:end]:
        fold(state, entity_of(event.entity), event if isinstance(event, Event) else None)
    return state


def a_timeline(whole: list[list[Raw]], every: int) -> Timeline:
    def read(start: int, end: int) -> list[list[Raw]]:
        return [records for records in whole if start <= records[0].offset and records[-1].offset < end]

    line = Timeline(0, 1, CODEC, read)
    line._every = every
    for start in range(0, len(whole), 3):
        line.add(whole[start : start + 3])
    return line


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.sampled_from([3, 20, 10_000]))
@settings(max_examples=30, deadline=None)
def test_any_moment_is_what_a_plain_replay_gives_wherever_one_comes_from(moments: list[float], every: int) -> None:
    log, whole = story("R1")
    line = a_timeline(whole, every)
    for moment in moments:
        end = line.end_at_offset(int(moment * (len(log) - 1)))
        line.go_to(end)
        plain = replay(log, end)
        assert line.state.jobs == plain.jobs
        assert line.state.summaries == plain.summaries
        assert (line.state.leader, line.state.epoch) == (plain.leader, plain.epoch)
        assert line.state.tasks_on == plain.tasks_on


def test_an_offset_is_seen_whole_and_a_time_is_never_ahead() -> None:
    log, whole = story("R1")
    line = a_timeline(whole, 10)
    for records in whole:
        for record in records:
            assert line.end_at_offset(record.offset) == records[-1].offset + 1
            assert line.begin_of(record.offset) == records[0].offset
    for event in log:
        if isinstance(event, Event):
            line.go_to(line.end_at_time(event.time))
            assert all(job.event.time <= event.time for job in line.state.jobs.values() if job.event)
    assert line.end_at_time(0) == 0


def test_B8_every_transition_has_from_to_cause_time_offset_epoch_and_attempt() -> None:
    log, whole = story("R1")
    found = history.transitions(list(history.seen(whole, CODEC, 0, history.of_job("a"))), "a")
    assert len(found) == sum(event.entity.split("/")[1] == "a" for event in log)
    by_offset = {each.offset: each for each in found}
    for offset, event in enumerate(log):
        if isinstance(event, Event) and event.job == "a":
            each = by_offset[offset]
            assert (each.from_, each.to, each.time, each.epoch) == (event.from_, event.to, event.time, event.epoch)
            assert (each.attempt or 0) == event.attempt
            assert each.cause is not None
            assert each.leader in ("c0", "c1")
            assert not each.has_gap
    assert {each.transition for each in found if each.to == "" and each.kind == "job"} == {"deleted"}


def test_checkpoints_are_listed_with_what_became_of_them() -> None:
    _, whole = story("R1")
    mine = list(history.seen(whole, CODEC, 0, history.of_job("a")))
    found = history.checkpoints(mine, "a", 0)
    assert [(one.id, one.state, one.purpose, one.rows) for one in found] == [
        (1, "COMMITTED", "PERIODIC", 120),
        (2, "COMMITTED", "FINAL", 60),
    ]
    assert all(one.duration_ms is not None for one in found)


def test_what_is_compacted_away_shows_as_a_gap() -> None:
    _, whole = story("R1")
    gone = [[record for record in records if record.key != b"job/a" or record.offset > 20] for records in whole]
    found = history.transitions(list(history.seen(gone, CODEC, 0, history.of_job("a"))), "a")
    assert [each.transition for each in found if each.has_gap] == ["finished"]


@pytest.mark.broker
def test_the_past_on_a_real_log(broker: EmbeddedBroker) -> None:
    cluster = own_cluster(broker.bootstrap_servers)
    ensure_topics(cluster)
    with Past(cluster) as past, pytest.raises(NoSuchMoment, match="empty"):
        past.at_time(1)
    shard = Shard()
    shard.worker("w1")
    shard.submit("a", 1, restart={"backoff_ms": 100})
    submitted = shard.now
    shard.now += 1000
    shard.report("a", 0, TaskRunning())
    shard.now += 1000
    shard.report("a", 0, TaskFailed(reason="broken"))
    shard.now += 1000
    shard.command("a", Cancel())
    publish(cluster, shard.log)
    _check(cluster, submitted)


def _check(cluster: Cluster, submitted: int) -> None:
    with Past(cluster) as past:
        for after, state in [
            (0, "SCHEDULED"),
            (1500, "RUNNING"),
            (2500, "SCHEDULED"),
            (9000, "CANCELED"),
            (500, "SCHEDULED"),
        ]:
            then = past.at_time(submitted + after)
            job = then.job_line("a")
            assert job is not None
            assert (job.state, then.jobs().total, then.cluster().jobs) == (state, 1, {state: 1})
        seen = past.history("a")
        running = next(each for each in seen if each.entity.kind == "job" and each.event and each.event.to == "RUNNING")
        job = past.at_offset(0, running.offset).job_line("a")
        assert job is not None
        assert job.state == "RUNNING"
        assert seen[0].entity.kind == "leader"
        assert past.history("b") == []
        with pytest.raises(NoSuchMoment, match="first record"):
            past.at_time(submitted - 60_000)
        with pytest.raises(NoSuchMoment, match="no offset"):
            past.at_offset(0, 10_000)
        with pytest.raises(NoSuchMoment, match="no shard"):
            past.at_offset(7, 0)
