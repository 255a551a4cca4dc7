"""`detent doctor`: looks at everything that a Detent stands on, changes nothing, and says what to do.

Each check is a function that yields findings; one that can't be made says why, and the others go on.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NamedTuple

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AclOperation, ResourceType

from coordinator.read_model import ReadModel
from detent.connecting import connected, topic_settings
from detent.settings_load import Loaded
from events import embedded, jars
from events.acls import ROLES
from events.asking import shards_of
from events.cluster import Cluster
from events.errors import DetentError
from events.inputs import END, InputsReader
from events.java import find_java
from events.topics import ensure_topics, missing_topics

Verdict = Literal["good", "note", "bad"]
GIB = 1024**3
DISK_BAD, DISK_LOW, MEMORY_LOW = 0.5, 2.0, 1.5  # GiB
SKEW_MS = 1000
BEAT_S = 3.0


class Finding(NamedTuple):
    """What one look has found. `do` is what to do, where something is to be done."""

    what: str
    verdict: Verdict
    found: str
    do: str = ""


def examine(loaded: Loaded) -> Iterator[Finding]:
    """All checks, in the order in which things stand on each other."""
    yield from _looked("Java", _java)
    yield from _looked("Spark", _spark)
    yield from _looked("jars", _jars)
    yield from _looked("disk", lambda: _disk(loaded))
    yield from _looked("memory", _memory)
    settings = loaded.settings
    if not settings.kafka.bootstrap_servers and embedded.status(settings.state_dir) is None:
        found = f"none is named, and the embedded one of {settings.state_dir} does not run"
        yield Finding("broker", "note", found, "It starts with `detent up`; topics, rights and clock are then seen.")
        return
    with ExitStack() as held:
        try:
            cluster = held.enter_context(connected(loaded))
            brokers = len(cluster.admin().list_topics(timeout=10).brokers)
        except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
            yield Finding("broker", "bad", str(error), "Start the broker, or correct kafka.* (`detent config show`).")
            return
        yield Finding("broker", "good", f"{brokers} at {cluster.bootstrap_servers}")
        yield from _looked("topics", lambda: _topics(cluster, loaded))
        yield from _looked("rights", lambda: _rights(cluster, loaded))
        yield from _looked("clock", lambda: _clock(cluster))
        yield from _looked("processes", lambda: _processes(cluster))


def _looked(what: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from look()
    except DetentError as error:
        yield Finding(what, "bad", str(error))
    except Exception as error:  # noqa: BLE001  one check that fails must not hide the others
        yield Finding(what, "bad", f"could not be looked at: {type(error).__name__}: {error}")


def _java() -> Iterator[Finding]:
    java = find_java()
    yield Finding("Java", "good", f"{java.version} at {java.executable}")


def _spark() -> Iterator[Finding]:
    yield Finding("Spark", "good", f"PySpark {version('pyspark')}")


def _jars() -> Iterator[Finding]:
    for what, path in (("the broker's", jars.KAFKA_JARS), ("Spark's", jars.SPARK_JARS)):
        listing = jars.read_list(path)
        directory = jars.cache_directory() / "jars" / listing.digest
        damage = list(jars.find_damage(listing, directory)) if directory.exists() else []
        if damage:
            todo = f"Remove {directory}; they are fetched anew."
            yield Finding("jars", "bad", f"{what} in {directory} are damaged", todo)
        elif directory.exists():
            yield Finding("jars", "good", f"{what} are in {directory}")
        else:
            todo = "They are fetched when first needed, or by `make setup`."
            yield Finding("jars", "note", f"{what} are not here yet", todo)


def _disk(loaded: Loaded) -> Iterator[Finding]:
    directory = Path(loaded.settings.state_dir).absolute()
    there = next(path for path in (directory, *directory.parents) if path.exists())
    if not os.access(there, os.W_OK):
        yield Finding("disk", "bad", f"{there} can't be written to", "Set state_dir to a directory of yours.")
        return
    free = shutil.disk_usage(there).free / GIB
    verdict: Verdict = "bad" if free < DISK_BAD else "note" if free < DISK_LOW else "good"
    todo = (
        "" if verdict == "good" else "Make room, or set state_dir to another disk: logs, mirror and ledger are there."
    )
    yield Finding("disk", verdict, f"{free:.1f} GiB free for {directory}", todo)


def _memory() -> Iterator[Finding]:
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        yield Finding("memory", "note", "can't be seen on this system")
        return
    line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable"))
    free = int(line.split()[1]) * 1024 / GIB
    low = free < MEMORY_LOW
    todo = "A Spark worker takes about 1 GiB: set worker.spark.conf.spark.driver.memory, or run fewer." if low else ""
    yield Finding("memory", "note" if low else "good", f"{free:.1f} GiB available", todo)


def _topics(cluster: Cluster, loaded: Loaded) -> Iterator[Finding]:
    settings = topic_settings(loaded.settings)
    if missing := missing_topics(cluster, settings):
        found = f"{', '.join(missing)} are not there, or this user may not see them"
        yield Finding("topics", "note", found, "The first coordinator makes them; docs/security.md names the rights.")
        return
    ensure_topics(cluster, settings)  # all are there, so this only verifies them
    yield Finding("topics", "good", f"{cluster.shards} shards with the prefix {cluster.prefix}, as they must be")


def _rights(cluster: Cluster, loaded: Loaded) -> Iterator[Finding]:
    """Which roles this user could play, as the broker tells it."""
    if missing_topics(cluster, topic_settings(loaded.settings)):
        return
    admin = cluster.admin()
    on_topics = {role: [g for g in grants if g.resource == ResourceType.TOPIC] for role, grants in ROLES.items()}
    names = {topic for grants in on_topics.values() for g in grants for topic in g.names}
    asked = admin.describe_topics(
        TopicCollection([cluster.topic(name) for name in sorted(names)]), include_authorized_operations=True
    )
    may: dict[str, set[AclOperation]] = {
        topic: set(future.result(timeout=10).authorized_operations or ()) for topic, future in asked.items()
    }
    plays, lacks = [], {}
    for role, grants in on_topics.items():
        missing = [
            f"{operation.name.lower()} {cluster.topic(name)}"
            for g in grants
            for name in g.names
            for operation in g.operations
            if operation not in may[cluster.topic(name)] and operation != AclOperation.CREATE
        ]
        if missing:
            lacks[role] = missing
        else:
            plays.append(role)
    yield Finding("rights", "good" if plays else "bad", f"enough to be {', '.join(plays) or 'nothing at all'}")
    for role, missing in lacks.items():
        yield Finding("rights", "note", f"not enough to be {role}: {', '.join(missing[:3])}", "See docs/security.md.")


def _clock(cluster: Cluster) -> Iterator[Finding]:
    """A coordinator beats ten times a second, and the broker says when it got each."""
    reader = InputsReader(cluster, {("coordinators", 0): END})
    try:
        deadline = time.monotonic() + BEAT_S
        while time.monotonic() < deadline:
            for _, _, message in reader.poll(0.2, 1):
                off_ms = int(time.time() * 1000) - message.timestamp()[1]
                verdict: Verdict = "good" if abs(off_ms) < SKEW_MS else "bad"
                todo = "" if verdict == "good" else "Set the clocks by NTP: times on the log are off."
                yield Finding("clock", verdict, f"{abs(off_ms)} ms off the broker's, the way of a beat included", todo)
                return
    finally:
        reader.close()
    yield Finding("clock", "note", "no coordinator beats, so the broker's clock is not seen")


def _processes(cluster: Cluster) -> Iterator[Finding]:
    with ReadModel(Cluster(cluster.bootstrap_servers, cluster.prefix, shards_of(cluster), cluster.properties)) as model:
        model.catch_up()
        view = model.cluster_view()
    vacant = [str(shard.shard) for shard in view.shards if shard.state != "LEADING"]
    alive = [one.id for one in view.coordinators if (one.seconds_since_heard or 0) < BEAT_S]
    if vacant or not alive:
        which = f"shards {', '.join(vacant)} have no leader" if vacant else "no coordinator is heard"
        yield Finding("processes", "bad", which, "Start a coordinator: `detent coordinator`, or `detent up`.")
    else:
        yield Finding("processes", "good", f"coordinators {', '.join(alive)}; each shard has a leader")
    heard = [worker.id for worker in view.workers if worker.state in ("HEARD", "DRAINING")]
    if heard:
        yield Finding("processes", "good", f"workers {', '.join(heard)}")
    else:
        yield Finding("processes", "note", "no worker is heard", "Start one, or jobs wait: `detent worker`.")
    if view.unhealthy:
        yield Finding("processes", "note", f"{view.unhealthy} jobs are not well", "`detent jobs` names them.")
