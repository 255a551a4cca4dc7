"""The log on brokers in Docker containers: one, three with replication, one with SASL_SSL and ACLs; and harm done."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from events import acls
from events.cluster import Cluster
from events.codec import Codec, SchemaBook
from events.dead_letters import DeadLetters
from events.errors import (
    AccessRefused,
    BrokerUnreachable,
    DetentError,
    Fenced,
    OutcomeUnknown,
    TopicMismatch,
    TransactionAborted,
)
from events.follower import Follower
from events.reader import PartitionReader
from events.schema_topic import SchemaTopic
from events.table import Raw, Table
from events.topics import TopicSettings, ensure_topics
from events.writer import Outgoing, TransactionalWriter
from tests.containers import engine
from tests.containers.broker import BrokerContainer, Brokers, single_broker, three_brokers
from tests.containers.certificates import make_authority
from tests.containers.clusters import broker_with_roles, grant, leader_of_events, own_cluster_on, wait_until_in_sync
from tests.containers.image import kafka_image as image_to_use
from tests.containers.settings import ADMIN
from tests.logs import a_writer, followed, own_cluster, replayed, tasks, transaction, until

pytestmark = pytest.mark.docker
CODEC = Codec()
# So long that a test which waited for it to run out would be stopped: being refused is told at once.
PATIENCE_S = 1000.0


@pytest.fixture(scope="module")
def single(kafka_image: str) -> Iterator[Brokers]:
    with single_broker(kafka_image) as running:
        yield running


@pytest.fixture(scope="module")
def trio(kafka_image: str) -> Iterator[Brokers]:
    with three_brokers(kafka_image) as running:
        yield running


@pytest.fixture(scope="module")
def secured(kafka_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with broker_with_roles(kafka_image, tmp_path_factory.mktemp("certificates")) as running:
        yield running


@pytest.fixture(params=["single", "trio", "secured"])
def brokers(request: pytest.FixtureRequest) -> Brokers:
    """Each kind."""
    running: Brokers = request.getfixturevalue(request.param)
    return running


@pytest.fixture
def cluster(brokers: Brokers) -> Cluster:
    """Topics of its own on brokers of each kind, for somebody who may do everything."""
    return own_cluster_on(brokers)


def acting_as(role: str, cluster: Cluster, brokers: Brokers) -> Cluster:
    return Cluster(cluster.bootstrap_servers, cluster.prefix, cluster.shards, brokers.plan.login(role))


# On every kind.


def test_what_is_committed_is_followed_and_replayed(cluster: Cluster) -> None:
    assert ensure_topics(cluster) == ensure_topics(cluster)
    follower = Follower(cluster, Table("events", 0, CODEC))
    with a_writer(cluster) as writer:
        writer.commit(transaction(CODEC, tasks(0, 100)))
        writer.commit(transaction(CODEC, tasks(0, 3, rows=7)))
    first, second = followed(follower, 2)
    assert (len(first.records), len(second.records)) == (101, 4)
    assert replayed(cluster, CODEC).values == follower.table.values
    follower.close()


def test_an_owner_is_fenced_by_the_next_one(cluster: Cluster) -> None:
    ensure_topics(cluster)
    old = a_writer(cluster)
    old.commit(transaction(CODEC, tasks(0, 1)))
    with a_writer(cluster) as new:
        with pytest.raises(Fenced, match="newer owner"):
            old.commit(transaction(CODEC, tasks(0, 1, rows=666)))
        new.commit(transaction(CODEC, tasks(1, 2, epoch=2), epoch=2))
    assert set(replayed(cluster, CODEC).values) == {b"task/job-0/0/0", b"task/job-1/0/0", b"cursor/0"}


# One broker.


def test_more_replicas_than_brokers_is_refused(single: Brokers) -> None:
    with pytest.raises(DetentError, match=r"events could not be created: .*replica|commands could not be created"):
        ensure_topics(own_cluster_on(single), TopicSettings(replication=3))


def test_a_broker_killed_right_after_a_commit_still_has_it(single: Brokers) -> None:
    cluster = own_cluster_on(single)
    ensure_topics(cluster)
    follower = Follower(cluster, Table("events", 0, CODEC))
    for reign in (1, 2):
        writer = a_writer(cluster)
        writer.commit(transaction(CODEC, tasks(0, 10, epoch=reign, rows=reign), epoch=reign))
        single.node(1).kill()
        with pytest.raises(BrokerUnreachable):
            a_writer(cluster, patience_s=0.5)
        single.node(1).start_again()
        rows = {event.state.rows for event in all_tasks(replayed(cluster, CODEC))}  # type: ignore[attr-defined]
        assert rows == {reign}
    assert len(followed(follower, 2)) == 2, "the follower went on by itself"
    follower.close()


def all_tasks(table: Table) -> list[object]:
    return [table.read(key) for key in table.values if key != b"cursor/0"]


@pytest.mark.parametrize(
    ("harm", "heal"),
    [(BrokerContainer.pause, BrokerContainer.unpause), (BrokerContainer.disconnect, BrokerContainer.connect)],
    ids=["paused", "cut off"],
)
def test_a_broker_that_does_not_answer_is_waited_for(
    single: Brokers, harm: Callable[[BrokerContainer], None], heal: Callable[[BrokerContainer], None]
) -> None:
    """What was being committed has no definite answer; the log tells, once it can be read again."""
    cluster = own_cluster_on(single)
    ensure_topics(cluster)
    writer = a_writer(cluster, transaction_timeout_ms=1500)
    writer.commit(transaction(CODEC, tasks(0, 5)))
    harm(single.node(1))
    try:
        assert not single.node(1).sees()
        with pytest.raises((OutcomeUnknown, TransactionAborted)):
            writer.commit(transaction(CODEC, tasks(5, 10)))
        with pytest.raises(BrokerUnreachable):
            ensure_topics(cluster, patience_s=0.5)
    finally:
        heal(single.node(1))
    single.node(1).wait_until_answering()
    assert len(replayed(cluster, CODEC).values) in (6, 11), "all of the transaction or nothing"


# Three brokers.


def test_three_brokers_hold_three_replicas(trio: Brokers) -> None:
    cluster = own_cluster_on(trio)
    ensure_topics(cluster)
    topics = cluster.admin().list_topics(timeout=10).topics
    ours = [
        partition
        for name in topics
        if name.startswith(cluster.prefix)
        for partition in topics[name].partitions.values()
    ]
    assert {len(partition.replicas) for partition in ours} == {3}


def test_a_topic_with_too_few_replicas_is_refused(trio: Brokers) -> None:
    cluster = own_cluster_on(trio)
    name, admin = cluster.topic("events"), cluster.admin()
    config = {"cleanup.policy": "compact", "min.insync.replicas": "1"}
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(timeout=10)
    with pytest.raises(TopicMismatch, match="events has 1 replicas and needs 3: kafka-reassign-partitions") as refused:
        ensure_topics(cluster)
    assert "events has min.insync.replicas=1 and needs at least 2" in str(refused.value)


@pytest.mark.parametrize(
    ("harm", "heal"),
    [
        (BrokerContainer.kill, BrokerContainer.start_again),
        (BrokerContainer.pause, BrokerContainer.unpause),
        (BrokerContainer.disconnect, BrokerContainer.connect),
    ],
    ids=["killed", "paused", "cut off"],
)
def test_a_leader_lost_in_a_run_of_transactions(
    trio: Brokers,
    harm: Callable[[BrokerContainer], None],
    heal: Callable[[BrokerContainer], None],
    record_property: Callable[[str, object], None],
) -> None:
    """No acknowledged transaction is lost, none is there twice, and the run goes on without the broker."""
    cluster = own_cluster_on(trio)
    ensure_topics(cluster)
    victim = trio.node(leader_of_events(cluster))
    run = Run(cluster)
    run.go(20)
    harming = threading.Thread(target=harm, args=[victim])
    harming.start()
    try:
        while harming.is_alive():
            run.go(1)
        run.go(30)
        assert leader_of_events(cluster) != victim.number, "another one leads"
    finally:
        harming.join()
        heal(victim)
    victim.wait_until_answering()
    wait_until_in_sync(cluster)
    record_property("longest stall in seconds", round(run.longest_stall_s, 2))
    record_property("outcomes unknown", run.unknown)
    written = [record.key or b"" for record in committed_records(cluster) if record.key != b"cursor/0"]
    assert sorted(written) == sorted(map(key_of, range(run.done))), "each exactly once"


def test_a_commit_is_seen_although_the_leader_dies_right_after(trio: Brokers) -> None:
    """The markers that make it visible are written by the next leader."""
    cluster = own_cluster_on(trio)
    ensure_topics(cluster)
    follower = Follower(cluster, Table("events", 0, CODEC))
    writer = a_writer(cluster)
    writer.commit(transaction(CODEC, tasks(0, 3)))
    followed(follower, 1)
    victim = trio.node(leader_of_events(cluster))
    writer.commit(transaction(CODEC, tasks(3, 6)))
    victim.kill()
    assert len(followed(follower, 1)) == 1
    follower.close()
    victim.start_again()
    wait_until_in_sync(cluster)
    assert len(replayed(cluster, CODEC).values) == 7


def key_of(i: int) -> bytes:
    return b"task/job-%d/0/0" % i


class Run:
    """A writer that keeps its contract: after an outcome that is not known it opens a new one and reads the log."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._writer = a_writer(cluster)
        self._last_ack = time.monotonic()
        self.longest_stall_s, self.unknown, self.done = 0.0, 0, 0

    def go(self, count: int) -> None:
        """Each transaction writes one task of its own, so that one that came twice would show."""
        for _ in range(count):
            while not self._commit(self.done):
                pass
            self.done += 1
            now = time.monotonic()
            self.longest_stall_s = max(self.longest_stall_s, now - self._last_ack)
            self._last_ack = now

    def _commit(self, i: int) -> bool:
        """False: it is certain that nothing of it is on the log."""
        try:
            self._writer.commit(transaction(CODEC, tasks(i, i + 1)))
        except TransactionAborted:
            return False
        except (OutcomeUnknown, Fenced):  # fenced by the broker itself, where the stall took too long
            self.unknown += 1
            self._writer = a_writer(self._cluster)
            return key_of(i) in replayed_after_fencing(self._cluster).values
        return True


