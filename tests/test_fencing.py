"""Taking a shard over on a real broker: from leaders that are alive, dead, or dead inside a transaction, and with a
broker that goes away, freezes or comes back meanwhile."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from bench.fence import killed_leader
from events import embedded
from events.cluster import Cluster
from events.codec import Codec
from events.embedded import EmbeddedBroker
from events.errors import BrokerUnreachable, DetentError, Fenced
from events.follower import Follower
from events.table import Table
from events.topics import ensure_topics
from events.writer import TransactionalWriter, WarmWriter
from tests.logs import a_writer, followed, own_cluster, replayed, tasks, transaction, until

pytestmark = pytest.mark.broker
CODEC = Codec()
FREEZES = 100


@pytest.fixture
def cluster(broker: EmbeddedBroker) -> Cluster:
    return with_topics(broker)


@pytest.fixture(scope="module")
def frail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker that the tests here may stop, kill and freeze; each leaves it running."""
    with EmbeddedBroker(tmp_path_factory.mktemp("frail-broker")) as running:
        yield running


@contextmanager
def no_broker(broker: EmbeddedBroker) -> Iterator[None]:
    """Stopped in good order, which makes the start that follows a quick one."""
    embedded.stop(broker.directory.parent)
    try:
        yield
    finally:
        broker.start()


def with_topics(broker: EmbeddedBroker) -> Cluster:
    made = own_cluster(broker.bootstrap_servers)
    ensure_topics(made)
    return made


def transactional_id(cluster: Cluster) -> str:
    return f"{cluster.prefix}-shard-0"


def a_warm_writer(cluster: Cluster) -> WarmWriter:
    standby = WarmWriter(cluster, transactional_id(cluster))
    until(standby.tend, "a warm writer")
    return standby


def commit(writer: TransactionalWriter, number: int = 0) -> int:
    return writer.commit(transaction(CODEC, tasks(number, number + 1)))


def leave_open(writer: TransactionalWriter) -> None:
    """Stop in the middle of a transaction, with its records on the broker."""
    producer = writer._open()
    producer.begin_transaction()
    for record in transaction(CODEC, tasks(500, 505)):
        producer.produce(writer._cluster.topic(record.topic), record.value, record.key, record.partition)
    assert producer.flush(10) == 0


def threads_of_librdkafka() -> int:
    names = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it ended just now
            names.append((task / "comm").read_text())
    return sum(name.startswith("rdk:") for name in names)


@pytest.mark.parametrize("inside", [True, False], ids=["inside a transaction", "between two"])
def test_a_killed_leader_is_fenced_and_its_open_transaction_never_seen(cluster: Cluster, inside: bool) -> None:
    with a_warm_writer(cluster) as standby:
        killed_leader(cluster, transactional_id(cluster), inside=inside)
        follower = Follower(cluster, Table("events", 0, CODEC), poison=lambda _: None)
        # An open transaction holds the end back: it is behind the dead leader's records only if they are committed.
        assert (follower.reader.start_and_end()[1] == 0) is inside
        with standby.take_over() as writer:
            end = follower.reader.start_and_end()[1]
            assert end > 0
            assert follower.catch_up(end) == (0 if inside else 1)
            commit(writer)
        (applied,) = followed(follower, 1)
        assert {record.key for record in applied.records} == {b"task/job-0/0/0", b"cursor/0"}
        follower.close()


def test_an_owner_inside_a_transaction_is_fenced_at_its_commit(cluster: Cluster) -> None:
    """A leader that was only thought dead."""
    old = a_writer(cluster)
    commit(old)
    leave_open(old)
    with a_warm_writer(cluster).take_over() as new:
        with pytest.raises(Fenced, match="newer owner"):
            old._call("commit", old._open().commit_transaction)
        assert old.closed
        commit(new, 1)
    assert set(replayed(cluster, CODEC).values) == {b"task/job-0/0/0", b"task/job-1/0/0", b"cursor/0"}


def test_standing_by_disturbs_nobody_and_ends_without_a_trace(cluster: Cluster) -> None:
    with a_writer(cluster) as owner:
        commit(owner)
        gc.collect()  # what other tests left behind must not end meanwhile
        threads = threads_of_librdkafka()
        with a_warm_writer(cluster) as standby:
            commit(owner, 1)
            assert threads_of_librdkafka() > threads
            assert not standby.closed
        assert standby.closed
        until(lambda: threads_of_librdkafka() <= threads, "the end of the standby's threads")
        commit(owner, 2)
    with pytest.raises(DetentError, match="closed or was used; make a new one"):
        standby.take_over()
    with pytest.raises(DetentError, match="closed or was used"):
        standby.tend()


