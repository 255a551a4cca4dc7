"""What tests on brokers in containers ask of them: a cluster of their own there, the roles of Detent, who leads."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import AclBindingFilter, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from events import acls
from events.cluster import Cluster
from tests.containers.broker import Brokers, secured_broker
from tests.containers.certificates import make_certificates
from tests.containers.settings import ADMIN, node_name
from tests.logs import own_cluster, until

PASSWORDS = {name: f"password-of-{name}" for name in (ADMIN, "stranger", *acls.ROLES)}


def broker_with_roles(image: str, directory: Path) -> Brokers:
    """One with SASL_SSL and ACLs, and a user for each role, who has no rights yet."""
    return secured_broker(image, make_certificates(directory, [node_name(1)]), PASSWORDS)


def own_cluster_on(brokers: Brokers) -> Cluster:
    return own_cluster(brokers.bootstrap_servers, properties=brokers.plan.login(ADMIN))


def leader_of_events(cluster: Cluster) -> int:
    name = cluster.topic("events")
    leader: int = cluster.admin().list_topics(name, timeout=10).topics[name].partitions[0].leader
    return leader


def wait_until_in_sync(cluster: Cluster) -> None:
    """Until no partition of anybody misses a replica: the next harm must not be the second."""
    admin = cluster.admin()

    def complete() -> bool:
        topics = admin.list_topics(timeout=10).topics.values()
        return all(len(p.isrs) == len(p.replicas) for topic in topics for p in topic.partitions.values())

    until(complete, "all replicas in sync")


def grant(everything: Cluster, role: str) -> None:
    """Until the broker knows it, which is a moment after the controller does."""
    acls.grant(everything, role, f"User:{role}")
    admin, wanted = everything.admin(), acls.bindings(everything, role, f"User:{role}")
    anything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{role}", None, AclOperation.ANY, AclPermissionType.ANY
    )
    until(lambda: set(wanted) <= set(admin.describe_acls(anything).result(timeout=10)), f"the rights of {role}")