def replayed_after_fencing(cluster: Cluster) -> Table:
    follower = Follower(cluster, Table("events", 0, CODEC))
    try:
        follower.catch_up()
    finally:
        follower.close()
    return follower.table


def committed_records(cluster: Cluster) -> list[Raw]:
    """Every record that a reader of committed records gets, in order; none folded away."""
    a_writer(cluster).close()  # fence, so that the end is settled
    follower = Follower(cluster, Table("events", 0, CODEC))
    end = follower.reader.start_and_end()[1]
    found: list[Raw] = []

    def all_read() -> bool:
        for applied in follower.advance(0.1):
            found.extend(applied.records)
        return follower.reader.position >= end

    until(all_read, f"offset {end}")
    follower.close()
    return found


# SASL_SSL and ACLs.


def every_way_in(cluster: Cluster) -> list[Callable[[], object]]:
    reader = PartitionReader(cluster, "events", 0)
    return [
        lambda: ensure_topics(cluster, patience_s=PATIENCE_S),
        lambda: a_writer(cluster, patience_s=PATIENCE_S),
        lambda: reader.start_and_end(PATIENCE_S),
        lambda: until(lambda: reader.check(0.5), "a refusal"),
    ]


def test_a_wrong_password_is_said_at_once(secured: Brokers) -> None:
    cluster = own_cluster(secured.bootstrap_servers, properties=secured.plan.login("worker", "not the password"))
    for way_in in every_way_in(cluster):
        with pytest.raises(
            AccessRefused, match=r"invalid credentials .*_AUTHENTICATION.* Check the user, the password"
        ):
            way_in()


