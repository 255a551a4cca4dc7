"""The parts of the worker's process, each by itself: the inbox, the engines that may be had, the plan of a task, what
is sent when a report is too large, what is said of Kafka's silence, and how decisions are carried out."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from coordinator import specification as coordinator_specification
from events import records as r
from events.cluster import Cluster
from events.codec import Codec
from events.errors import AccessRefused, Place, UnreadableKey
from events.keys import order_key, order_prefix, parse_order_key, shard_of
from tests.logs import until
from tests.worker_bench import DEPLOY, KEY, SETTINGS, addressed, commit, order, who
from workers import happenings as h
from workers import inbox as inboxes
from workers import store as stores
from workers.decider import LONGEST_REASON, Decider
from workers.engine import EngineRefused, find_engine
from workers.inbox import Inbox, Ordered
from workers.ledger import Identity, Ledger
from workers.metrics import Metrics
from workers.plan import PlanError, pipelines, specification_of, task_plan
from workers.sender import Sender
from workers.silence import Silence
from workers.store import LedgerFailed
from workers.trial import TrialEngine

CODEC = Codec()

# Keys of orders ------------------------------------------------------------------------------------------------------


@given(st.text(min_size=1), st.text(min_size=1), st.integers(-1, 9), st.integers(-1, 9))
def test_keys_of_orders_are_read_back(worker: str, job: str, pipeline: int, task: int) -> None:
    try:
        key = order_key(worker, job, pipeline, task)
    except UnicodeEncodeError:
        return
    assert parse_order_key(key) == (worker, job, pipeline, task)
    assert key.startswith(order_prefix(worker))
    assert not key.startswith(order_prefix(f"{worker}x"))


@pytest.mark.parametrize(
    "key", [b"", b"w/j/0", b"w/j/0/0/0", b"w/j/0/x", b"w/j/00/0", "w/jé/0/0".encode(), b"w/%zz/0/0"]
)
def test_a_key_of_no_order_is_refused(key: bytes) -> None:
    with pytest.raises(UnreadableKey):
        parse_order_key(key)


# The inbox -----------------------------------------------------------------------------------------------------------


def test_of_progress_only_the_newest_is_kept_and_all_else_in_order() -> None:
    inbox = Inbox()
    inbox.say(h.Started(who(1)))
    for rows in range(5):
        inbox.say(h.Progressed(who(1), rows, 0, 0))
        inbox.say(h.Progressed(who(2), 10 * rows, 0, 0))
    inbox.say(h.Exhausted(who(1), b""))
    inbox.say(h.Progressed(who(1), 7, 0, 0))
    first = h.Progressed(who(1), 7, 0, 0)
    assert inbox.take(0, 100) == [h.Started(who(1)), first, h.Progressed(who(2), 40, 0, 0), h.Exhausted(who(1), b"")]
    inbox.say(first)
    assert inbox.take(0, 100) == [first]
    assert inbox.take(0, 100) == []


def test_orders_wait_outside_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inboxes, "MOST_ORDERS", 3)
    inbox, put = Inbox(), list[bool]()
    orders = [Ordered(None, n) for n in range(4)]
    assert inbox.hand_over(orders[:3])
    waiting = threading.Thread(target=lambda: put.append(inbox.hand_over(orders[3:])))
    waiting.start()
    inbox.say(h.Started(who()))  # an engine never waits
    assert inbox.take(0, 3) == orders[:3]
    waiting.join(30)
    assert put == [True]
    assert inbox.take(0, 9) == [h.Started(who()), orders[3]]
    inbox.hand_over(orders)
    inbox.close()
    assert inbox.hand_over(orders) is False


def test_the_failure_of_a_thread_is_raised_once() -> None:
    inbox, error = Inbox(), ValueError("gone")
    inbox.fail(error)
    with pytest.raises(ValueError, match="gone") as caught:
        inbox.take(10, 1)
    assert inbox.has_failed(caught.value)
    assert not inbox.has_failed(ValueError("another"))
    assert inbox.take(0, 1) == []


# Engines -------------------------------------------------------------------------------------------------------------


def test_an_engine_is_found_by_its_name() -> None:
    assert find_engine("workers.trial:TrialEngine", []) is TrialEngine
    assert find_engine("tests.test_worker_parts:an_engine", ["tests"]) is an_engine


def an_engine(_around: object) -> Any:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("name", "allowed", "reason"),
    [
        ("os:system", [], r"os is in none of the allowed modules \(workers\)"),
        ("workersx.trial:TrialEngine", [], "in none of the allowed"),
        ("tests.logs:until", ["tests.logs2"], "in none of the allowed"),
        ("workers.trial", [], "it is not module:name"),
        ("workers.trial:Trial.Engine", [], "it is not module:name"),
        ("workers.nowhere:Engine", [], "can't be imported"),
        ("workers.trial:Nothing", [], "has no Nothing"),
        ("workers.trial:KIND", [], "is no engine"),
    ],
)
def test_other_engines_are_refused(name: str, allowed: list[str], reason: str) -> None:
    with pytest.raises(EngineRefused, match=reason) as caught:
        find_engine(name, allowed)
    assert "worker.allowed_modules" in str(caught.value)


# Plans ---------------------------------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Any]:
    """Specifications that the coordinator takes."""
    sources = [
        {"name": f"s{i}", "kind": "numbers", "parallelism": draw(st.integers(0, 3))}
        for i in range(draw(st.integers(1, 5)))
    ]
    names = [source["name"] for source in sources]
    transforms = []
    for i in range(draw(st.integers(0, 3))):
        chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
        transforms.append({"name": f"t{i}", "kind": "sql", "from": chosen})
        names.append(f"t{i}")
    sinks, left = [], list(draw(st.permutations(names)))
    while left:  # everything reaches a sink
        count = draw(st.integers(1, len(left)))
        sinks.append({"name": f"out{len(sinks)}", "kind": "lines", "from": left[:count]})
        left = left[count:]
    env = {"parallelism": draw(st.integers(1, 3))}
    return {"env": env, "source": sources, "transform": transforms, "sink": sinks}


@given(graphs())
def test_tasks_are_numbered_as_the_coordinator_numbers_them(graph: dict[str, Any]) -> None:
    body = json.dumps(graph)
    counts = coordinator_specification.plan(body).tasks
    assert len(pipelines(specification_of(body))) == len(counts)
    shares: dict[str, list[int]] = {}
    for pipeline, count in enumerate(counts):
        for task in range(count):
            plan = task_plan(body, pipeline, task)
            shares.setdefault(plan.source.name, []).append(plan.share)
            assert plan.shares == (plan.source.parallelism or graph["env"]["parallelism"])
            assert plan.sinks
        with pytest.raises(PlanError, match=f"no task {count}; it has {count}"):
            task_plan(body, pipeline, count)
    # Every source is read by as many tasks as it asks for, each with a share of its own.
    wanted = {s["name"]: s["parallelism"] or graph["env"]["parallelism"] for s in graph["source"]}
    assert shares == {name: list(range(count)) for name, count in wanted.items()}
    with pytest.raises(PlanError, match="no pipeline"):
        task_plan(body, len(counts), 0)


# Sending -------------------------------------------------------------------------------------------------------------


class Producer:
    """A client that delivers when it is polled, or says why it does not."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, bytes, int]] = []
        self.waiting: list[Callable[..., None]] = []
        self.refuses: Exception | None = None
        self.fails: KafkaError | None = None
        self.holds = False
        self.breaks: Exception | None = None

    def produce(self, topic: str, value: bytes, key: bytes, partition: int, delivered: Callable[..., None]) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.sent.append((topic, value, key, partition))
        self.waiting.append(delivered)

    def poll(self, timeout_s: float) -> None:
        if self.breaks is not None:
            raise self.breaks
        while self.waiting and not self.holds:
            self.waiting.pop(0)(self.fails, None)
        time.sleep(min(timeout_s, 0.01))

    def __len__(self) -> int:
        return len(self.waiting)


