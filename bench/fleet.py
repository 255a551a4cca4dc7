"""Coordinators and workers as real processes, for benchmarks and tests: started, killed, frozen and asked.

What is known of them is read from the log, or from their pages; never from their memory.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from events.cluster import Cluster
from events.codec import Codec
from events.errors import Place, UnreadableRecord
from events.keys import shard_of
from events.reader import PartitionReader, offset_of
from events.records import Command, CommandAction, Event, Outcome, Submit

T = TypeVar("T")
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def until(wanted: Callable[[], T], what: str, limit_s: float = 60.0) -> T:
    """Wait for a condition; its value when it holds. The limit is for hanging, not for judging speed."""
    deadline = time.monotonic() + limit_s
    while not (value := wanted()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {limit_s:g} s for {what}")
        time.sleep(0.01)
    return value


def numbers(path: Path, rows: int, parallelism: int = 1, rate: float = 0.0, **more: Any) -> str:
    """A job of the trial engine: numbered rows into files of lines."""
    env = {"checkpoint": {"interval_ms": 500, "timeout_ms": 10_000}, "cleanup_delay_ms": 60_000}
    env |= more.pop("env", {})
    source = {"name": "in", "kind": "numbers", "parallelism": parallelism, "options": {"rows": rows, "rate": rate}}
    source["options"] |= more.pop("source", {})
    sink = {"name": "out", "kind": "lines", "from": ["in"], "options": {"path": str(path)} | more.pop("sink", {})}
    return json.dumps({"env": env, "source": [source], "sink": [sink]})


def published(path: Path) -> list[str]:
    """Every line that is published, in any order."""
    return [line for file in sorted(path.glob("*")) if file.is_file() for line in file.read_text().splitlines()]


def _die_with_us() -> None:
    """On Linux the kernel kills the child when whoever started it dies, however that happens."""
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def resident_mb(process: int) -> float:
    """What it has of the machine's memory; 0 where there is no such process."""
    try:
        said = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    return int(said.partition("VmRSS:")[2].split()[0]) / 1024 if "VmRSS:" in said else 0.0


@dataclass
class Child:
    """A process of the fleet."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self, limit_s: float = 30.0) -> int:
        """In good order. Returns the exit code."""
        self.process.terminate()
        return self.process.wait(limit_s)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def address(self) -> str:
        """Of its pages."""
        found = [part for part in self.said().split() if part.startswith("address=")]
        return found[0].removeprefix("address=") if found else ""

    def page(self, path: str) -> tuple[int, str]:
        """Status and text; status 0 while it can't be reached."""
        if not self.address:
            return 0, ""
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""


@dataclass(frozen=True)
class Launch:
    """How a process is started: by which program, with what in its environment besides ours."""

    program: tuple[str, ...] = (sys.executable, "-m", "detent")
    environment: Mapping[str, str] = field(default_factory=dict)


PLAIN = Launch()
TRIAL, SPARK = "workers.trial:TrialEngine", "workers.spark.engine:SparkEngine"


