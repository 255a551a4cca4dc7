"""From settings to a cluster: the one that is set, or the embedded broker where none is.

Before anything connects, the Kafka client is asked whether it takes the properties (`kafka.*`), so that a wrong one is
told with the place it was written at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from detent.settings import Settings
from detent.settings_load import Loaded
from detent.settings_sources import Problem, SettingsError
from events.cluster import SOCKET_TIMEOUT_MS, Cluster
from events.embedded import EmbeddedBroker
from events.errors import PropertyRefused
from events.topics import TopicSettings


@contextmanager
def connected(loaded: Loaded) -> Iterator[Cluster]:
    """The cluster that the settings say, for as long as it is used."""
    check_properties(loaded)
    settings = loaded.settings
    if settings.kafka.bootstrap_servers:
        yield cluster_at(settings.kafka.bootstrap_servers, settings)
        return
    protocol = settings.kafka.properties.get("security.protocol", "plaintext")
    if protocol.lower() != "plaintext":
        reason = f"is {protocol}, but kafka.bootstrap_servers is empty and the embedded broker, on loopback only, has "
        reason += "neither TLS nor logins; set kafka.bootstrap_servers"
        raise SettingsError((Problem(loaded.origin["kafka.security.protocol"], "kafka.security.protocol", reason),))
    with EmbeddedBroker(settings.state_dir) as broker:
        yield cluster_at(broker.bootstrap_servers, settings)


def cluster_at(bootstrap_servers: str, settings: Settings) -> Cluster:
    kafka = settings.kafka
    return Cluster(bootstrap_servers, prefix=kafka.topic_prefix, shards=kafka.shards, properties=kafka.properties)


def topic_settings(settings: Settings) -> TopicSettings:
    """How the topics are to be, for `ensure_topics`."""
    kafka = settings.kafka
    return TopicSettings(
        replication=kafka.replication or None,
        forensics_window_ms=kafka.forensics_window_ms,
        delete_retention_ms=kafka.delete_retention_ms,
        input_retention_ms=kafka.input_retention_ms,
        dead_letter_retention_ms=kafka.dead_letter_retention_ms,
        max_record_bytes=kafka.max_record_bytes,
    )


def check_properties(loaded: Loaded) -> None:
    """Ask the Kafka client, without connecting. Raises SettingsError."""
    properties = loaded.settings.kafka.properties
    refusal = _refusal(properties, loaded.settings)
    if refusal is None:
        return
    problems = []
    for name, value in properties.items():
        alone = _refusal({name: value}, loaded.settings)
        if alone is not None and "configuration property" in alone:  # else it lacks only what goes with it
            reason = f"is refused by the Kafka client: {alone}"
            problems.append(Problem(loaded.origin[f"kafka.{name}"], f"kafka.{name}", reason))
    if not problems:
        names = [f"kafka.{name} ({loaded.origin[f'kafka.{name}']})" for name in properties]
        problems.append(Problem("kafka.*", ", ".join(names), f"are refused by the Kafka client together: {refusal}"))
    raise SettingsError(tuple(problems))


def _refusal(properties: Mapping[str, str], settings: Settings) -> str | None:
    """What the client says of properties: a reader, and a writer as shards have it."""
    nowhere = Cluster("", properties=properties)
    timeout_ms = settings.coordinator.transaction_timeout_ms
    try:
        nowhere.consumer().close()
        nowhere.producer(
            transactional_id="never-used",
            transaction_timeout_ms=timeout_ms,
            message_timeout_ms=timeout_ms,
            socket_timeout_ms=min(SOCKET_TIMEOUT_MS, timeout_ms),
        )
    except PropertyRefused as refused:
        return refused.reason
    return None