class Clients(Cluster):
    made: list[Producer]

    def producer(self, **_properties: Any) -> Any:
        self.__dict__.setdefault("made", []).append(Producer())
        return self.made[-1]


@pytest.fixture
def clients() -> Clients:
    return Clients("nowhere:1", prefix="p", shards=4)


def a_sender(
    clients: Clients, answered: list[int], limit: int = 4096, failed: Callable[[Exception], None] = pytest.fail
) -> tuple[Sender, Metrics]:
    metrics = Metrics()
    sender = Sender(
        clients, CODEC, answered.append, failed, lambda: 5000, metrics, max_record_bytes=limit, timeout_ms=1000
    )  # fmt: skip
    return sender, metrics


def report(happening: r.ReportHappening, job: str = "job") -> r.Report:
    return h.say(who()._replace(job=job), happening, 1, SETTINGS)


def test_what_kafka_acknowledges_counts_from_when_it_was_sent(clients: Clients) -> None:
    answered: list[int] = []
    sender, _ = a_sender(clients, answered)
    sender.report(report(r.TaskRunning()))
    until(lambda: answered == [5000], "the answer")
    ((topic, value, key, partition),) = clients.made[0].sent
    assert (topic, key, partition) == ("p.reports", b"job", shard_of("job", 4))
    assert CODEC.decode(value, r.Report, Place("reports", 0, 0)) == report(r.TaskRunning())
    clients.made[0].fails = KafkaError(KafkaError._MSG_TIMED_OUT)
    sender.report(report(r.TaskRunning()))
    assert sender.flush(10) == 0
    sender.close()
    assert answered == [5000]


