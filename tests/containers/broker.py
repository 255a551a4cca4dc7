"""Brokers in containers: made together, harmed by tests, removed together whatever happened.

A broker counts as there when it answers a request for its metadata. A connection proves nothing: the engine's proxy
accepts it before anybody listens behind.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from docker.errors import DockerException
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from events.broker_settings import HOST, find_free_port, properties_text
from tests.containers.certificates import Certificates
from tests.containers.engine import owner_label
from tests.containers.settings import (
    ADMIN,
    ALONE,
    CLIENT_PORT,
    DATA,
    KEYSTORE,
    MECHANISM,
    SECURED,
    TOGETHER,
    TRUSTSTORE,
    node_name,
    node_properties,
)
from tests.logs import until

PROPERTIES = "/etc/detent/server.properties"
START = "/etc/detent/start.sh"
# The same for the official image and for ours. The class path stays unexpanded: Java itself reads the asterisk.
START_SCRIPT = f"""set -e
export CLASSPATH='/opt/kafka/libs/*'
small="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
log="-Dorg.slf4j.simpleLogger.defaultLogLevel=warn -Dorg.slf4j.simpleLogger.showDateTime=true -Dlog4j2.level=WARN"
# A node that comes back may have another address: names are asked for anew.
names="-Dsun.net.inetaddr.ttl=0 -Djava.net.preferIPv4Stack=true"
if ! test -e {DATA}/meta.properties; then
  java -Xmx128m $small $log kafka.tools.StorageTool format "$@" --config {PROPERTIES} >/dev/null
