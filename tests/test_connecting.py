"""From settings to a cluster: TLS and SASL work, and properties that the client refuses are told with their place."""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from detent.connecting import check_properties, connected, topic_settings
from detent.settings_load import load
from detent.settings_sources import SettingsError
from events import broker_launch, embedded
from events.broker_settings import HOST, Ports, find_free_port, server_properties
from events.cluster import Cluster
from events.codec import Codec
from events.embedded import EmbeddedBroker
from events.errors import AccessRefused, BrokerUnreachable, PropertyRefused
from events.topics import TopicSettings, ensure_topics
from tests.logs import a_writer, replayed, tasks, transaction


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (["kafka.linger.msec=5"], '--set: kafka.linger.msec is refused by the Kafka client: No such configuration'),
        (["kafka.linger.ms=soon"], "--set: kafka.linger.ms is refused by the Kafka client: Invalid value"),
        (["kafka.client.id=x", "kafka.security.protocol=TLS"], '--set: kafka.security.protocol is refused'),
        (
            ["kafka.security.protocol=SASL_PLAINTEXT", "kafka.sasl.mechanism=PLAIN"],
            "kafka.*: kafka.security.protocol (--set), kafka.sasl.mechanism (--set) are refused by the Kafka client "
            "together: Failed to create consumer: sasl.username and sasl.password must be set",
        ),
        (["kafka.retries=0"], "`retries` must be set >= 1 when `enable.idempotence` is true"),
        (["kafka.socket.timeout.ms=60000"], "`socket.timeout.ms` must be set <= `transaction.timeout.ms`"),
    ],
)  # fmt: skip
def test_properties_that_the_client_refuses(said: list[str], expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_properties(load(None, {}, said))
    assert expected in str(caught.value)
    assert len(caught.value.problems) == 1


def test_properties_that_the_client_takes() -> None:
    said = ["kafka.linger.ms=5", "kafka.log_level=3", "kafka.security.protocol=sasl_ssl", "kafka.sasl.username=u"]
    check_properties(load(None, {}, [*said, "kafka.sasl.password=p", "kafka.sasl.mechanism=SCRAM-SHA-512"]))
    check_properties(load(None, {}, ["kafka.socket.timeout.ms=60000", "coordinator.transaction_timeout_ms=60000"]))


def test_a_client_that_is_refused_later_says_so() -> None:
    with pytest.raises(PropertyRefused, match=r'No such configuration property: "x\.y"\. Check the settings kafka\.\*'):
        Cluster("", properties={"x.y": "1"}).consumer()


def test_the_embedded_broker_has_no_tls() -> None:
    loaded = load(None, {}, ["kafka.security.protocol=SSL"])
    with pytest.raises(SettingsError, match=r"--set: kafka.security.protocol is SSL, but kafka.bootstrap_servers is"):
        connected(loaded).__enter__()


def test_topics_are_made_as_the_settings_say() -> None:
    assert topic_settings(load(None, {}, []).settings) == TopicSettings()
    said = ["kafka.replication=2", "kafka.forensics_window_ms=3", "kafka.max_record_bytes=2_000_000"]
    found = topic_settings(load(None, {}, said).settings)
    assert (found.replication, found.forensics_window_ms, found.max_record_bytes) == (2, 3, 2_000_000)


@pytest.mark.broker
def test_without_bootstrap_servers_the_embedded_broker_is_used(broker: EmbeddedBroker) -> None:
    loaded = load(None, {}, [f"state_dir={broker.directory.parent}", "kafka.topic_prefix=p", "kafka.shards=2"])
    with connected(loaded) as cluster:
        assert (cluster.bootstrap_servers, cluster.prefix, cluster.shards) == (broker.bootstrap_servers, "p", 2)


# A broker with TLS on both sides and a login -------------------------------------------------------------------------

PASSWORD, KEY_PASSWORD = "swordfish", "opensesame"


@dataclass(frozen=True)
class Secured:
    """Where it listens, and the directory with the authority's certificate and the client's."""

    bootstrap_servers: str
    directory: Path


def certificate(
    name: str, signed_by: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    issuer = signed_by[0].subject if signed_by else subject
    signing_key = signed_by[1] if signed_by else key
    builder = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), now - day, now + day)
        .add_extension(x509.BasicConstraints(ca=signed_by is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), critical=False)
    )
    return builder.sign(signing_key, hashes.SHA256()), key


