"""The embedded broker: a real single-node Kafka on loopback, for whoever has no `bootstrap.servers`.

It is shared by all processes that use one state directory, and ends with the last of them, however that one
ends. Nothing here may end a process that is not provably the broker of this directory.

How that holds. In `<state>/broker/` there are three lock files; the kernel frees a dead process's locks.

- `users.lock`: every user holds it *shared* for as long as it uses the broker. The guard, a tiny process that
  owns the JVM (`events.embedded_guard`), takes it *exclusively* once it can: then nobody is left.
- `guard.lock`: the guard holds it exclusively from before the JVM starts until after it has ended. When it
  is free, no broker runs (except an orphan, see below).
- `start.lock`: held exclusively by one user while it looks for a broker and, finding none, starts one.

A user takes `start.lock`, then its share of `users.lock`, and only then looks:

- The guard is ending since nobody was left: it still holds `users.lock`, so the user waits until all is over.
- The guard is ending for another reason (asked to stop, JVM dead): `guard.lock` is held and `broker.json`
  says so, or names a dead JVM. The user waits for `guard.lock`.
- `guard.lock` is held and `broker.json` names a living JVM: the user checks that it is what it wants, and
  that it answers. With its share of `users.lock` in hand, the broker can't leave for lack of users.
- `guard.lock` is free: the user starts a guard. Its own share keeps the guard from finding nobody there.
  Should the starter be killed at any point, the guard finds that out, or has another user by then; a second
  guard ends at once, since `guard.lock` is taken.

On Linux the kernel kills the JVM when its guard dies. Elsewhere a JVM whose guard was killed is an orphan;
the next user or `stop` ends it. It is known by pid *and* start time, never by name.

A forked child of a user (not one that ran another program) is a user as well, until it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from events.broker_launch import ADDRESS_TAKEN, BrokerFailed, Launch, launch_broker, log_tail
from events.broker_settings import HOST, PortTaken, check_overrides, choose_ports
from events.broker_state import (
    POLL_S,
    BrokerStatus,
    StateBusy,
    StateUnusable,
    broker_directory,
    holding,
    is_guarded,
    keep_ports,
    read_last_ports,
    read_record,
    take_lock,
    wait_for,
)
from events.embedded_guard import STOP_WAIT_S, USERS_LOCK
from events.errors import DetentError
from events.jars import fetch_jars
from events.java import CRASHED, find_java

START_LOCK = "start.lock"
DEFAULT_HEAP = "512m"
READY_LIMIT_S = 60.0
START_LIMIT_S = 180.0
# The guard gives the JVM STOP_WAIT_S, then kills it; the rest is for a busy machine.
STOP_LIMIT_S = STOP_WAIT_S + 10
LAUNCH_TRIES = 3


@dataclass(eq=False)
class BrokerDiffers(DetentError):
    """A broker runs in this state directory, but not with the settings that were asked for."""

    bootstrap_servers: str
    differences: tuple[tuple[str, str | None, str | None], ...]

    def message(self) -> str:
        listed = "; ".join(
            f"{name} was asked to be {asked or 'left to its default'} and is {running or 'left to its default'}"
            for name, asked, running in self.differences
        )
        return (
            f"the broker that already runs at {self.bootstrap_servers} has other settings than asked for: {listed}. "
            "Stop it first (detent broker stop), ask for the same settings, or use another state directory."
        )


def status(state_dir: Path | str | None = None) -> BrokerStatus | None:
    """The broker of this state directory, while its process lives. Changes nothing."""
    found = read_record(broker_directory(state_dir))
    return found if found is not None and found.is_alive() else None


def stop(state_dir: Path | str | None = None) -> bool:
    """Stop the broker for all its users and wait until it has ended. False when none ran."""
    directory = broker_directory(state_dir)

    def is_named() -> bool:  # a guard that has just started has no broker to name yet
        return not is_guarded(directory) or ((record := read_record(directory)) is not None and record.is_guarded())

    wait_for(is_named, STOP_LIMIT_S, directory, "a broker that is starting")
    found = read_record(directory)
    if found is None or not (found.is_alive() or found.is_guarded()):
        return False
    if found.is_guarded():
        _signal(found.guard_pid, signal.SIGTERM)
        wait_for(lambda: not is_guarded(directory), STOP_LIMIT_S, directory, "the end of the broker")
    else:
        _end_orphan(found, directory)
    return True


def answers(broker: BrokerStatus, timeout_s: float = 1.0) -> bool:
    """Whether the broker answers a request for its metadata: a TCP connection would prove nothing."""
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": broker.bootstrap_servers,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
        "log_level": 0,  # a broker that is not there yet is nothing to report
    }
    if not _is_listening(broker.port):  # cheaper than a client that waits
        return False
    try:
        metadata = AdminClient(settings).list_topics(timeout=timeout_s)
    except KafkaException:
        return False
    return bool(metadata.brokers) and metadata.cluster_id == broker.cluster_id


class EmbeddedBroker:
    """One process's use of the embedded broker. Not for several threads at once.

    `overrides` are server properties. With None, a broker that already runs is taken as it is; otherwise it
    must have been started with the same ones. `heap` counts only for the process that starts the broker.
    """

    def __init__(
        self,
        state_dir: Path | str | None = None,
        *,
        overrides: Mapping[str, str] | None = None,
        port: int | None = None,
        heap: str = DEFAULT_HEAP,
        ready_limit_s: float = READY_LIMIT_S,
    ) -> None:
        check_overrides(overrides or {})
        self.directory = broker_directory(state_dir)
        self._overrides = None if overrides is None else dict(overrides)
        self._port = port
        self._heap = heap
        self._ready_limit_s = ready_limit_s
        self._users: int | None = None
        self._status: BrokerStatus | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def status(self) -> BrokerStatus:
        """The broker as it was when we started or joined it."""
        if self._status is None:
            raise RuntimeError("the embedded broker is not started: call start(), or use it in a with block")
        return self._status

    @property
    def bootstrap_servers(self) -> str:
        return self.status.bootstrap_servers

    def start(self) -> Self:
        """Join the broker that runs, or start one. It answers when this returns. Harmless when started."""
        found = read_record(self.directory)
        if found is None or not found.is_alive():
            find_java()
            fetch_jars()  # here, since a download would hold start.lock for long
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with holding(self.directory / START_LOCK, fcntl.LOCK_EX, START_LIMIT_S):
                if self._users is None:
                    self._users = take_lock(self.directory / USERS_LOCK, fcntl.LOCK_SH, STOP_LIMIT_S)
                self._status = self._join_or_launch()
        except BaseException as error:
            self.stop()
            if isinstance(error, OSError):
                raise StateUnusable(self.directory, str(error)) from error
            raise
        return self

    def stop(self) -> None:
        """End our use. The broker ends soon after, when nobody else uses it."""
        self._status = None
        if self._users is not None:
            os.close(self._users)
            self._users = None

    def kill(self) -> None:
        """SIGKILL the broker's process, for tests of failure. Its data stays; `start()` brings it back."""
        if self.status.is_alive():
            _signal(self.status.pid, signal.SIGKILL)
        wait_for(lambda: not is_guarded(self.directory), STOP_LIMIT_S, self.directory, "the end of the guard")

    def _join_or_launch(self) -> BrokerStatus:
        for _ in range(LAUNCH_TRIES):
            running = self._find_running()
            if running is not None:
                self._check_settings(running)
                if self._becomes_ready(running):
                    return running
                continue  # it died just now
            launch = self._new_launch()
            launched = launch_broker(launch)
            if launched is None:
                continue  # the guard of a starter that was killed was quicker
            if self._becomes_ready(launched):
                keep_ports(self.directory, launched)
                return launched
            self._judge_death(launch)
        raise BrokerFailed(f"did not start in {LAUNCH_TRIES} tries", self.directory, log_tail(self.directory))

    def _find_running(self) -> BrokerStatus | None:
        """The broker that runs and is meant to go on, once a guard that comes or goes has done so."""
        deadline = time.monotonic() + STOP_LIMIT_S
        while is_guarded(self.directory):
            found = read_record(self.directory)
            if found is not None and not found.stopping and found.is_alive():
                return found
            if time.monotonic() > deadline:
                raise StateBusy(self.directory, "the guard to start or stop the broker", STOP_LIMIT_S)
            time.sleep(POLL_S)
        orphan = read_record(self.directory)
        if orphan is not None and orphan.is_alive():
            _end_orphan(orphan, self.directory)
        return None

    def _check_settings(self, running: BrokerStatus) -> None:
        differences: list[tuple[str, str | None, str | None]] = []
        if self._overrides is not None:
            names = sorted(self._overrides.keys() | running.overrides.keys())
            pairs = ((name, self._overrides.get(name), running.overrides.get(name)) for name in names)
            differences += [difference for difference in pairs if difference[1] != difference[2]]
        if self._port not in (None, running.port):
            differences.append(("the port", str(self._port), str(running.port)))
        if differences:
            raise BrokerDiffers(running.bootstrap_servers, tuple(differences))

    def _new_launch(self) -> Launch:
        return Launch(
            directory=self.directory,
            java=find_java(),
            jars=fetch_jars(),
            ports=choose_ports(read_last_ports(self.directory), self._port),
            overrides=self._overrides or {},
            heap=self._heap,
        )

    def _becomes_ready(self, broker: BrokerStatus) -> bool:
        """Wait until it answers. False when it died before."""
        deadline = time.monotonic() + self._ready_limit_s
        while broker.is_alive():
            if answers(broker):
                return True
            if time.monotonic() > deadline:
                what = f"did not answer within {self._ready_limit_s:g} s"
                raise BrokerFailed(what, self.directory, log_tail(self.directory))
            time.sleep(POLL_S)
        return False

    def _judge_death(self, launch: Launch) -> None:
        """A broker that died at its start may be worth another try; else say why it died."""
        wait_for(lambda: not is_guarded(self.directory), STOP_LIMIT_S, self.directory, "the end of the guard")
        reason = log_tail(self.directory)
        if ADDRESS_TAKEN in reason:
            if self._port is not None:
                raise PortTaken(self._port)
        elif CRASHED in reason and launch.class_archive.exists():
            launch.class_archive.unlink()
        else:
            raise BrokerFailed("ended while it was starting", self.directory, reason)


def _is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1.0):
        return True
    return False


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _end_orphan(orphan: BrokerStatus, directory: Path) -> None:
    """End a broker whose guard was killed; it is the recorded process, or it would not be alive to us."""
    _signal(orphan.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_WAIT_S
    while orphan.is_alive() and time.monotonic() < deadline:
        time.sleep(POLL_S)
    if orphan.is_alive():
        _signal(orphan.pid, signal.SIGKILL)
    wait_for(lambda: not orphan.is_alive(), STOP_LIMIT_S, directory, "the end of a broker without a guard")