def test_a_full_queue_loses_a_report_and_says_so(clients: Clients, caplog: pytest.LogCaptureFixture) -> None:
    sender, metrics = a_sender(clients, [])
    clients.made[0].refuses = BufferError("full")
    for _ in range(3):
        sender.report(report(r.TaskRunning()))
    sender.close()
    assert b'reports_unsent_total{reason="queue full"} 3.0' in metrics.page()
    assert len([line for line in caplog.records if "a report was not sent" in line.message]) == 1


def test_heartbeats_are_left_out_while_none_is_answered(clients: Clients) -> None:
    sender, metrics = a_sender(clients, [])
    clients.made[0].holds = True
    beat = r.Heartbeat(worker="w1", instance="i", time=0, slots=1)
    for _ in range(5):
        sender.heartbeat(beat)
    assert len(clients.made[0].sent) == 2
    assert b'heartbeats_total{outcome="left out"} 3.0' in metrics.page()
    sender.heartbeat(beat, always=True)
    clients.made[0].holds = False
    until(lambda: sender._heartbeats == 0, "answers")
    sender.heartbeat(beat)
    sender.close()
    assert [sent[0] for sent in clients.made[0].sent] == ["p.workers"] * 4


def test_a_client_that_can_not_go_on_is_made_anew(clients: Clients) -> None:
    sender, _ = a_sender(clients, [])
    fatal = KafkaError(KafkaError._FATAL, "out of order", fatal=True)
    clients.made[0].refuses = KafkaException(fatal)
    sender.report(report(r.TaskRunning()))
    sender.report(report(r.TaskReady()))
    sender.close()
    assert len(clients.made) == 2
    assert len(clients.made[1].sent) == 1


def fatal_error() -> SystemError:
    """As the client library raises it amid its callbacks."""
    error = SystemError("returned a result with an exception set")
    error.__cause__ = KafkaException(KafkaError(KafkaError._FATAL, "out of order", fatal=True))
    return error


def test_a_client_that_breaks_while_it_waits_is_made_anew(clients: Clients) -> None:
    sender, _ = a_sender(clients, [])
    clients.made[0].breaks = fatal_error()
    until(lambda: sender._fatal, "the error")
    sender.report(report(r.TaskReady()))
    assert sender.flush(10) == 0
    sender.close()
    assert len(clients.made[1].sent) == 1


@pytest.mark.parametrize("breaks", [True, False], ids=["raised", "answered"])
def test_a_broker_that_turns_the_worker_away_ends_it(clients: Clients, breaks: bool) -> None:
    failures: list[Exception] = []
    sender, _ = a_sender(clients, [], failed=failures.append)
    refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    if breaks:
        clients.made[0].breaks = KafkaException(refused)
    else:
        clients.made[0].fails = refused
        sender.report(report(r.TaskReady()))
    until(lambda: failures, "the refusal")
    sender.close()
    assert isinstance(failures[0], AccessRefused)
    assert "docs/security.md" in str(failures[0])


