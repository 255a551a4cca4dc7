"""The Python client against real coordinators and workers: every command has its one answer, whoever asks how often."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.fleet import Fleet, a_fleet, published
from detent import AsyncClient, Client, Job
from detent.client import CommandRefused, NoSuchJob, StillGoing
from detent.jobs import JobRefused
from events.asking import NoDetent, NotAnswered
from events.embedded import EmbeddedBroker
from events.errors import UnreadableKey
from events.follower import Follower
from events.keys import named, shard_of
from events.records import Outcome
from events.table import Table
from events.topics import ensure_topics
from tests.logs import own_cluster, until

pytestmark = pytest.mark.broker
ENV = {"checkpoint": {"interval_ms": 200}, "restart": {"backoff_ms": 50}}


@pytest.fixture(scope="module")
def fleet(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    cluster = own_cluster(broker.bootstrap_servers, shards=2)
    ensure_topics(cluster)
    settings = {"worker.heartbeat_ms": 100, "worker.slots": 16, "worker.lease_ms": 60_000,
                "coordinator.lease_ms": 60_000, "coordinator.sweep_ms": 200}  # fmt: skip
    with a_fleet(cluster, tmp_path_factory.mktemp("fleet"), **settings) as fleet:
        fleet.ready(fleet.coordinator("c0"), fleet.worker("w0"))
        yield fleet


@pytest.fixture
def client(fleet: Fleet) -> Iterator[Client]:
    cluster = fleet.cluster
    with Client(cluster.bootstrap_servers, topic_prefix=cluster.prefix, by="a test") as client:
        assert client.cluster.shards == 2  # which nobody told it
        yield client


def endless(name: str, path: Path) -> Job:
    job = Job(name).env(**ENV, mode="STREAMING").source("in", "numbers", rate=100.0)
    return job.sink("out", "lines", path=str(path / name))


def bounded(name: str, path: Path, rows: int = 100) -> Job:
    return Job(name).env(**ENV).source("in", "numbers", rows=rows).sink("out", "lines", path=str(path / name))


def test_a_job_is_submitted_and_waited_for(client: Client, tmp_path: Path) -> None:
    answer = client.submit(bounded("plain", tmp_path))
    assert (answer.state, answer.by, answer.action) == ("ACCEPTED", "a test", "Submit")
    ended = client.wait("plain", incarnation=answer.incarnation, timeout_s=60)
    assert (ended.state, ended.incarnation) == ("FINISHED", answer.incarnation)
    assert len(published(tmp_path / "plain")) == 100


def test_asking_again_gives_the_first_answer_and_does_nothing_twice(client: Client, tmp_path: Path) -> None:
    job = endless("again", tmp_path)
    first = client.submit(job, command_id="the-same")
    second = client.submit(job, command_id="the-same")
    assert first[:7] == second[:7]
    found = client.outcome("again", "the-same")
    assert found is not None
    assert found[:7] == first[:7]
    client.cancel("again")
    assert client.wait("again", timeout_s=60).state == "CANCELED"


def test_the_same_id_for_something_else_is_refused(client: Client, tmp_path: Path) -> None:
    client.submit(bounded("conflict", tmp_path), command_id="mine")
    with pytest.raises(CommandRefused, match="the id mine was used by a test for another command"):
        client.cancel("conflict", command_id="mine")
    client.wait("conflict", timeout_s=60)


def test_many_ask_the_same_at_once(client: Client, tmp_path: Path) -> None:
    answers: list[int] = []

    def ask() -> None:
        answers.append(client.submit(bounded("crowd", tmp_path), command_id="one").incarnation)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    assert len(set(answers)) == 1


def test_a_refusal_is_an_error_with_its_reason_and_is_on_the_log(client: Client, fleet: Fleet) -> None:
    with pytest.raises(CommandRefused, match="there is no job nobody") as caught:
        client.cancel("nobody", "because", command_id="why")
    assert caught.value.answer.state == "REFUSED"
    with fleet.look() as look:
        outcome = look.until_outcome("nobody", "why")
    assert outcome == Outcome(digest=outcome.digest, action="Cancel", by="a test", reason="there is no job nobody")


def test_a_wrong_job_is_not_even_sent(client: Client) -> None:
    with pytest.raises(JobRefused, match=r"did you mean numbers\?"):
        client.submit(Job("wrong").source("in", "numbrs").sink("out", "lines", path="x"))
    with pytest.raises(UnreadableKey):
        client.cancel("")
    with pytest.raises(NoSuchJob, match="there is no job wrong"):
        client.wait("wrong")


def test_the_whole_life_of_a_job(client: Client, tmp_path: Path) -> None:
    first = client.submit(endless("life", tmp_path))
    with pytest.raises(StillGoing):
        client.wait("life", timeout_s=0)
    assert client.savepoint("life", "s1").is_accepted
    until(lambda: _state(client, "savepoint", "life", "s1") == "KEPT", "the savepoint")
    assert client.pause("life").is_accepted
    until(lambda: _state(client, "job", "life") == "PAUSED", "the pause")
    assert client.resume("life").is_accepted
    until(lambda: _state(client, "job", "life") == "RUNNING", "it to go on")
    with pytest.raises(CommandRefused, match="can't be repaired"):
        client.repair("life", "job/life", "FINISHED", "a wish")
    client.savepoint("life", "s2", stop=True)
    assert client.wait("life", timeout_s=60).state == "SAVEPOINTED"
    again = client.restore("life", "s2")
    assert again.incarnation > first.incarnation
    client.stop("life")
    assert client.wait("life", incarnation=again.incarnation, timeout_s=60).state == "FINISHED"
    rows = sorted(int(line.split()[-1]) for line in published(tmp_path / "life"))
    assert rows == list(range(len(rows)))


def _state(client: Client, kind: str, *parts: str) -> str:
    follower = Follower(client.cluster, Table("events", shard_of(parts[0], client.cluster.shards), client.codec))
    try:
        follower.catch_up()
        event = follower.table.read(named(kind, *parts).key)
        return event.to if event else ""
    finally:
        follower.close()


def test_a_late_copy_is_answered_by_what_became_of_the_job(client: Client, tmp_path: Path) -> None:
    job = bounded("gone", tmp_path).env(cleanup_delay_ms=0)
    client.submit(job, command_id="once")
    until(lambda: client.wait("gone", timeout_s=60) and not _state(client, "job", "gone"), "its cleanup")
    late = client.submit(job, command_id="once")
    assert (late.state, late.reason) == ("ENDED", "the job it was given to has ended: FINISHED")
    assert client.wait("gone").state == "FINISHED"


def test_asyncio(fleet: Fleet, tmp_path: Path) -> None:
    async def both() -> list[str]:
        async with AsyncClient(fleet.cluster.bootstrap_servers, topic_prefix=fleet.cluster.prefix) as client:
            names = ["async-1", "async-2"]
            await asyncio.gather(*(client.submit(bounded(name, tmp_path)) for name in names))
            return [ended.state for ended in await asyncio.gather(*(client.wait(n, timeout_s=60) for n in names))]

    assert asyncio.run(both()) == ["FINISHED", "FINISHED"]


def test_without_a_coordinator_the_outcome_is_only_late(broker: EmbeddedBroker, tmp_path: Path) -> None:
    cluster = own_cluster(broker.bootstrap_servers)
    ensure_topics(cluster)
    with Client.on(cluster, by="early", patience_s=0.5) as client:
        with pytest.raises(NotAnswered, match="ask again with the same command id") as caught:
            client.submit(bounded("early", tmp_path), command_id="first")
        assert caught.value.place is not None
        with pytest.raises(NotAnswered):
            client.submit(bounded("early", tmp_path), command_id="first")
        with a_fleet(cluster, tmp_path) as fleet:
            fleet.ready(fleet.coordinator("c0"))
            client.patience_s = 60
            assert client.submit(bounded("early", tmp_path), command_id="first").is_accepted
            with fleet.look() as look:
                look.until_outcome("early", "first")
                assert [seen.key for seen in look.seen if seen.key.startswith("command/")] == ["command/early/first"]


def test_a_broker_without_detent_is_told_apart(broker: EmbeddedBroker) -> None:
    with pytest.raises(NoDetent, match=r"has no topic nowhere\.commands: no coordinator has ever run there"):
        Client(broker.bootstrap_servers, topic_prefix="nowhere")
