"""A reign on a real broker, in the hand of a test: what it does with inputs that are garbage, too large or impossible,
with transactions that fail, and what is on the log then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.fleet import Look
from coordinator import core
from coordinator.hearing import Hearing
from coordinator.metrics import Metrics
from coordinator.reign import Reign, Rules
from coordinator.replica import Replica
from events.cluster import Cluster
from events.codec import Codec
from events.dead_letters import DeadLetters
from events.embedded import EmbeddedBroker
from events.errors import Fenced, TransactionAborted
from events.reader import PartitionReader
from events.records import Cancel, Command, CommandAction, DeadLetter, Leader, Report, Submit, TaskRunning
from events.recovery import now_ms
from events.topics import ensure_topics
from events.writer import TransactionalWriter
from tests.logs import own_cluster, until
from tests.shard import specification

pytestmark = pytest.mark.broker


class Bench:
    """One shard with a reign that takes a turn when the test says so."""

    def __init__(self, cluster: Cluster, **writer: Any) -> None:
        self.cluster, self.codec, self.metrics = cluster, Codec(), Metrics()
        self.hearing = Hearing(cluster, self.codec, now_ms, 5000)
        self.dead_letters = DeadLetters(cluster, self.codec, "test")
        self.producer = cluster.producer(linger_ms=0)
        self.look = Look(cluster, self.codec)
        self.replica = Replica(cluster, 0, self.codec)
        self.reign = self.lead(**writer)

    def lead(self, **options: Any) -> Reign:
        self.writer = TransactionalWriter(self.cluster, self.cluster.transactional_id(0), **options)
        self.replica.catch_up()
        reign = Reign(self.cluster, self.codec, self.replica, self.writer, self.hearing, self.dead_letters, now_ms,
                      Rules(), self.metrics)  # fmt: skip
        reign.begin(Leader(coordinator="test", reason="test"))
        reign.open_inputs()
        return reign

    def close(self) -> None:
        self.look.close()
        self.reign.close()
        self.replica.close()

    def send(self, topic: str, value: bytes, key: bytes = b"a") -> None:
        self.producer.produce(self.cluster.topic(topic), value, key, 0)
        assert self.producer.flush(10) == 0

    def command(self, name: str, job: str, action: CommandAction) -> None:
        self.send("commands", self.codec.encode(Command(id=name, job=job, by="me", action=action)), job.encode())

    def turn_until(self, key: str) -> str:
        """Turns until an entity is on the log; its state."""

        def turned() -> bool:
            self.reign.turn()
            self.look.follow()
            return key in self.look.known

        until(turned, key)
        return self.look.state(key)

    def letters(self) -> list[DeadLetter]:
        found: list[DeadLetter] = []
        with PartitionReader(self.cluster, "dead-letters", 0) as reader:
            end = reader.start_and_end()[1]
            while reader.position < end:
                for message in reader.poll(0.1):
                    place = reader_place(message)
                    found.append(self.codec.decode(message.value(), DeadLetter, place))
        return found

    def same_as_the_log(self) -> None:
        """What the reign knows is what anybody reads."""
        again = Replica(self.cluster, 0, self.codec)
        try:
            assert again.state.jobs == self.replica.state.jobs
            assert again.state.summaries == self.replica.state.summaries
            assert again.table.values == self.replica.table.values
        finally:
            again.close()


def reader_place(message: Any) -> Any:
    from events.errors import Place

    return Place("dead-letters", 0, message.offset())


@pytest.fixture
def cluster(broker: EmbeddedBroker) -> Cluster:
    cluster = own_cluster(broker.bootstrap_servers)
    ensure_topics(cluster)
    return cluster


@pytest.fixture
def bench(cluster: Cluster) -> Iterator[Bench]:
    bench = Bench(cluster)
    yield bench
    bench.close()


def test_B5_garbage_is_put_aside_and_everything_else_goes_on(bench: Bench) -> None:
    for number in range(50):
        bench.send("commands", b"garbage %d" % number)
        bench.send("reports", b"\xc3\x01 not a schema of anybody")
    bench.command("x", "a", Submit(specification=specification(2)))
    assert bench.turn_until("command/a/x") == "ACCEPTED"
    until(lambda: bench.reign.turn() or len(bench.letters()) == 100, "dead letters")
    assert {letter.topic for letter in bench.letters()} == {"commands", "reports"}
    assert bench.letters()[0].value is not None
    bench.same_as_the_log()


def test_a_command_too_large_to_be_carried_out_is_refused_and_the_others_are_not(cluster: Cluster) -> None:
    bench = Bench(cluster, max_record_bytes=20_000)
    try:
        large = specification(1, labels={f"label-{n}": "x" * 100 for n in range(300)})
        bench.command("before", "a", Submit(specification=specification(1)))
        bench.command("large", "b", Submit(specification=large))
        bench.command("after", "c", Submit(specification=specification(1)))
        assert bench.turn_until("command/c/after") == "ACCEPTED"
        assert bench.turn_until("command/a/before") == "ACCEPTED"
        assert bench.turn_until("command/b/large") == "REFUSED"
        assert "20,000" in bench.look.known["command/b/large"].state.reason  # type: ignore[union-attr]
        assert "job/b" not in bench.look.known
        assert len(bench.letters()) == 1
        bench.same_as_the_log()
    finally:
        bench.close()


def test_B5_a_fault_of_ours_costs_one_job_and_not_the_shard(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for job in ("a", "b"):
        bench.command("s", job, Submit(specification=specification(1)))
    bench.turn_until("command/b/s")
    real = core.hear

    def faulty(draft: Any, report: Report) -> None:
        if report.job == "a":
            raise ZeroDivisionError("a bug")
        real(draft, report)

    monkeypatch.setattr(core, "hear", faulty)
    for job in ("a", "b"):
        report = Report(incarnation=1, job=job, pipeline=0, task=0, attempt=1, worker="w", time=0,
                        happening=TaskRunning())  # fmt: skip
        bench.send("reports", bench.codec.encode(report), job.encode())
    bench.command("after", "b", Cancel())
    assert bench.turn_until("command/b/after") == "ACCEPTED"
    until(lambda: bench.reign.turn() or bench.look.follow() or bench.look.state("job/a") == "FAILED", "a to end")
    assert "ZeroDivisionError" in bench.look.known["job/a"].state.reason  # type: ignore[union-attr]
    assert bench.look.state("job/b") == "CANCELED"
    assert len(bench.letters()) == 1
    bench.same_as_the_log()


def test_an_aborted_transaction_is_decided_again_and_nothing_is_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = bench.writer.commit, iter([True, True])

    def sometimes(records: Any) -> int:
        if next(failures, False):
            raise TransactionAborted(bench.writer.transactional_id, "test")
        return real(records)

    monkeypatch.setattr(bench.writer, "commit", sometimes)
    bench.command("x", "a", Submit(specification=specification(3)))
    assert bench.turn_until("command/a/x") == "ACCEPTED"
    assert next(failures, None) is None  # both have happened
    assert bench.look.known["job/a"].incarnation == 1
    bench.same_as_the_log()


def test_a_fenced_reign_takes_back_what_it_could_not_write(bench: Bench) -> None:
    bench.command("x", "a", Submit(specification=specification(1)))
    bench.turn_until("command/a/x")
    TransactionalWriter(bench.cluster, bench.cluster.transactional_id(0)).close()
    bench.command("y", "b", Submit(specification=specification(1)))

    def fenced() -> bool:
        try:
            bench.reign.turn()
        except Fenced:
            return True
        return False

    until(fenced, "to be fenced")
    assert "b" not in bench.replica.state.jobs
    bench.replica.follow()
    bench.reign.close()
    bench.reign = bench.lead()
    assert bench.turn_until("command/b/y") == "ACCEPTED"
    bench.same_as_the_log()


def test_a_reign_that_resigned_left_word(bench: Bench) -> None:
    bench.reign.resign(Leader(coordinator="test", successor="other", reason="told to"))
    bench.look.until(lambda: bench.look.state("leader/0") == "VACANT", "the resignation")
    assert bench.look.known["leader/0"].state.successor == "other"  # type: ignore[union-attr]


def test_the_metrics_can_be_read(bench: Bench) -> None:
    bench.command("x", "a", Submit(specification=specification(1)))
    bench.turn_until("command/a/x")
    text = bench.metrics.page().decode()
    assert 'detent_transitions_total{kind="job",transition="submitted"} 1.0' in text
    assert 'detent_inputs_total{shard="0"} 1.0' in text


def test_replica_with_a_mirror_starts_where_it_was(cluster: Cluster, tmp_path: Path) -> None:
    from events.mirror import Mirror

    facts = ensure_topics(cluster)["events"]
    bench = Bench(cluster)
    try:
        bench.command("x", "a", Submit(specification=specification(2)))
        bench.turn_until("command/a/x")
        first = Replica(cluster, 0, bench.codec, Mirror(tmp_path / "m", facts.topic_id, 0, facts.delete_retention_ms))
        first.close()
        again = Replica(cluster, 0, bench.codec, Mirror(tmp_path / "m", facts.topic_id, 0, facts.delete_retention_ms))
        assert again.replayed == 0
        assert again.state.jobs == bench.replica.state.jobs
        again.close()
    finally:
        bench.close()