def test_an_acknowledgement_that_no_topic_takes_fails_its_checkpoint(clients: Clients) -> None:
    sender, metrics = a_sender(clients, [])
    staged = tuple(r.Staged(name=f"piece-{n}", rows=1, size=1) for n in range(1000))
    sender.report(report(r.CheckpointAcked(checkpoint=7, position=b"p", staged=staged)))
    sender.close()
    ((_, value, _, _),) = clients.made[0].sent
    said = CODEC.decode(value, r.Report, Place("reports", 0, 0)).happening
    assert isinstance(said, r.CheckpointFailed)
    assert (said.checkpoint, said.lasting) == (7, True)
    assert "1,000 pieces" in said.reason
    assert "kafka.max_record_bytes" in said.reason
    assert b'reports_unsent_total{reason="too large"} 1.0' in metrics.page()


# Silence -------------------------------------------------------------------------------------------------------------


def test_silence_is_said_in_time_and_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    silence = Silence("w1", lease_ms=10_000, heartbeat_ms=1000)
    for silent_ms in range(0, 200_000, 100):
        silence.look(silent_ms)
    silence.look(50)
    silence.look(60)
    said = [line.message for line in caplog.records if line.levelno == logging.WARNING]
    assert "has not answered for 3.3 s" in said[0] or "has not answered for 3.4 s" in said[0]
    assert "the tasks stop in 6." in said[0]
    assert "10.0 s: the lease is over" in said[1]
    assert len(said) == 2 + 4 + 1  # 20, 40, 80 and 160 s
    assert "answers again after 199.9 s" in said[-1]


# Carrying decisions out ----------------------------------------------------------------------------------------------


class Engine:
    """Does nothing, and tells what it was told. It can be told to fail."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.fails = False
        self.may_publish: Callable[[], bool] = lambda: False

    def _do(self, what: str) -> None:
        self.log.append(what)
        if self.fails:
            raise RuntimeError(f"no {what}")

    def start(self, who: Identity, _deploy: r.Deploy, _say: Any) -> None:
        self._do(f"start {who.attempt}")

    def stop(self, who: Identity, _reason: str) -> None:
        self._do(f"stop {who.attempt}")

    def stage(self, _who: Identity, checkpoint: int) -> None:
        self._do(f"stage {checkpoint}")

    def publish(self, effect: h.Publish, may_publish: Callable[[], bool], _say: Any) -> None:
        self.may_publish = may_publish
        self._do(f"publish {effect.checkpoint}")

    def remove(self, _effect: h.RemoveStaging, _say: Any) -> None:
        self._do("remove")

    def close(self, _patience_s: float) -> None:
        self._do("close")


class Hand:
    """A decider whose clock, engine and channel are the test's."""

    def __init__(self, path: Path) -> None:
        self.now = 1000
        self.log: list[str] = []
        self.said: list[Any] = []
        self.engine = Engine(self.log)
        self.store = stores.create(path / "ledger", "w1", "t", 0, 0)
        self.decider = Decider(
            self.store, Ledger(), SETTINGS, self.engine, lambda: self.now, self._send, self.said.append
        )
        written = self.store.write

        def write(changes: Any, position: int) -> None:
            written(changes, position)
            if changes:
                self.log.append("written")

        self.store.write = write  # type: ignore[method-assign]
        self.decider.give(h.Restarted())
        self.log.clear()

    def give(self, it: h.Input, position: int) -> None:
        self.decider.give(addressed(it, self.decider.ledger, SETTINGS), position)

    def _send(self, said: r.Report) -> None:
        self.log.append(type(said.happening).__name__)


@pytest.fixture
def hand(tmp_path: Path) -> Any:
    made = Hand(tmp_path)
    yield made
    made.store.close()


def test_it_is_durable_before_it_is_done_and_done_before_it_is_told(hand: Hand) -> None:
    give = hand.decider.give
    give(order(DEPLOY), 1)
    give(h.Started(who()))
    give(order(DEPLOY, who(2)), 2)
    hand.log.clear()
    give(h.Stopped(who(), "fenced"))
    assert hand.log == ["written", "start 2", "TaskStopped"]
    assert hand.store.position == 2


def test_what_the_engine_can_not_do_is_its_answer(hand: Hand) -> None:
    hand.decider.give(order(DEPLOY), 1)
    hand.decider.give(h.Started(who()))
    hand.engine.fails = True
    hand.decider.give(order(r.TriggerCheckpoint(checkpoint=1)), 2)
    hand.give(commit(1), 3)
    hand.decider.give(order(DEPLOY, who(task=1)), 4)
    hand.decider.give(order(r.RemoveStaging(specification="{}"), who(incarnation=9, job="old")), 5)
    failed, unpublished, crashed, stuck = hand.said
    assert failed == h.StageFailed(who(), 1, "RuntimeError: no stage 1")
    assert (unpublished.checkpoint, unpublished.lasting) == (1, False)
    assert crashed == h.Crashed(who(task=1), "RuntimeError: no start 1")
    assert stuck == h.StagingStuck("old", 9, "RuntimeError: no remove")


