"""What the embedded broker runs with: its server properties, its ports and its command line.

One node that is broker and controller, reachable on loopback only. It must never listen elsewhere, and
never let a caller's override change who the node is or where its data is.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from events.errors import DetentError
from events.java import Java

HOST = "127.0.0.1"
DATA = "data"
TEMPORARY = "tmp"
# Below the ports that systems give to outgoing connections. From those, a client that keeps trying to reach a
# stopped broker can in time be given the very port it is trying, and then it is connected with itself.
PORT_RANGE = range(20_000, 30_000)
PORT_TRIES = 200

IDENTITY = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
}
CHOSEN_AT_START = frozenset(
    {"listeners", "advertised.listeners", "controller.quorum.voters", "log.dir", "log.dirs", "metadata.log.dir"}
)
DEFAULTS = {
    "auto.create.topics.enable": "false",
    "message.max.bytes": str(8 * 1024 * 1024),
    "replica.fetch.max.bytes": str(8 * 1024 * 1024),
    # One node has one replica of everything, and little traffic on Kafka's own topics.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    # Nobody else is coming: a group need not wait for more members.
    "group.initial.rebalance.delay.ms": "0",
    # A dead producer's open transaction holds up readers until this sweep finds it.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # A node of one need never be declared dead by its own controller, for a long pause of the JVM for instance;
    # after kill -9, `fencing_properties` ends its last session.
    "broker.session.timeout.ms": "30000",
    "broker.heartbeat.interval.ms": "250",
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    "log.cleaner.backoff.ms": "1000",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "4",
}


@dataclass(eq=False)
class FixedProperty(DetentError):
    """A property that makes the embedded broker what it is."""

    name: str

    def message(self) -> str:
        return (
            f"{self.name} of the embedded broker can't be overridden: it says who the broker is, where it listens "
            "and where its data is. Leave it out; for a broker of your own, set bootstrap.servers."
        )


@dataclass(eq=False)
class PortTaken(DetentError):
    """The port that was asked for is somebody else's."""

    port: int

    def message(self) -> str:
        return (
            f"port {self.port} on {HOST} is taken by another process. Stop that one, or choose another port; "
            "without a port, Detent finds a free one."
        )


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the clients connect, and where the node talks to itself as controller."""

    client: int
    controller: int

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.client}"


def check_overrides(overrides: Mapping[str, str]) -> None:
    """Refuse overrides that would make it another broker."""
    for name in overrides:
        if name in IDENTITY or name in CHOSEN_AT_START:
            raise FixedProperty(name)


def choose_ports(last: Ports | None, wanted: int | None) -> Ports:
    """Last time's ports where they are still free, so that clients find a restarted broker again."""
    if wanted is not None and not is_free(wanted):
        raise PortTaken(wanted)
    client = wanted or (last.client if last and is_free(last.client) else find_free_port(set()))
    if last and last.controller != client and is_free(last.controller):
        return Ports(client, last.controller)
    return Ports(client, find_free_port({client}))


def is_free(port: int) -> bool:
    """Whether a server could listen there, judged as Java would: connections that just ended don't count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
        return True


def find_free_port(excluded: set[int]) -> int:
    """A free port; two callers at once rarely get the same, since each looks in an order of its own."""
    for port in random.sample(PORT_RANGE, PORT_TRIES):
        if port not in excluded and is_free(port):
            return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port


def server_properties(ports: Ports, overrides: Mapping[str, str], data: str = DATA) -> str:
    """The content of server.properties. Paths in it are relative to the broker's directory."""
    listening = f"PLAINTEXT://{HOST}:{ports.client}"
    chosen = {
        "listeners": f"{listening},{_controller_listener(ports)}",
        "advertised.listeners": listening,
        "controller.quorum.voters": _voters(ports),
        "log.dirs": data,
    }
    return properties_text({**DEFAULTS, **overrides, **IDENTITY, **chosen})


def fencing_properties(ports: Ports) -> str:
    """Settings of the same node as nothing but a controller, which finds the broker's last session stale at once."""
    return properties_text(
        {
            **IDENTITY,
            "process.roles": "controller",
            "listeners": _controller_listener(ports),
            "controller.quorum.voters": _voters(ports),
            "log.dirs": DATA,
            "broker.session.timeout.ms": "100",
            "broker.heartbeat.interval.ms": "50",
        }
    )


def _controller_listener(ports: Ports) -> str:
    return f"CONTROLLER://{HOST}:{ports.controller}"


def _voters(ports: Ports) -> str:
    return f"{IDENTITY['node.id']}@{HOST}:{ports.controller}"


def properties_text(settings: Mapping[str, str]) -> str:
    return "".join(f"{_escape(name, '=:#!')}={_escape(value, '')}\n" for name, value in settings.items())


def _escape(text: str, reserved: str) -> str:
    """Java's own escapes, for all but printable ASCII: these files are Latin-1 and care for blanks."""
    escaped = []
    for unit in text.encode("utf-16-be").hex(" ", 2).split():
        code = int(unit, 16)
        plain = 0x20 < code < 0x7F and chr(code) not in "\\" + reserved
        escaped.append(chr(code) if plain else f"\\u{code:04x}")
    return "".join(escaped)


def java_command(java: Java, jars: Path, directory: Path, options: list[str], *main: str) -> list[str]:
    """How to run a main class of Kafka, with the broker's directory as the working directory."""
    return [
        str(java.executable),
        *options,
        "-XX:-UsePerfData",
        "-Djava.awt.headless=true",
        "-Djava.net.preferIPv4Stack=true",
        f"-Djava.io.tmpdir={directory / TEMPORARY}",  # the compression codecs unpack themselves there
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
        *("-cp", f"{jars}/*"),
        *main,
    ]
