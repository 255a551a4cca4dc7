"""What processes know of the embedded broker through its directory: its record, its locks, its last ports.

This is the passive half of the protocol in `events.embedded`: it reads, and it takes and tests locks. It must
never start or end a process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from events.broker_settings import Ports
from events.embedded_guard import GUARD_LOCK, RECORD, USERS_LOCK, process_identity, write_whole
from events.errors import DetentError

LAST_PORTS = "ports.json"
POLL_S = 0.02


@dataclass(eq=False)
class StateUnusable(DetentError):
    """The state directory can't be written, or is damaged."""

    directory: Path
    reason: str

    def message(self) -> str:
        return (
            f"the broker's directory {self.directory} can't be used: {self.reason}. "
            "Make it writable, or choose another state directory (--state-dir or DETENT_STATE)."
        )


@dataclass(eq=False)
class StateBusy(DetentError):
    """Another process takes too long over the same state directory."""

    directory: Path
    awaited: str
    waited_s: float

    def message(self) -> str:
        return (
            f"waited {self.waited_s:g} s for {self.awaited} in {self.directory}: another process is starting or "
            "stopping the broker there and takes too long. Look at broker.log there, then run detent broker stop "
            "and try again."
        )


class BrokerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's process, as its guard recorded it in `broker.json`."""

    bootstrap_servers: str
    port: int
    controller_port: int
    pid: int
    identity: str
    guard_pid: int
    guard_identity: str
    cluster_id: str
    overrides: dict[str, str]
    started_at: str
    log: str
    stopping: bool

    def is_alive(self) -> bool:
        return process_identity(self.pid) == self.identity

    def is_guarded(self) -> bool:
        return process_identity(self.guard_pid) == self.guard_identity


def broker_directory(state_dir: Path | str | None) -> Path:
    """`<state>/broker`; the state directory is `DETENT_STATE`, else `.detent` where we are, unless given."""
    return Path(state_dir or os.environ.get("DETENT_STATE") or ".detent").absolute() / "broker"


def read_record(directory: Path) -> BrokerStatus | None:
    """What `broker.json` says. Its process may have died since; one that can't be read is as good as none."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((directory / RECORD).read_bytes(), type=BrokerStatus)
    return None


def read_last_ports(directory: Path) -> Ports | None:
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((directory / LAST_PORTS).read_bytes(), type=Ports)
    return None


def keep_ports(directory: Path, broker: BrokerStatus) -> None:
    ports = Ports(broker.port, broker.controller_port)
    write_whole(directory / LAST_PORTS, msgspec.json.encode(ports).decode())


def is_guarded(directory: Path) -> bool:
    """Whether a guard runs there, and with it perhaps a broker."""
    with _opened(directory / GUARD_LOCK) as lock:
        return lock is not None and not _try_lock(lock, fcntl.LOCK_SH)


def is_used(directory: Path) -> bool:
    """Whether any process uses the broker there."""
    with _opened(directory / USERS_LOCK) as lock:
        # Exclusive can be had: nobody. Not even shared: the guard has it, as nobody is left.
        return lock is not None and not _try_lock(lock, fcntl.LOCK_EX) and _try_lock(lock, fcntl.LOCK_SH)


def take_lock(path: Path, kind: int, limit_s: float) -> int:
    """The file descriptor of a lock that is held until it is closed. Programs we start do not inherit it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        wait_for(lambda: _try_lock(lock, kind), limit_s, path.parent, f"the lock {path.name}")
    except BaseException:
        os.close(lock)
        raise
    return lock


@contextlib.contextmanager
def holding(path: Path, kind: int, limit_s: float) -> Iterator[None]:
    lock = take_lock(path, kind, limit_s)
    try:
        yield
    finally:
        os.close(lock)


def wait_for(happened: Callable[[], bool], limit_s: float, directory: Path, awaited: str) -> None:
    """Poll until it has happened; kernel locks and foreign processes offer no better way with a limit."""
    deadline = time.monotonic() + limit_s
    while not happened():
        if time.monotonic() > deadline:
            raise StateBusy(directory, awaited, limit_s)
        time.sleep(POLL_S)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    try:
        lock = os.open(path, os.O_RDWR)
    except OSError:
        yield None
        return
    try:
        yield lock
    finally:
        os.close(lock)


def _try_lock(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
