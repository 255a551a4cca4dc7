"""Server properties of the brokers in containers: each node is broker and controller.

Clients come in by the CLIENT listener, published on 127.0.0.1 of the host. Nodes talk to each other by their names in
their own network. Only values; nothing is started here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from events.broker_settings import DEFAULTS, HOST
from tests.containers.certificates import BROKER_NAME, PASSWORD

CLIENT_PORT, CONTROLLER_PORT, INTERNAL_PORT = 9092, 9093, 9094
DATA = "/var/lib/detent/data"  # as in start.sh
SETTINGS = "/etc/detent"
KEYSTORE, TRUSTSTORE = "broker.p12", "trusted.p12"
ADMIN = "admin"
MECHANISM = "SCRAM-SHA-512"

# A node that was killed may come back when its session has run out.
ALONE = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "200"}
TOGETHER = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "replica.lag.time.max.ms": "1500",
    "controller.quorum.fetch.timeout.ms": "1000",
    "controller.quorum.election.timeout.ms": "300",
    # A machine that is gone does not even refuse connections: what a coordinator had asked it, the markers of a
    # committed transaction for instance, is asked of the next leader after this long (30 s by default).
    "request.timeout.ms": "2000",
    "replica.socket.timeout.ms": "2000",
    "socket.connection.setup.timeout.ms": "1000",
    "socket.connection.setup.timeout.max.ms": "2000",
}
SECURED = {
    "listener.security.protocol.map": "CLIENT:SASL_SSL,INTERNAL:SSL,CONTROLLER:SSL",
    "sasl.enabled.mechanisms": MECHANISM,
    f"listener.name.client.{MECHANISM.lower()}.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    # The nodes know each other by their certificates.
    "listener.name.internal.ssl.client.auth": "required",
    "listener.name.controller.ssl.client.auth": "required",
    "ssl.keystore.type": "PKCS12",
    "ssl.keystore.location": f"{SETTINGS}/{KEYSTORE}",
    "ssl.keystore.password": PASSWORD,
    "ssl.key.password": PASSWORD,
    "ssl.truststore.type": "PKCS12",
    "ssl.truststore.location": f"{SETTINGS}/{TRUSTSTORE}",
    "ssl.truststore.password": PASSWORD,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:{BROKER_NAME};User:{ADMIN}",
}


# A node as nothing but a controller, which finds the session of the broker that it was before stale at once.
FENCING = {
    "process.roles": "controller",
    "listeners": f"CONTROLLER://:{CONTROLLER_PORT}",
    "broker.session.timeout.ms": "100",
    "broker.heartbeat.interval.ms": "50",
}


def node_name(number: int) -> str:
    """A node's name in its network."""
    return f"broker-{number}"


def node_properties(number: int, ports: Sequence[int], kind: Mapping[str, str]) -> dict[str, str]:
    """The properties of node `number` (from 1) of as many nodes as there are published ports."""
    name = node_name(number)
    voters = (f"{n}@{node_name(n)}:{CONTROLLER_PORT}" for n in range(1, len(ports) + 1))
    return {
        **DEFAULTS,
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        **kind,
        "process.roles": "broker,controller",
        "node.id": str(number),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "INTERNAL",
        "controller.quorum.voters": ",".join(voters),
        "listeners": f"CLIENT://:{CLIENT_PORT},INTERNAL://:{INTERNAL_PORT},CONTROLLER://:{CONTROLLER_PORT}",
        "advertised.listeners": f"CLIENT://{HOST}:{ports[number - 1]},INTERNAL://{name}:{INTERNAL_PORT}",
        "log.dirs": DATA,
    }


def fencing_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """For a node that is alone, to be run for a moment after it was killed."""
    brokers_only = ("advertised.listeners", "inter.broker.listener.name")
    return {name: value for name, value in properties.items() if name not in brokers_only} | FENCING
