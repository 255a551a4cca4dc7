"""The guard of the embedded broker: a tiny process that owns the broker's JVM and ends with it.

It starts the JVM as its child and waits for the first of three things: nobody uses the broker any more (the
exclusive lock on `users.lock` can be had), SIGTERM, or the JVM's end. Then it sees the JVM off and ends. The
kernel frees the guard's locks whatever kills it, and on Linux kills the JVM with it.

`events.embedded` starts it and describes the protocol. This file runs as a script of its own, isolated from
site-packages: it must never import anything beyond the standard library, never use a thread (the kernel
ties the JVM's life to the thread that made it), and never let the JVM outlive it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

USERS_LOCK = "users.lock"
GUARD_LOCK = "guard.lock"
RECORD = "broker.json"
LOG = "broker.log"
PROPERTIES = "server.properties"

POLL_S = 0.2
STOP_WAIT_S = 20.0
PR_SET_PDEATHSIG = 1
ASKED_TO_STOP = "asked to stop the broker"


def process_identity(pid: int) -> str | None:
    """What tells this process from a later one with the same pid; None when it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _identity_from_ps(pid)
    # The name, in parentheses, may hold anything: count from its end. Then: state, …, start in ticks since boot.
    fields = stat.rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X"):  # ended; its parent just has not looked yet
        return None
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return f"{boot}/{fields[19].decode()}"


def _identity_from_ps(pid: int) -> str | None:
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    shown = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
    ).stdout
    state, _, started = shown.strip().partition(" ")
    return None if not state or state.startswith("Z") else started.strip()


def write_whole(path: Path, content: str) -> None:
    """Replace a file so that a reader sees the old content or the new, never a part."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(content, "utf-8")
    part.replace(path)


class Guard:
    """One broker process and what becomes of it. Single-threaded; lives as long as the process."""

    def __init__(self, launch: dict[str, Any]) -> None:
        self._launch = launch
        self._directory = Path(launch["directory"])
        self._stop_asked = False
        self._wake, wake_write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        # The starter's mask and ignored signals are inherited: start from a known state.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_stop)

    def run(self) -> None:
        if not self._take_guard_lock():
            report({"already_guarded": True})
            return
        log = self._open_log()
        users = os.open(self._directory / USERS_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            for name, content in self._launch["files"].items():
                write_whole(self._directory / name, content)
            self._run_first(log)
            jvm = self._start(self._launch["command"], log)
        except OSError as error:
            report({"error": str(error)})
            return
        try:
            report({"record": self._write_record(jvm, stopping=False)})
            os.dup2(log, 1)  # the starter's pipe is closed now, and what is said goes to the log
            os.dup2(log, 2)
            say(self._wait_for_a_reason(jvm, users))
        finally:
            self._see_off(jvm)

    def _ask_to_stop(self, *_: object) -> None:
        self._stop_asked = True

    def _take_guard_lock(self) -> bool:
        """Kept to the end of the process. A look at the lock by others may hold it for a moment: try again."""
        lock = os.open(self._directory / GUARD_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        for _ in range(20):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            time.sleep(0.05)
        return False

    def _open_log(self) -> int:
        """A new log for every run, with the last one beside it: it can't grow for ever."""
        log = self._directory / LOG
        with contextlib.suppress(FileNotFoundError):
            log.replace(log.with_name(f"{LOG}.1"))
        return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def _run_first(self, log: int) -> None:
        """Run what must be done before the broker starts, until its output tells that it is done, or for too long."""
        first = self._launch["first"]
        if first is None:
            return
        done, idle = re.compile(first["done"].encode(), re.DOTALL), first["idle"].encode()
        deadline = time.monotonic() + first["limit_s"]
        said = b""
        with self._start(first["command"], subprocess.PIPE) as process:
            assert process.stdout is not None
            while not done.search(said) and said.count(idle) < first["idle_limit"]:
                readable, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
                chunk = os.read(process.stdout.fileno(), 65536) if readable else b""
                if not chunk:
                    os.write(log, said)  # the broker may start all the same, and if not, this may say why
                    break
                said += chunk
            process.kill()

    def _start(self, command: list[str], output: int) -> subprocess.Popen[bytes]:
        guard = os.getpid()
        libc = ctypes.CDLL(None) if sys.platform == "linux" else None

        def die_with_the_guard() -> None:
            if libc is not None:
                libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != guard:  # it died before the line above
                    os._exit(1)

        return subprocess.Popen(
            command,
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_the_guard,
        )

    def _write_record(self, jvm: subprocess.Popen[bytes], *, stopping: bool) -> dict[str, Any]:
        record = {
            **self._launch["record"],
            "pid": jvm.pid,
            "identity": process_identity(jvm.pid) or "",
            "guard_pid": os.getpid(),
            "guard_identity": process_identity(os.getpid()) or "",
            "stopping": stopping,
        }
        write_whole(self._directory / RECORD, json.dumps(record, indent=1))
        return record

    def _wait_for_a_reason(self, jvm: subprocess.Popen[bytes], users: int) -> str:
        while True:
            select.select([self._wake], [], [], POLL_S)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
            if jvm.poll() is not None:
                return f"the broker (pid {jvm.pid}) ended by itself or was killed, with code {jvm.returncode}"
            if self._stop_asked:
                return ASKED_TO_STOP
            # Held from here to the end, so that a new user waits until everything is gone.
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return "nobody uses the broker any more: stopping it"

    def _see_off(self, jvm: subprocess.Popen[bytes]) -> None:
        # The directory may be gone or the disk full: the JVM is ended all the same.
        with contextlib.suppress(OSError):
            self._write_record(jvm, stopping=True)
        jvm.terminate()
        try:
            jvm.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            say(f"the broker did not stop within {STOP_WAIT_S:g} s: killing it")
            jvm.kill()
            jvm.wait()
        if jvm.returncode in (0, 128 + signal.SIGTERM):
            self._keep_archive()
        with contextlib.suppress(OSError):
            (self._directory / RECORD).unlink()

    def _keep_archive(self) -> None:
        """The JVM may have written its class archive at its orderly end: whole, so it may be used."""
        part, kept = self._launch["archive"]
        with contextlib.suppress(OSError):
            Path(part).replace(kept)


def report(answer: dict[str, Any]) -> None:
    """The one line the starter reads."""
    os.write(1, json.dumps(answer).encode() + b"\n")


def say(text: str) -> None:
    """A line in the broker's log; a full disk must not stop the guard."""
    with contextlib.suppress(OSError):
        os.write(2, f"{time.strftime('%Y-%m-%d %H:%M:%S')} [guard {os.getpid()}] {text}\n".encode())


def main() -> None:
    launch = json.load(sys.stdin)
    # The starter waits for this process only, and init for the guard: no starter is left with a zombie.
    if os.fork() == 0:
        Guard(launch).run()


if __name__ == "__main__":
    main()
