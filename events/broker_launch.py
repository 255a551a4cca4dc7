"""Brings the embedded broker's process up: formats its storage once, then starts the guard, which starts it.

The caller holds `start.lock` and has seen that no guard runs (see `events.embedded`). Nothing here waits for
the broker to answer, and nothing here may touch the data of a broker that runs.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from events import embedded_guard
from events.broker_settings import DATA, TEMPORARY, Ports, fencing_properties, java_command, server_properties
from events.broker_state import BrokerStatus, StateUnusable
from events.errors import DetentError
from events.java import Java

FENCING_PROPERTIES = "fencing.properties"
FORMAT_LIMIT_S = 120.0
GUARD_LIMIT_S = 60.0
LOG_TAIL_LINES = 30
FENCING_LIMIT_S = 20.0
# What the controller logs when the fencing of a stale broker is committed, and when it finds nothing to do. It
# looks every 12 ms and a session lasts 100 ms: after so many looks there is no stale broker.
FENCED = r"Read-write operation (maybeFenceStaleBroker\(\d+\)) will be completed.*Processed \1 in "
LOOKED = "Processed maybeFenceStaleBroker("
LOOKS = 50
JVM_VARIABLE = "DETENT_BROKER_JVM"  # more options of the broker's JVM
ADDRESS_TAKEN = "Address already in use"


@dataclass(eq=False)
class BrokerFailed(DetentError):
    """The broker's process did not do what it was started for."""

    what: str
    directory: Path
    tail: str

    def message(self) -> str:
        log = self.directory / embedded_guard.LOG
        tail = f"The end of {log}:\n\n{self.tail}\n\n" if self.tail else f"There is nothing in {log}. "
        return (
            f"the embedded broker {self.what}. {tail}"
            f"Correct what it names and start again. If its data is damaged and not needed, remove {self.directory}."
        )


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything a broker process is started with."""

    directory: Path
    java: Java
    jars: Path
    ports: Ports
    overrides: Mapping[str, str]
    heap: str

    @property
    def class_archive(self) -> Path:
        """Where the JVM keeps Kafka's loaded classes, which halves the time to start. One for each Java."""
        key = hashlib.sha256(f"{self.java.executable} {self.java.version}".encode()).hexdigest()[:8]
        return self.jars.with_name(f"{self.jars.name}.{key}.jsa")

    @property
    def class_archive_part(self) -> Path:
        """Where this broker writes the archive when there is none yet. Moved to its place when whole."""
        owner = hashlib.sha256(str(self.directory).encode()).hexdigest()[:8]
        return self.class_archive.with_name(f"{self.class_archive.name}.{owner}.part")


def launch_broker(launch: Launch) -> BrokerStatus | None:
    """Start a broker. None when a guard was there already."""
    temporary = launch.directory / TEMPORARY
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    if not (launch.directory / DATA).exists():
        _format(launch)
    record = _ask_guard(launch, _read_cluster_id(launch.directory))
    return None if record is None else msgspec.convert(record, BrokerStatus)


def _read_cluster_id(directory: Path) -> str:
    meta = directory / DATA / "meta.properties"
    lines = meta.read_text("latin-1").splitlines()
    for line in lines:
        if line.startswith("cluster.id="):
            return line.partition("=")[2]
    raise StateUnusable(directory, f"{meta} names no cluster")