fi
exec java -Xmx384m $small $log $names -Djava.awt.headless=true kafka.Kafka {PROPERTIES}
"""
LOG_LINES = 60


class BrokerContainer(DockerContainer):
    """One node. What a test may do to it, it may do again and again; its data stays as long as the container."""

    def __init__(
        self, image: str, number: int, ports: Sequence[int], network: Network, kind: Mapping[str, str],
        format_options: Sequence[str], login: Mapping[str, str], files: Mapping[str, bytes],
    ) -> None:  # fmt: skip
        super().__init__(image, user="0:0", entrypoint=["sh", START], labels=owner_label())
        self.number, self.login = number, dict(login)
        self.bootstrap_servers = f"{HOST}:{ports[number - 1]}"
        self._own_network = network
        self.with_name(f"detent-{network.name[:8]}-{node_name(number)}")
        self.with_network(network).with_network_aliases(node_name(number))
        self.with_command(list(format_options))
        # A fixed port: one chosen by the engine would be another after each start, and the advertised one stale.
        self.ports[f"{CLIENT_PORT}/tcp"] = (HOST, ports[number - 1])  # type: ignore[assignment]
        properties = properties_text(node_properties(number, ports, kind)).encode()
        for path, content in {PROPERTIES: properties, START: START_SCRIPT.encode(), **files}.items():
            self.with_copy_into_container(content, path)

    def kill(self) -> None:
        """SIGKILL, to its process."""
        self.get_wrapped_container().kill("SIGKILL")
        until(lambda: self._state() == "exited", f"the end of {self._name}")

    def start_again(self, *, wait: bool = True) -> None:
        self.get_wrapped_container().start()
        if wait:
            self.wait_until_answering()

    def pause(self) -> None:
        """Freeze it: connections stay open and nothing answers."""
        self.get_wrapped_container().pause()

    def unpause(self) -> None:
        self.get_wrapped_container().unpause()

    def disconnect(self) -> None:
        """Cut it off, from the other nodes and from clients."""
        self._own_network._unwrap_network.disconnect(self.get_container_id())

    def connect(self) -> None:
        self._own_network.connect(self.get_container_id(), [node_name(self.number)])

    def wait_until_answering(self, limit_s: float = 90.0) -> None:
        def answered_or_dead() -> bool:
            assert self._state() == "running", f"{self._name} ended. The end of its log:\n{self.log_tail()}"
            return self.number in nodes_seen_at(self.bootstrap_servers, self.login)

        try:
            until(answered_or_dead, f"an answer of {self._name}", limit_s)
        except AssertionError as error:
            error.add_note(f"The end of its log:\n{self.log_tail()}")
            raise

    def sees(self, numbers: set[int]) -> bool:
        """Whether it answers that exactly these nodes are there."""
        return nodes_seen_at(self.bootstrap_servers, self.login) == numbers

    def log_tail(self, lines: int = LOG_LINES) -> str:
        try:
            return self.get_wrapped_container().logs(tail=lines).decode(errors="replace")
        except DockerException as error:
            return f"(no log: {error})"

    def _state(self) -> str:
        self.reload()
        return self.status


class Brokers:
    """All nodes of one cluster, and the network that is theirs."""

    def __init__(
        self, image: str, count: int, kind: Mapping[str, str], *, users: Mapping[str, str] | None = None,
        certificates: Certificates | None = None,
    ) -> None:  # fmt: skip
        self.certificates = certificates
        self._users = dict(users or {})
        self._network = Network(docker_network_kw={"labels": owner_label()})
        ports: list[int] = []
        for _ in range(count):
            ports.append(find_free_port(set(ports)))
        self.bootstrap_servers = ",".join(f"{HOST}:{port}" for port in ports)
        files, login = {}, {}
        if certificates is not None:
            files = {KEYSTORE: certificates.keystore.read_bytes(), TRUSTSTORE: certificates.truststore.read_bytes()}
            login = self.login(ADMIN)
        self.nodes = [
            BrokerContainer(image, number, ports, self._network, kind, self._format_options(), login, files)
            for number in range(1, count + 1)
        ]

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            self._network.create()
            undo.callback(self._network.remove)
            for node in self.nodes:
                undo.callback(node.stop)
                node.start()
            for node in self.nodes:
                node.wait_until_answering()
            self.wait_for_all()
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def node(self, number: int) -> BrokerContainer:
        return self.nodes[number - 1]

    def login(self, user: str, password: str | None = None, authority: Path | None = None) -> dict[str, str]:
        """librdkafka's properties for a user of a secured broker."""
        assert self.certificates is not None
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(authority or self.certificates.authority),
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": password or self._users[user],
        }

    def wait_for_all(self) -> None:
        """Until each node says that all are there."""
        everyone = {node.number for node in self.nodes}
        for node in self.nodes:
            until(functools.partial(node.sees, everyone), f"node {node.number} to see nodes {everyone}", 90.0)

    def _format_options(self) -> list[str]:
        cluster_id = base64.urlsafe_b64encode(uuid.UUID(self._network.name).bytes).decode().rstrip("=")
        options = [f"--cluster-id={cluster_id}"]
        for user, password in self._users.items():
            options += ["--add-scram", f"{MECHANISM}=[name={user},password={password}]"]
        return options


def single_broker(image: str) -> Brokers:
    return Brokers(image, 1, ALONE)


def three_brokers(image: str) -> Brokers:
    """Replication 3, of which 2 must be in sync; dead nodes are noticed in about two seconds."""
    return Brokers(image, 3, TOGETHER)


def secured_broker(image: str, certificates: Certificates, users: Mapping[str, str]) -> Brokers:
    """SASL_SSL for clients, and nothing allowed but what an ACL says; `admin` may everything."""
    return Brokers(image, 1, {**ALONE, **SECURED}, users=users, certificates=certificates)


def nodes_seen_at(bootstrap_servers: str, login: Mapping[str, str], timeout_s: float = 1.0) -> set[int]:
    """The nodes that the metadata names which is answered there; none when nothing is answered."""
    quiet = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
    try:
        metadata = AdminClient({"bootstrap.servers": bootstrap_servers, **quiet, **login}).list_topics(
            timeout=timeout_s
        )
    except KafkaException:
        return set()
    return set(metadata.brokers)