@dataclass
class Fleet:
    """Use as a context: whatever still lives at the end is killed."""

    cluster: Cluster
    directory: Path
    settings: dict[str, object] = field(default_factory=dict)
    codec: Codec = field(default_factory=Codec)
    children: list[Child] = field(default_factory=list)

    def __enter__(self) -> Fleet:
        self.producer = self.cluster.producer(linger_ms=0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self.children:
            how = "lived" if child.alive else f"ended with {child.process.returncode}"
            if child.alive:
                child.wake()
                child.kill()
            if kind is not None:
                sys.stderr.write(f"--- {child.name} {how}; the end of what it said\n{child.said()[-3000:]}\n")

    def coordinator(self, name: str, launch: Launch = PLAIN, /, **settings: object) -> Child:
        return self._start("coordinator", name, settings, launch)

    def worker(self, name: str, launch: Launch = PLAIN, /, **settings: object) -> Child:
        return self._start("worker", name, settings, launch)

    def _start(self, kind: str, name: str, settings: dict[str, object], launch: Launch) -> Child:
        given = {
            "kafka.bootstrap_servers": self.cluster.bootstrap_servers,
            "kafka.topic_prefix": self.cluster.prefix,
            "kafka.shards": self.cluster.shards,
            "state_dir": self.directory / "state",
            "worker.engine": TRIAL,
            **{f"kafka.{name}": value for name, value in self.cluster.properties.items()},
            **self.settings,
            **settings,
        }
        command = [*launch.program, kind, "--id", name]
        command += [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
        log = self.directory / f"{name}-{uuid.uuid4().hex[:6]}.log"
        environment = os.environ | {"DETENT_CONFIG": "", "PYTHONFAULTHANDLER": "1"} | dict(launch.environment)
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, preexec_fn=_die_with_us)
        child = Child(name, process, log)
        self.children.append(child)
        return child

    # Asking --------------------------------------------------------------------------------------------------------

    def send(self, job: str, action: CommandAction, command_id: str = "") -> str:
        """Returns the command's id."""
        command = Command(id=command_id or uuid.uuid4().hex[:12], job=job, by="fleet", action=action)
        partition = shard_of(job, self.cluster.shards)
        self.producer.produce(self.cluster.topic("commands"), self.codec.encode(command), job.encode(), partition)
        self.producer.flush(30)
        return command.id

    def submit(self, job: str, body: str) -> str:
        return self.send(job, Submit(specification=body))

    def ready(self, *children: Child) -> None:
        for child in children:
            until(lambda c=child: c.page("/readyz")[0] == 200 or self._check(c), f"{child.name} to be ready")  # type: ignore[misc]

    def _check(self, child: Child) -> bool:
        if not child.alive:
            raise RuntimeError(f"{child.name} has ended with {child.process.returncode}: {child.said()[-2000:]}")
        return False

    # Looking -------------------------------------------------------------------------------------------------------

    def look(self) -> Look:
        return Look(self.cluster, self.codec)


@dataclass(frozen=True, slots=True)
class Seen:
    """A record of the log, when this reader got it (seconds, monotonic)."""

    shard: int
    offset: int
    key: str
    event: Event | None
    at: float


class Look:
    """Follows the events of all shards as any reader would, from their beginning."""

    def __init__(self, cluster: Cluster, codec: Codec) -> None:
        self._codec = codec
        self._readers = [PartitionReader(cluster, "events", shard, wait_ms=10) for shard in range(cluster.shards)]
        self.seen: list[Seen] = []
        self.known: dict[str, Event] = {}

    def close(self) -> None:
        for reader in self._readers:
            reader.close()

    def __enter__(self) -> Look:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def follow(self, timeout_s: float = 0.002) -> list[Seen]:
        """What is new."""
        new = []
        for reader in self._readers:
            for message in reader.poll(timeout_s):
                key, value = (message.key() or b"").decode(), message.value()
                place = Place("events", reader.partition, offset_of(message))
                event = self._event(value, place)
                new.append(Seen(reader.partition, place.offset, key, event, time.monotonic()))
                if event is None:
                    self.known.pop(key, None)
                else:
                    self.known[key] = event
        self.seen += new
        return new

    def _event(self, value: bytes | None, place: Place) -> Event | None:
        """What can't be read is as good as gone."""
        try:
            return None if value is None else self._codec.decode(value, Event, place)
        except UnreadableRecord:
            return None

    def until(self, wanted: Callable[[], T], what: str, limit_s: float = 60.0) -> T:
        def look() -> T:
            self.follow()
            return wanted()

        try:
            return until(look, what, limit_s)
        except TimeoutError as error:
            error.add_note(f"known: {self.states()}")
            raise

    def state(self, key: str) -> str:
        event = self.known.get(key)
        return event.to if event else ""

    def states(self) -> dict[str, str]:
        return {key: e.to for key, e in self.known.items() if key.split("/")[0] in ("job", "task", "pipeline")}

    def until_job(self, job: str, *states: str, limit_s: float = 60.0) -> str:
        self.until(lambda: self.state(f"job/{job}") in states, f"{job} to be {' or '.join(states)}", limit_s)
        return self.state(f"job/{job}")

    def until_outcome(self, job: str, command_id: str, limit_s: float = 60.0) -> Outcome:
        key = f"command/{job}/{command_id}"
        self.until(lambda: key in self.known, f"an outcome of {command_id}", limit_s)
        state = self.known[key].state
        assert isinstance(state, Outcome)
        return state

    def leader(self, shard: int) -> str:
        event = self.known.get(f"leader/{shard}")
        return getattr(event.state, "coordinator", "") if event and event.to == "LEADING" else ""


@contextmanager
def a_fleet(cluster: Cluster, directory: Path, **settings: object) -> Iterator[Fleet]:
    with Fleet(cluster, directory, dict(settings)) as fleet:
        yield fleet