def _format(launch: Launch) -> None:
    """Format under another name, then rename: a storage that is there is whole, whoever was killed when."""
    for leftover in launch.directory.glob("format.*.part"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="format.", suffix=".part", dir=launch.directory) as part:
        settings = Path(part) / "format.properties"
        fresh = Path(part) / DATA
        data = str(fresh.relative_to(launch.directory))
        settings.write_text(server_properties(launch.ports, {}, data), "ascii")
        options = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *_use_class_archive(launch)]
        main = ("kafka.tools.StorageTool", "format", "--cluster-id", _new_cluster_id(), "--config", str(settings))
        command = java_command(launch.java, launch.jars, launch.directory, options, *main)
        try:
            done = subprocess.run(
                command, cwd=launch.directory, capture_output=True, timeout=FORMAT_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BrokerFailed(
                f"did not format its storage within {FORMAT_LIMIT_S:g} s", launch.directory, ""
            ) from error
        if done.returncode != 0:
            said = (done.stdout + done.stderr).decode(errors="replace").strip()
            raise BrokerFailed(f"could not format its storage: {said}", launch.directory, "")
        fresh.rename(launch.directory / DATA)


def _new_cluster_id() -> str:
    """Kafka's form of an id; one that starts with a dash would be read as an option."""
    while True:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not cluster_id.startswith("-"):
            return cluster_id


def _guard_request(launch: Launch, cluster_id: str) -> bytes:
    """What the guard is told. It completes the record with the processes and writes it to `broker.json`."""
    main = ("kafka.Kafka", embedded_guard.PROPERTIES)
    record = {
        "bootstrap_servers": launch.ports.bootstrap_servers,
        "port": launch.ports.client,
        "controller_port": launch.ports.controller,
        "cluster_id": cluster_id,
        "overrides": dict(launch.overrides),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "log": str(launch.directory / embedded_guard.LOG),
    }
    request = {
        "directory": str(launch.directory),
        "files": {
            embedded_guard.PROPERTIES: server_properties(launch.ports, launch.overrides),
            FENCING_PROPERTIES: fencing_properties(launch.ports),
        },
        "first": _fencing(launch) if _was_killed(launch.directory) else None,
        "command": java_command(launch.java, launch.jars, launch.directory, _jvm_options(launch), *main),
        "archive": [str(launch.class_archive_part), str(launch.class_archive)],
        "record": record,
    }
    return json.dumps(request).encode()


def _was_killed(directory: Path) -> bool:
    """Whether the last broker ended without a word to its controller, which still believes it to be alive."""
    data = directory / DATA
    return (data / "__cluster_metadata-0").exists() and not (data / ".kafka_cleanshutdown").exists()


def _fencing(launch: Launch) -> dict[str, object]:
    """End the session of a broker that was killed before it comes back.

    Kafka would not let it register until the session runs out. Worse: meanwhile it believes itself the leader of
    its partitions and tries to complete the transactions that were being committed when it was killed; at the
    moment the session runs out the partitions have no leader, it takes them for deleted and gives those
    transactions up (KAFKA-20734, in 4.3.1). They were acknowledged, and would hang for good.
    """
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *_use_class_archive(launch)]
    options.append("-Dorg.slf4j.simpleLogger.log.org.apache.kafka.controller.QuorumController=debug")
    main = ("kafka.Kafka", FENCING_PROPERTIES)
    return {
        "command": java_command(launch.java, launch.jars, launch.directory, options, *main),
        "done": FENCED,
        "idle": LOOKED,
        "idle_limit": LOOKS,
        "limit_s": FENCING_LIMIT_S,
    }


def _use_class_archive(launch: Launch) -> list[str]:
    there = launch.class_archive.exists()
    return ["-Xlog:cds*=off", f"-XX:SharedArchiveFile={launch.class_archive}"] if there else []


def _jvm_options(launch: Launch) -> list[str]:
    on_trouble = ["-XX:+ExitOnOutOfMemoryError", "-XX:ErrorFile=crash.log", "-XX:-CreateCoredumpOnCrash"]
    options = [f"-Xmx{launch.heap}", *on_trouble, *shlex.split(os.environ.get(JVM_VARIABLE, ""))]
    if archive := _use_class_archive(launch):
        return [*options, *archive]
    return [*options, "-Xlog:cds*=off", f"-XX:ArchiveClassesAtExit={launch.class_archive_part}"]


def _ask_guard(launch: Launch, cluster_id: str) -> dict[str, object] | None:
    """Start the guard, which starts the broker, and take its record. None when another guard was quicker."""
    # Isolated and without site-packages, the guard starts in a few milliseconds and needs nothing of ours. In
    # a session of its own, no Ctrl-C meant for us reaches it.
    with subprocess.Popen(
        [sys.executable, "-I", "-S", embedded_guard.__file__],
        cwd=launch.directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as guard:
        try:
            said, _ = guard.communicate(_guard_request(launch, cluster_id), timeout=GUARD_LIMIT_S)
        except subprocess.TimeoutExpired:
            guard.kill()
            said = f"its guard did not answer within {GUARD_LIMIT_S:g} s".encode()
    with contextlib.suppress(ValueError):
        answer = json.loads(said)
        if answer.get("already_guarded"):
            return None
        if record := answer.get("record"):
            return dict(record)
        said = str(answer.get("error", answer)).encode()
    reason = said.decode(errors="replace").strip() or "its guard ended without a word"
    raise BrokerFailed(f"could not be started: {reason}", launch.directory, "")


def log_tail(directory: Path) -> str:
    """The last lines of the broker's log; the log itself may be long."""
    with contextlib.suppress(OSError), (directory / embedded_guard.LOG).open("rb") as log:
        log.seek(max(0, log.seek(0, 2) - 64 * 1024))
        return "\n".join(log.read().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:])
    return ""
