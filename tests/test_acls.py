"""The rights of each role: the design's table of who writes and reads what, the names on a cluster, the document."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import AclOperation, ResourcePatternType, ResourceType

from events import acls
from events.cluster import Cluster
from events.topics import TopicSettings, plans

SECURITY = Path(__file__).parent.parent / "docs/security.md"
# As DESIGN.md has it: topic → who writes it, who reads it. People read dead letters, as operators.
WRITTEN_AND_READ = {
    "commands": ({"service"}, {"coordinator", "reader"}),
    "reports": ({"worker"}, {"coordinator", "reader"}),
    "events": ({"coordinator"}, {"coordinator", "service", "reader"}),
    "orders": ({"coordinator"}, {"worker"}),
    "coordinators": ({"coordinator"}, {"coordinator", "reader"}),
    "workers": ({"worker"}, {"coordinator", "reader"}),
    "schemas": ({"coordinator", "worker", "service"}, set(acls.ROLES)),
    "dead-letters": ({"coordinator", "worker"}, {"operator"}),
}


def roles_that(operation: AclOperation, topic: str) -> set[str]:
    return {
        role
        for role, grants in acls.ROLES.items()
        for grant in grants
        if grant.resource == ResourceType.TOPIC and topic in grant.names and operation in grant.operations
    }


def test_who_writes_and_reads_what_is_as_designed() -> None:
    assert set(acls.EVERY_TOPIC) == {plan.name for plan in plans(TopicSettings())} == set(WRITTEN_AND_READ)
    for topic, (writers, readers) in WRITTEN_AND_READ.items():
        assert roles_that(AclOperation.WRITE, topic) == writers, topic
        assert roles_that(AclOperation.READ, topic) == readers, topic


def test_only_the_operator_creates_and_only_the_coordinator_leads() -> None:
    assert {role for topic in acls.EVERY_TOPIC for role in roles_that(AclOperation.CREATE, topic)} == {"operator"}
    leading = {
        role for role, grants in acls.ROLES.items() for g in grants if g.resource == ResourceType.TRANSACTIONAL_ID
    }
    assert leading == {"coordinator"}


def test_bindings_name_what_is_on_the_cluster() -> None:
    cluster = Cluster("unused:9092", prefix="mine")
    made = acls.bindings(cluster, "coordinator", "User:one")
    named = {(binding.restype, binding.resource_pattern_type, binding.name) for binding in made}
    assert (ResourceType.TOPIC, ResourcePatternType.LITERAL, cluster.topic("events")) in named
    assert (ResourceType.GROUP, ResourcePatternType.LITERAL, "mine") in named
    (prefix,) = (name for kind, _, name in named if kind == ResourceType.TRANSACTIONAL_ID)
    assert (ResourceType.TRANSACTIONAL_ID, ResourcePatternType.PREFIXED, prefix) in named
    assert cluster.transactional_id(17).startswith(prefix)
    assert all(binding.principal == "User:one" and binding.name.startswith("mine") for binding in made)


def test_the_document_shows_the_table() -> None:
    assert acls.table() in SECURITY.read_text(), f"put this into docs/security.md:\n{acls.table()}"