def test_an_authority_that_did_not_sign_is_said_at_once(secured: Brokers, tmp_path: Path) -> None:
    login = secured.plan.login(ADMIN, authority=make_authority(tmp_path))
    cluster = own_cluster(secured.bootstrap_servers, properties=login)
    for way_in in every_way_in(cluster):
        with pytest.raises(AccessRefused, match=r"certificate verify failed.*kafka.ssl.ca.location"):
            way_in()


def test_a_missing_right_is_said_at_once(secured: Brokers) -> None:
    everything = own_cluster_on(secured)
    ensure_topics(everything)
    for way_in in every_way_in(acting_as("stranger", everything, secured)):
        with pytest.raises(AccessRefused, match=r"AUTHORIZATION_FAILED.*docs/security.md"):
            way_in()


def test_a_broker_that_is_starting_is_not_one_that_refuses(secured: Brokers) -> None:
    """The engine's proxy accepts connections before anybody is there and drops them in the handshake."""
    node, cluster = secured.node(1), own_cluster_on(secured)
    node.kill()
    node.start_again(wait=False)
    dropped: list[KafkaError] = []
    settings = {**secured.plan.login(ADMIN), "bootstrap.servers": node.bootstrap_servers, "log_level": 0}
    client = AdminClient({**settings, "error_cb": dropped.append})  # type: ignore[dict-item]

    def answers() -> bool:
        client.poll(0)
        assert cluster.turned_away("looking in") is None
        return bool(node.sees())

    until(answers, "the broker")
    assert any("SSL_HANDSHAKE" in error.str() for error in dropped), "connections were accepted and dropped"