def pem(key: ec.EllipticCurvePrivateKey, password: str = "") -> bytes:
    encryption = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def write_certificates(directory: Path) -> None:
    authority = certificate("authority", None)
    server, server_key = certificate("server", authority)
    client, client_key = certificate("client", authority)
    directory.mkdir()
    (directory / "ca.pem").write_bytes(authority[0].public_bytes(serialization.Encoding.PEM))
    (directory / "server.pem").write_bytes(pem(server_key) + server.public_bytes(serialization.Encoding.PEM))
    (directory / "client.pem").write_bytes(client.public_bytes(serialization.Encoding.PEM))
    (directory / "client.key").write_bytes(pem(client_key, KEY_PASSWORD))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """The embedded broker with one listener more."""
    directory = tmp_path_factory.mktemp("secured") / "certificates"
    write_certificates(directory)
    port = find_free_port(set())
    more = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURED:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secured.plain.sasl.jaas.config":
            f'org.apache.kafka.common.security.plain.PlainLoginModule required user_detent="{PASSWORD}";',
        "listener.name.secured.ssl.client.auth": "required",
        "listener.name.secured.ssl.keystore.type": "PEM",
        "listener.name.secured.ssl.keystore.location": str(directory / "server.pem"),
        "listener.name.secured.ssl.truststore.type": "PEM",
        "listener.name.secured.ssl.truststore.location": str(directory / "ca.pem"),
    }  # fmt: skip

    def with_listener(ports: Ports, overrides: Mapping[str, str], *data: str) -> str:
        text = server_properties(ports, {**overrides, **more}, *data)
        return re.sub(r"(?m)^((?:advertised\.)?listeners=.*)$", rf"\1,SECURED://{HOST}:{port}", text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker_launch, "server_properties", with_listener)
        with EmbeddedBroker(directory.parent):
            yield Secured(f"{HOST}:{port}", directory)
    embedded.stop(directory.parent)


def settings_file(secured: Secured, path: Path, password: str = "${file:password}") -> Path:
    (path.parent / "password").write_text(f"{PASSWORD}\n")
    path.write_text(
        f"""
        [kafka]
        bootstrap_servers = "{secured.bootstrap_servers}"
        topic_prefix = "{path.parent.name[-40:]}"
        shards = 1
        security.protocol = "SASL_SSL"
        sasl.mechanism = "PLAIN"
        sasl.username = "detent"
        sasl.password = "{password}"
        ssl.ca.location = "{secured.directory / "ca.pem"}"
        ssl.certificate.location = "{secured.directory / "client.pem"}"
        ssl.key.location = "{secured.directory / "client.key"}"
        ssl.key.password = "${{env:KEY_PASSWORD}}"
        """
    )
    return path


@pytest.mark.broker
def test_tls_and_sasl_work_for_topics_writers_and_readers(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load(settings_file(secured, tmp_path / "d.toml"), {"KEY_PASSWORD": KEY_PASSWORD}, [])
    with connected(loaded) as cluster:
        ensure_topics(cluster, topic_settings(loaded.settings))
        codec = Codec()
        with a_writer(cluster) as writer:
            writer.commit(transaction(codec, tasks(0, 3)))
        assert len(replayed(cluster, codec).values) == 4
    assert PASSWORD not in str(loaded.values())


@pytest.mark.broker
@pytest.mark.parametrize("wrong", ["password", "protocol"])
def test_a_wrong_login_is_refused_and_without_tls_nobody_answers(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = settings_file(secured, tmp_path / "d.toml", "wrong" if wrong == "password" else "${file:password}")
    flags = ["kafka.security.protocol=SASL_PLAINTEXT"] if wrong == "protocol" else []
    with (
        connected(load(path, {"KEY_PASSWORD": KEY_PASSWORD}, flags)) as cluster,
        pytest.raises(
            AccessRefused if wrong == "password" else BrokerUnreachable,
            match="Check the user, the password" if wrong == "password" else r"the security settings \(kafka",
        ),
    ):
        ensure_topics(cluster, patience_s=2)
