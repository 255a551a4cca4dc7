"""Brokers in containers: made together, harmed by tests, removed together whatever happened.

A broker counts as there when it answers a request for its metadata. A connection proves nothing: the engine's proxy
accepts it before anybody listens behind.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import signal
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    KEYSTORE,
    MECHANISM,
    SECURED,
    SETTINGS,
    TOGETHER,
    TRUSTSTORE,
    fencing_properties,
    node_name,
    node_properties,
)
from tests.logs import until

START_SCRIPT = Path(__file__).with_name("start.sh")
START_LIMIT_S = 90.0
LOG_LINES = 60


@dataclass(frozen=True)
class Plan:
    """What the nodes of one cluster have in common."""

    image: str
    kind: Mapping[str, str]
    ports: Sequence[int]  # on the host, one for each node
    # A node that is alone and was killed has its last session ended first, as the embedded broker does.
    fencing: bool = True
    users: Mapping[str, str] = field(default_factory=dict)  # name → password
    certificates: Certificates | None = None

    def files(self, number: int) -> dict[str, bytes]:
        properties = node_properties(number, self.ports, self.kind)
        files = {"start.sh": START_SCRIPT.read_bytes(), "server.properties": properties_text(properties).encode()}
        if self.fencing and len(self.ports) == 1:
            files["fencing.properties"] = properties_text(fencing_properties(properties)).encode()
        if self.certificates is not None:
            files[KEYSTORE] = self.certificates.keystore.read_bytes()
            files[TRUSTSTORE] = self.certificates.truststore.read_bytes()
        return {f"{SETTINGS}/{name}": content for name, content in files.items()}

    def format_options(self, cluster: uuid.UUID) -> list[str]:
        options = [f"--cluster-id={base64.urlsafe_b64encode(cluster.bytes).decode().rstrip('=')}"]
        for user, password in self.users.items():
            options += ["--add-scram", f"{MECHANISM}=[name={user},password={password}]"]
        return options

    def login(self, user: str, password: str | None = None, authority: Path | None = None) -> dict[str, str]:
        """librdkafka's properties for a user; none where there are no users."""
        if self.certificates is None:
            return {}
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(authority or self.certificates.authority),
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": password or self.users[user],
        }


class BrokerContainer(DockerContainer):
    """One node. What a test may do to it, it may do again and again; its data stays as long as the container."""

    def __init__(self, plan: Plan, number: int, network: Network) -> None:
        super().__init__(plan.image, user="0:0", entrypoint=["sh", f"{SETTINGS}/start.sh"], labels=owner_label())
        self.number = number
        self.bootstrap_servers = f"{HOST}:{plan.ports[number - 1]}"
        self._login = plan.login(ADMIN)
        self._own_network = network
        self._pid = 0
        self.with_name(f"detent-{network.name[:8]}-{node_name(number)}")
        self.with_network(network).with_network_aliases(node_name(number))
        self.with_command(plan.format_options(uuid.UUID(network.name)))
        # A fixed port: one chosen by the engine would be another after each start, and the advertised one stale.
        self.ports[f"{CLIENT_PORT}/tcp"] = (HOST, plan.ports[number - 1])  # type: ignore[assignment]
        for path, content in plan.files(number).items():
            self.with_copy_into_container(content, path)

    def start(self) -> Self:
        super().start()
        self._note_pid()
        return self

    def start_again(self, *, wait: bool = True) -> None:
        self.get_wrapped_container().start()
        self._note_pid()
        if wait:
            self.wait_until_answering()

    def kill(self) -> None:
        """SIGKILL, and at once: by way of the engine it would come a tenth of a second later."""
        if _runs_in(self._pid, self.get_container_id()):
            os.kill(self._pid, signal.SIGKILL)
        else:  # the engine is on another machine
            self.get_wrapped_container().kill("SIGKILL")
        until(lambda: self._state() == "exited", f"the end of {self._name}")

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

    def sees(self) -> set[int]:
        """The nodes that it names when it is asked for its metadata; none when it does not answer."""
        quiet = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
        client = AdminClient({"bootstrap.servers": self.bootstrap_servers, **quiet, **self._login})
        try:
            return set(client.list_topics(timeout=1.0).brokers)
        except KafkaException:
            return set()

    def wait_until_answering(self) -> None:
        def answers() -> bool:
            assert self._state() == "running", f"{self._name} ended by itself"
            return self.number in self.sees()

        try:
            until(answers, f"an answer of {self._name}", START_LIMIT_S)
        except AssertionError as error:
            error.add_note(f"The end of its log:\n{self.log_tail()}")
            raise

    def log_tail(self) -> str:
        try:
            return str(self.get_wrapped_container().logs(tail=LOG_LINES), errors="replace")
        except DockerException as error:
            return f"(no log: {error})"

    def _note_pid(self) -> None:
        self.reload()
        self._pid = int(self.get_wrapped_container().attrs["State"]["Pid"])

    def _state(self) -> str:
        self.reload()
        return self.status


def _runs_in(pid: int, container_id: str) -> bool:
    """Whether this process of our machine is one of the container's."""
    try:
        return container_id in Path(f"/proc/{pid}/cgroup").read_text("utf-8", errors="replace")
    except OSError:
        return False


class Brokers:
    """All nodes of one cluster, and the network that is theirs. They run inside a `with` block."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.bootstrap_servers = ",".join(f"{HOST}:{port}" for port in plan.ports)
        self._network = Network(docker_network_kw={"labels": owner_label()})
        self.nodes = [BrokerContainer(plan, number, self._network) for number in range(1, len(plan.ports) + 1)]

    def __enter__(self) -> Self:
        try:
            self._network.create()
            for node in self.nodes:
                node.start()
            for node in self.nodes:
                node.wait_until_answering()
            self.wait_for_all()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        with contextlib.ExitStack() as undo:  # each step, whatever comes of the others; the last one first
            undo.callback(self._network._docker.client.close)
            if self._network._network is not None:
                undo.callback(self._network.remove)
            for node in self.nodes:
                undo.callback(node.stop)

    def node(self, number: int) -> BrokerContainer:
        return self.nodes[number - 1]

    def wait_for_all(self) -> None:
        """Until each node says that all are there."""
        everyone = {node.number for node in self.nodes}
        for node in self.nodes:
            until(functools.partial(_sees, node, everyone), f"node {node.number} to see {everyone}", START_LIMIT_S)


def _sees(node: BrokerContainer, numbers: set[int]) -> bool:
    return node.sees() == numbers


def single_broker(image: str, *, fencing: bool = True) -> Brokers:
    return Brokers(Plan(image, ALONE, _free_ports(1), fencing))


def three_brokers(image: str) -> Brokers:
    """Replication 3, of which 2 must be in sync; dead nodes are noticed in about two seconds."""
    return Brokers(Plan(image, TOGETHER, _free_ports(3)))


def secured_broker(image: str, certificates: Certificates, users: Mapping[str, str]) -> Brokers:
    """SASL_SSL for clients, and nothing allowed but what an ACL says; the user `admin` may do everything."""
    plan = Plan(image, {**ALONE, **SECURED}, _free_ports(1), fencing=False, users=users, certificates=certificates)
    return Brokers(plan)


def _free_ports(count: int) -> list[int]:
    ports: list[int] = []
    for _ in range(count):
        ports.append(find_free_port(set(ports)))
    return ports