def test_a_right_taken_away_from_a_leader_stops_it(secured: Brokers) -> None:
    """Deciding again and again on what can't be written would be an endless loop."""
    everything, cluster = prepared("coordinator", secured)
    writer = a_writer(cluster)
    writer.commit(transaction(CODEC, tasks(0, 1)))
    right = AclBindingFilter(
        ResourceType.TOPIC, cluster.topic("events"), ResourcePatternType.LITERAL, None, None, AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    admin = everything.admin()
    (gone,) = admin.delete_acls([right]).values()
    assert len(gone.result(timeout=10)) == 1
    until(lambda: not admin.describe_acls(right).result(timeout=10), "the right to be gone")
    with pytest.raises(AccessRefused, match=r"commit.*TOPIC_AUTHORIZATION_FAILED.*Give this user the rights"):
        writer.commit(transaction(CODEC, tasks(1, 2)))
    assert writer.closed
    assert set(replayed(everything, CODEC).values) == {b"task/job-0/0/0", b"cursor/0"}


def prepared(role: str, secured: Brokers) -> tuple[Cluster, Cluster]:
    """A cluster with its topics and the rights of this role: for somebody who may do everything, and for the role."""
    everything = own_cluster_on(secured)
    ensure_topics(everything)
    grant(everything, role)
    return everything, acting_as(role, everything, secured)


def read_one(cluster: Cluster, topic: str) -> None:
    with PartitionReader(cluster, topic, 0) as reader:
        end = reader.start_and_end()[1]
        until(lambda: reader.poll(0.1) is not None and reader.position >= end, f"the end of {topic}")


def write_one(cluster: Cluster, topic: str) -> None:
    """Written as by any service: no transaction. Raises as our own writers do."""
    failed: list[KafkaError] = []
    producer = cluster.producer()
    producer.produce(
        cluster.topic(topic), b"value", b"key", 0, lambda error, _: failed.append(error) if error else None
    )
    cluster.flush(producer, f"writing to {topic}", PATIENCE_S)
    if failed:
        raise cluster.refusal(f"writing to {topic}", failed[0])


def put_aside(cluster: Cluster) -> None:
    aside = DeadLetters(cluster, CODEC, by="test")
    aside.put("events", 0, Raw(0, b"key", b"value"), "to see whether it may")
    aside.flush()


def publish_schemas(cluster: Cluster) -> None:
    topic = SchemaTopic(cluster, SchemaBook())
    topic.publish()
    topic.close()


def refused(act: Callable[[], object]) -> None:
    with pytest.raises(AccessRefused, match="AUTHORIZATION_FAILED"):
        act()


def test_what_an_operator_may_do(secured: Brokers) -> None:
    everything = own_cluster_on(secured)
    grant(everything, "operator")
    operator = acting_as("operator", everything, secured)
    assert set(ensure_topics(operator)) == set(acls.EVERY_TOPIC)
    put_aside(everything)
    read_one(operator, "dead-letters")
    refused(lambda: write_one(operator, "commands"))
    refused(lambda: read_one(operator, "events"))
    refused(lambda: a_writer(operator))


def test_what_a_coordinator_may_do(secured: Brokers) -> None:
    everything, coordinator = prepared("coordinator", secured)
    ensure_topics(coordinator)
    publish_schemas(coordinator)
    order = Outgoing("orders", 0, b"worker/job/0/0", b"order")
    with a_writer(coordinator) as writer:
        writer.commit([order, *transaction(CODEC, tasks(0, 1))])
        assert len(replayed(everything, CODEC).values) == 2
    assert len(replayed(coordinator, CODEC).values) == 2
    for topic in ("commands", "reports", "workers", "coordinators"):
        write_one(everything, topic)
        read_one(coordinator, topic)
    write_one(coordinator, "coordinators")
    put_aside(coordinator)
    refused(lambda: write_one(coordinator, "commands"))
    refused(lambda: write_one(coordinator, "reports"))
    refused(lambda: TransactionalWriter(coordinator, f"{coordinator.prefix}-other"))
    refused(lambda: ensure_topics(Cluster(coordinator.bootstrap_servers, "another", 1, coordinator.properties)))


def test_what_a_worker_may_do(secured: Brokers) -> None:
    everything, worker = prepared("worker", secured)
    ensure_topics(worker)
    publish_schemas(worker)
    write_one(everything, "orders")
    read_one(worker, "orders")
    write_one(worker, "reports")
    write_one(worker, "workers")
    put_aside(worker)
    refused(lambda: write_one(worker, "events"))
    refused(lambda: write_one(worker, "orders"))
    refused(lambda: read_one(worker, "events"))
    refused(lambda: a_writer(worker))
    refused(lambda: ensure_topics(Cluster(worker.bootstrap_servers, "another", 1, worker.properties)))


def test_what_a_service_may_do(secured: Brokers) -> None:
    _, service = prepared("service", secured)
    publish_schemas(service)
    write_one(service, "commands")
    read_one(service, "events")  # where the outcomes are
    refused(lambda: write_one(service, "reports"))
    refused(lambda: write_one(service, "events"))
    refused(lambda: read_one(service, "commands"))


def test_what_a_reader_may_do(secured: Brokers) -> None:
    everything, reader = prepared("reader", secured)
    publish_schemas(everything)
    with a_writer(everything) as writer:
        writer.commit(transaction(CODEC, tasks(0, 5)))
    follower = Follower(reader, Table("events", 0, CODEC))
    assert len(followed(follower, 1)[0].records) == 6
    follower.close()
    SchemaTopic(reader, SchemaBook()).load()
    for topic in ("coordinators", "workers", "commands", "reports"):
        read_one(reader, topic)
    for topic in ("events", "commands"):
        refused(lambda topic=topic: write_one(reader, topic))  # type: ignore[misc]
    refused(lambda: read_one(reader, "orders"))
    refused(lambda: acls.grant(reader, "coordinator", "User:reader"))


# The containers themselves.


def test_the_image_is_made_once_or_named(kafka_image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert image_to_use() == kafka_image
    monkeypatch.setenv("DETENT_KAFKA_IMAGE", "some/image:1")
    assert image_to_use() == "some/image:1"


def test_what_a_killed_run_left_is_removed_and_nothing_else(docker_engine: None) -> None:
    client = docker.from_env()
    dead = f"{engine.owner_label()[engine.OWNER]} of another start"
    name = f"detent-{uuid.uuid4().hex[:10]}"
    ours = client.networks.create(name, labels=engine.owner_label())
    client.networks.create(f"{name}-left", labels={engine.OWNER: dead})
    try:
        removed = engine.remove_leftovers()
        assert f"{name}-left" in removed
        assert name not in removed
        assert client.networks.list(names=[f"^{name}$"])
    finally:
        ours.remove()
        client.close()


def test_where_there_is_no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    missing = engine.why_no_engine()
    assert missing is not None
    assert "start one, or run .ci/run as root" in missing
    assert not engine.is_required({"CI": ""})
    assert not engine.is_required({"CI": "false", "DETENT_REQUIRE_DOCKER": "0"})
    assert engine.is_required({"CI": "true"})
    assert engine.is_required({"DETENT_REQUIRE_DOCKER": "1"})
