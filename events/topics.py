"""Detent's topics: created when missing, verified when there, refused when they would lose something.

It never changes a topic that exists: it says what to change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType, TopicDescription

from events.cluster import Cluster, passes, refuses
from events.errors import BrokerUnreachable, DetentError, TopicMismatch

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
T = TypeVar("T")
# What a client says of a topic that is gone, and for a moment of one that it has not been told of yet.
UNKNOWN = frozenset({KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC})
LATE_S = 5.0


@dataclass(frozen=True)
class TopicSettings:
    """What an operator may choose. The defaults are for production; a single node gets what it can have."""

    replication: int | None = None  # None: three, or as many as there are brokers
    forensics_window_ms: int = 7 * DAY  # how long the events keep every transition
    delete_retention_ms: int = DAY  # how long tombstones stay, and so how old a mirror may be
    input_retention_ms: int = 7 * DAY  # how long commands and reports wait for a coordinator
    dead_letter_retention_ms: int = 30 * DAY
    max_record_bytes: int = 4 * 1024 * 1024
    # Further configuration by topic name, for topics that Detent creates.
    extra: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class TopicPlan:
    """One topic: what it must be (`exactly`), what it must have at least, and what it is created with besides."""

    name: str
    sharded: bool
    exactly: Mapping[str, str]
    at_least: Mapping[str, int]
    created_with: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TopicFacts:
    """What the broker says of a topic that passed verification."""

    topic_id: str
    delete_retention_ms: int


def plans(settings: TopicSettings) -> list[TopicPlan]:
    """All topics of Detent, as DESIGN.md lists them."""
    size = {"max.message.bytes": settings.max_record_bytes}
    compacted = {"cleanup.policy": "compact"}
    deleted = {"cleanup.policy": "delete"}
    kept = {"delete.retention.ms": settings.delete_retention_ms}
    inputs = {"retention.ms": settings.input_retention_ms}
    window = {"min.compaction.lag.ms": settings.forensics_window_ms}
    return [
        TopicPlan("commands", True, deleted, inputs | size),
        TopicPlan("reports", True, deleted, inputs | size),
        TopicPlan("events", True, compacted, kept | window | size),
        TopicPlan("orders", True, compacted, kept | size | {"min.compaction.lag.ms": HOUR}),
        TopicPlan("coordinators", False, deleted, {"retention.ms": MINUTE}, {"segment.ms": str(10 * MINUTE)}),
        TopicPlan("workers", False, compacted, kept),
        TopicPlan("schemas", False, compacted, kept | size),
        TopicPlan("dead-letters", False, deleted, {"retention.ms": settings.dead_letter_retention_ms}),
    ]


def ensure_topics(
    cluster: Cluster, settings: TopicSettings | None = None, *, patience_s: float = 30.0
) -> dict[str, TopicFacts]:
    """Create what is missing and verify everything. Raises TopicMismatch with all that has to be changed."""
    settings = settings or TopicSettings()
    admin = cluster.admin()
    metadata = answered(cluster, "asking for its topics", patience_s, lambda: admin.list_topics(timeout=3))
    replication = settings.replication or min(3, len(metadata.brokers))
    wanted = plans(settings)
    missing = [plan for plan in wanted if cluster.topic(plan.name) not in metadata.topics]
    _create(cluster, admin, settings, missing, replication, patience_s)
    return _verify(cluster, admin, wanted, replication, patience_s)


def missing_topics(cluster: Cluster, settings: TopicSettings, *, patience_s: float = 30.0) -> list[str]:
    """The names of Detent's topics that are not there, or that this user may not see. Changes nothing."""
    admin = cluster.admin()
    known = answered(cluster, "asking for its topics", patience_s, lambda: admin.list_topics(timeout=3)).topics
    return [name for plan in plans(settings) if (name := cluster.topic(plan.name)) not in known]


def _create(
    cluster: Cluster,
    admin: AdminClient,
    settings: TopicSettings,
    missing: list[TopicPlan],
    replication: int,
    patience_s: float,
) -> None:
    new = [
        NewTopic(
            cluster.topic(plan.name),
            num_partitions=cluster.shards if plan.sharded else 1,
            replication_factor=replication,
            config={
                **plan.exactly,
                **{key: str(value) for key, value in plan.at_least.items()},
                **plan.created_with,
                "min.insync.replicas": str(_min_insync(replication)),
                "unclean.leader.election.enable": "false",
                # The broker's clock, for all: it refuses what comes from a clock that is an hour ahead of its own, and
                # retention and compaction would go by clocks that somebody may set.
                "message.timestamp.type": "LogAppendTime",
                **settings.extra.get(plan.name, {}),
            },
        )
        for plan in missing
    ]
    for name, future in admin.create_topics(new).items() if new else ():
        try:
            future.result(timeout=patience_s)
        except KafkaException as error:
            why: KafkaError = error.args[0]
            if refuses(why):
                doing = f"creating the topic {name} (there is none, or none that this user may see)"
                raise cluster.refusal(doing, why) from error
            if passes(why):
                raise cluster.no_answer(f"creating the topic {name}", patience_s) from error
            if why.code() != KafkaError.TOPIC_ALREADY_EXISTS:  # another process was faster
                raise DetentError(f"the topic {name} could not be created: {why.str()}") from error


