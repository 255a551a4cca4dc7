"""Who may do what on a cluster with an authorizer: the least that each role needs, said once.

Data, its translation into Kafka's bindings, and granting them, which nothing does by itself. docs/security.md shows the
table.
"""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from events.cluster import Cluster, refuses
from events.errors import DetentError

ANY_HOST = "*"
EVERY_TOPIC = ("commands", "reports", "events", "orders", "coordinators", "workers", "schemas", "dead-letters")


@dataclass(frozen=True, slots=True)
class Grant:
    """Operations that a role may do on resources of one kind, which are named without the cluster's prefix.

    Reading and writing include describing, and writing to a topic includes doing so idempotently: Kafka sees to it."""

    resource: ResourceType
    names: tuple[str, ...]
    operations: tuple[AclOperation, ...]
    why: str


def _topics(names: tuple[str, ...], operations: tuple[AclOperation, ...], why: str) -> Grant:
    return Grant(ResourceType.TOPIC, names, operations, why)


READ, WRITE, CREATE = (AclOperation.READ,), (AclOperation.WRITE,), (AclOperation.CREATE,)
LOOK = (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)

# Nothing is ever stored under it, but a consumer asks for its group's coordinator and is told off otherwise.
USE_CONSUMER = Grant(
    ResourceType.GROUP, ("",), (AclOperation.DESCRIBE,), "the client library asks for it when it reads"
)

ROLES: dict[str, tuple[Grant, ...]] = {
    "operator": (
        _topics(EVERY_TOPIC, CREATE + LOOK, "creates the topics, once"),
        _topics(("dead-letters", "schemas"), READ, "looks at what was put aside"),
        USE_CONSUMER,
    ),
    "coordinator": (
        _topics(EVERY_TOPIC, LOOK, "verifies the topics when it starts"),
        _topics(("commands", "reports", "workers", "coordinators"), READ, "its inputs"),
        _topics(("events", "schemas"), READ, "replays its log"),
        _topics(("events", "orders"), WRITE, "its decisions, in transactions"),
        _topics(("coordinators", "dead-letters", "schemas"), WRITE, "its beat, what it puts aside, its schemas"),
        Grant(ResourceType.TRANSACTIONAL_ID, ("-shard-",), WRITE, "leads shards: fences, and writes in transactions"),
        USE_CONSUMER,
    ),
    "worker": (
        _topics(EVERY_TOPIC, LOOK, "verifies the topics when it starts"),
        _topics(("orders", "schemas"), READ, "its orders"),
        _topics(("reports", "workers"), WRITE, "its reports and its heartbeat"),
        _topics(("dead-letters", "schemas"), WRITE, "what it puts aside, its schemas"),
        USE_CONSUMER,
    ),
    "service": (
        _topics(("commands",), WRITE, "sends commands"),
        _topics(("events",), READ, "awaits their outcomes"),
        _topics(("schemas",), READ + WRITE, "puts the schemas that it writes with on the log, where they are missing"),
        USE_CONSUMER,
    ),
    "reader": (
        _topics(("events", "coordinators", "workers", "schemas"), READ, "follows the log: read model, forensics"),
        _topics(("commands", "reports"), READ, "tells what was late or ignored, and decides again (`detent verify`)"),
        USE_CONSUMER,
    ),
}


def bindings(cluster: Cluster, role: str, principal: str) -> list[AclBinding]:
    """What has to be created for a principal (`User:name`) that has this role; `AdminClient.create_acls` takes it.
    A principal may have several roles."""
    return [
        AclBinding(
            grant.resource, *_pattern(cluster, grant, name), principal, ANY_HOST, operation, AclPermissionType.ALLOW
        )
        for grant in ROLES[role]
        for name in grant.names
        for operation in grant.operations
    ]


def grant(cluster: Cluster, role: str, principal: str, patience_s: float = 30.0) -> None:
    """Give a principal the rights of a role. Only whoever may alter the cluster can."""
    admin = cluster.admin()
    for created in admin.create_acls(bindings(cluster, role, principal)).values():
        try:
            created.result(timeout=patience_s)
        except KafkaException as error:
            doing = f"giving {principal} the rights of a {role}"
            if refuses(error.args[0]):
                raise cluster.refusal(doing, error.args[0]) from error
            raise DetentError(f"{doing} failed: {error.args[0].str()}") from error
        except TimeoutError as error:
            raise cluster.no_answer(f"giving {principal} the rights of a {role}", patience_s) from error


def _pattern(cluster: Cluster, grant: Grant, name: str) -> tuple[str, ResourcePatternType]:
    if grant.resource == ResourceType.TOPIC:
        return cluster.topic(name), ResourcePatternType.LITERAL
    # One transactional id for each shard; one group.
    prefixed = grant.resource == ResourceType.TRANSACTIONAL_ID
    return f"{cluster.prefix}{name}", ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL


def table() -> str:
    """All roles as Markdown, for the documents."""
    lines = ["| role | may | on | what for |", "|---|---|---|---|"]
    for role, grants in ROLES.items():
        for grant in grants:
            operations = ", ".join(operation.name.title().replace("_", "") for operation in grant.operations)
            lines.append(f"| {role} | {operations} | {_named(grant)} | {grant.why} |")
    return "\n".join(lines) + "\n"


def _named(grant: Grant) -> str:
    if grant.names == EVERY_TOPIC:
        return "each topic of Detent"
    prefix = "<prefix>." if grant.resource == ResourceType.TOPIC else "<prefix>"
    listed = ", ".join(f"`{prefix}{name}`" for name in grant.names)
    if grant.resource == ResourceType.TRANSACTIONAL_ID:
        return f"transactional ids that start with {listed}"
    return f"group {listed}" if grant.resource == ResourceType.GROUP else listed