def test_B7_a_lease_counts_from_when_the_heartbeat_was_sent(hand: Hand) -> None:
    """A process that was frozen is not to believe that it was heard just now."""
    decider = hand.decider
    decider.give(order(DEPLOY), 1)
    decider.give(h.Started(who()))
    hand.give(commit(1), 2)
    assert hand.engine.may_publish()
    hand.now = 1900
    decider.answered(1800)
    assert decider.ledger.reached_at == 1800
    decider.answered(1700)  # an older answer changes nothing
    hand.now = 1800 + SETTINGS.lease_ms
    assert hand.engine.may_publish()
    hand.now += 1  # frozen, or cut off, with a heartbeat of 1900 on its way
    assert not hand.engine.may_publish()
    decider.answered(1900)  # it got there, at last; others may have given up waiting for it
    assert (decider.ledger.reached_at, decider.ledger.lease) == (1900, 2)
    hand.now = 1900 + SETTINGS.lease_ms + 1
    decider.give(h.Tick())
    assert hand.log[-1] == "stop 1"
    decider.answered(hand.now)
    assert not hand.engine.may_publish()  # it was begun under a lease that is over
    assert decider.metrics.lease_losses._value.get() == 2


def test_after_the_disk_has_failed_nothing_is_done_told_or_published(hand: Hand) -> None:
    hand.decider.give(order(DEPLOY), 1)
    hand.decider.give(h.Started(who()))
    hand.give(commit(1), 2)
    assert hand.engine.may_publish()
    hand.store._db.close()
    hand.log.clear()
    with pytest.raises(LedgerFailed):
        hand.decider.give(h.Crashed(who(), "boom"))
    hand.decider.fence()
    assert hand.log == []
    assert not hand.engine.may_publish()
    hand.decider.stop_tasks("the worker has failed")
    hand.decider.stop_tasks("the worker has failed")
    assert hand.log == ["stop 1"]


def test_what_an_engine_says_fits_a_record(hand: Hand) -> None:
    hand.decider.give(order(DEPLOY), 1)
    hand.decider.give(h.Crashed(who(), "no such file: \udcff" + "x" * 10_000))
    kept = hand.decider.ledger.tasks[KEY].report
    assert isinstance(kept, r.TaskFailed)
    assert kept.reason.startswith("no such file: ?x")
    assert len(kept.reason) < LONGEST_REASON + 50
    CODEC.encode(report(kept))


def test_a_reason_that_an_engine_gives_back_is_told_once(hand: Hand) -> None:
    for attempt, reason in ((1, "cancelled"), (2, "the loop was told"), (3, "")):
        hand.decider.give(order(DEPLOY, who(attempt)), attempt)
        hand.decider.give(order(r.StopTask(reason="cancelled"), who(attempt)), attempt)
        hand.decider.give(h.Stopped(who(attempt), reason))
        kept = hand.decider.ledger.tasks[KEY].report
        assert isinstance(kept, r.TaskStopped)
        assert kept.reason == ("cancelled; the loop was told" if attempt == 2 else "cancelled")


def test_D8_every_line_of_a_deploy_says_what_it_is_about(hand: Hand, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    hand.decider.give(order(DEPLOY, epoch=3), 1)
    hand.decider.give(h.Started(who()))
    hand.now += SETTINGS.lease_ms + 1
    hand.decider.give(h.Tick())
    hand.decider.give(h.Stopped(who(), "told to"))
    lines = [line for line in caplog.records if line.name == "workers.decider"]
    assert [line.message for line in lines[:2]] == ["Deploy", "Started"]
    assert lines[2].message.startswith("StopTask (lease lost")
    assert len(lines) == 4
    for line in lines:
        found = [getattr(line, name) for name in ("job", "pipeline", "task", "attempt", "worker", "epoch")]
        assert found == ["job", 0, 0, 1, "w1", 3], line.message