def _verify(
    cluster: Cluster, admin: AdminClient, wanted: list[TopicPlan], replication: int, patience_s: float
) -> dict[str, TopicFacts]:
    names = [cluster.topic(plan.name) for plan in wanted]
    facts, problems = {}, []

    def describe() -> dict[str, TopicDescription]:
        return {n: f.result(timeout=3) for n, f in admin.describe_topics(TopicCollection(names)).items()}

    def configurations() -> dict[str, dict[str, str]]:
        asked: dict[ConfigResource, Future[dict[str, object]]] = admin.describe_configs(
            [ConfigResource(ResourceType.TOPIC, name) for name in names]
        )
        return {r.name: {k: str(e.value) for k, e in f.result(timeout=3).items()} for r, f in asked.items()}  # type: ignore[attr-defined]

    topics = answered(cluster, "describing the topics", patience_s, describe)
    configs = answered(cluster, "reading the topics' configuration", patience_s, configurations)
    for plan, name in zip(wanted, names, strict=True):
        problems += _problems(plan, name, topics[name], configs[name], cluster.shards, replication)
        facts[plan.name] = TopicFacts(
            topic_id=str(topics[name].topic_id), delete_retention_ms=int(configs[name]["delete.retention.ms"])
        )
    if problems:
        raise TopicMismatch(tuple(problems))
    return facts


def _problems(
    plan: TopicPlan, name: str, topic: TopicDescription, config: dict[str, str], shards: int, replication: int
) -> list[str]:
    """What has to be changed about a topic, in words an operator can act on."""
    found = []

    def change(key: str, value: object) -> str:
        return f"kafka-configs --alter --entity-type topics --entity-name {name} --add-config {key}={value}"

    partitions = shards if plan.sharded else 1
    if len(topic.partitions) != partitions:
        found.append(
            f"{name} has {len(topic.partitions)} partitions and must have {partitions}: a job's shard depends on "
            f"it, so it can't be altered. Set shards to {len(topic.partitions)}, or start with another prefix."
        )
    copies = min((len(p.replicas) for p in topic.partitions), default=0)
    if copies < replication:
        found.append(f"{name} has {copies} replicas and needs {replication}: kafka-reassign-partitions adds them.")
    for key, value in plan.exactly.items():
        if config[key] != value:
            found.append(f"{name} has {key}={config[key]} and must have {value}: {change(key, value)}")
    least = dict(plan.at_least) | {"min.insync.replicas": _min_insync(replication)}
    for key, number in least.items():
        if 0 <= int(config[key]) < number:  # -1 is without limit
            found.append(f"{name} has {key}={config[key]} and needs at least {number}: {change(key, number)}")
    if config["unclean.leader.election.enable"] != "false":
        found.append(f"{name} allows unclean leader election and would lose what was committed: "
                     + change("unclean.leader.election.enable", "false"))  # fmt: skip
    return found


def _min_insync(replication: int) -> int:
    return 2 if replication >= 3 else 1


def answered(cluster: Cluster, doing: str, patience_s: float, ask: Callable[[], T]) -> T:
    """Ask a broker until it answers, with growing pauses; BrokerUnreachable when patience runs out, AccessRefused as
    soon as it turns us away."""
    started, pause, known_at = time.monotonic(), 0.05, time.monotonic()
    while True:
        try:
            return ask()
        except (KafkaException, TimeoutError) as error:
            waited = time.monotonic() - started
            code = error.args[0] if error.args and isinstance(error.args[0], KafkaError) else None
            if code is not None and refuses(code):
                raise cluster.refusal(doing, code) from error
            if code is None or code.code() not in UNKNOWN:
                known_at = time.monotonic()  # a broker that was away answers so for a moment when it is back
            late = time.monotonic() < known_at + LATE_S
            if code is not None and not passes(code) and not (late and code.code() in UNKNOWN):
                raise DetentError(f"the broker at {cluster.bootstrap_servers} refused, {doing}: {error}") from error
            if refused := cluster.turned_away(doing):
                raise refused from error
            if waited + pause > patience_s:
                raise BrokerUnreachable(cluster.bootstrap_servers, doing, patience_s) from error
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