def test_a_standby_without_topics_is_not_warm(broker: EmbeddedBroker) -> None:
    missing = own_cluster(broker.bootstrap_servers)
    with WarmWriter(missing, transactional_id(missing)) as standby:
        assert not standby.tend(5.0)
        ensure_topics(missing)
        until(standby.tend, "a warm writer")


def test_of_standbys_that_take_over_at_once_one_leads(cluster: Cluster) -> None:
    standbys = [a_warm_writer(cluster) for _ in range(3)]
    killed_leader(cluster, transactional_id(cluster), inside=True)
    with ThreadPoolExecutor(len(standbys)) as pool:
        writers = list(pool.map(WarmWriter.take_over, standbys))

    def leads(writer: TransactionalWriter) -> bool:
        try:
            return commit(writer) > 0
        except Fenced:
            return False

    assert sum(map(leads, writers)) == 1
    assert all(standby.closed for standby in standbys)


def test_a_standby_outlives_a_restart_of_the_broker(frail: EmbeddedBroker) -> None:
    cluster = with_topics(frail)
    with a_writer(cluster) as old:
        commit(old)
        standby = a_warm_writer(cluster)
        before = frail.status.pid
        frail.kill()
        assert standby.tend()  # nothing to ask for: it knows the topics, and is not disturbed by a broker that is away
        frail.start()
        assert frail.status.pid != before
        with standby.take_over() as new:
            commit(new, 1)
            with pytest.raises(Fenced):
                commit(old, 2)
    assert set(replayed(cluster, CODEC).values) == {b"task/job-0/0/0", b"task/job-1/0/0", b"cursor/0"}


def test_a_standby_made_while_no_broker_runs_becomes_warm(frail: EmbeddedBroker) -> None:
    cluster = with_topics(frail)
    with no_broker(frail):
        standby = WarmWriter(cluster, transactional_id(cluster))
        assert not standby.tend()
    until(standby.tend, "a warm writer")
    with standby.take_over() as writer:
        commit(writer)


def test_a_take_over_that_was_given_up_fences_nobody_later(frail: EmbeddedBroker) -> None:
    """A producer that was asked once goes on by itself: it must be gone, even while somebody holds the error."""
    cluster = with_topics(frail)
    gc.collect()
    threads = threads_of_librdkafka()
    standby = a_warm_writer(cluster)
    with no_broker(frail):
        with pytest.raises(BrokerUnreachable, match=f"opening {transactional_id(cluster)}") as held:
            standby.take_over(patience_s=0.2)
        until(lambda: threads_of_librdkafka() <= threads, "the end of the threads that ask", limit_s=20)
        assert held.value.__traceback__ is not None
        assert standby.closed


def test_a_question_that_is_open_is_not_asked_again(frail: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    """The broker freezes before it answers, and `init_transactions` is called again meanwhile. A second question would
    bump the epoch behind the back of the producer that took the first answer. librdkafka's own log tells the window."""
    cluster = replace(with_topics(frail), properties={"debug": "eos"})
    caplog.set_level(logging.DEBUG, "events.librdkafka")
    for attempt in range(FREEZES):
        caplog.clear()
        standby = a_warm_writer(cluster)
        with frozen_after(frail, 0.001 * (1 + attempt % 10)), standby.take_over() as writer:
            commit(writer)  # not fenced by itself
        asked = caplog.text.count("Acquiring ProducerId")
        answered = caplog.text.count("Failed to acquire PID") + caplog.text.count("Acquired PID")
        assert asked == answered
        if "init_transactions (in txn state WaitPID, idemp state WaitPID" in caplog.text:
            return
    pytest.fail(f"the broker was never frozen between question and answer, in {FREEZES} tries")


@contextmanager
def frozen_after(broker: EmbeddedBroker, delay_s: float) -> Iterator[None]:
    """Freezes the broker for a moment, soon."""
    timer = threading.Timer(delay_s, freeze, (broker.status.pid,))
    timer.start()
    try:
        yield
    finally:
        timer.join()


def freeze(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        threading.Event().wait(0.03)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_what_is_normal_while_opening_is_no_warning(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    standby = a_warm_writer(cluster)
    killed_leader(cluster, transactional_id(cluster), inside=True)
    with standby.take_over() as writer:
        commit(writer)
    retried = [record for record in caplog.records if "retrying" in record.getMessage()]
    assert retried, "the dead leader's transaction was not open any more"
    assert all(record.levelno == logging.DEBUG for record in retried)
