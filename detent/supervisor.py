"""Starts processes, keeps them going and stops them: what `detent up` and `detent demo` stand on.

A process that ends is started again, after a pause that doubles; one that ends again and again at once is given up,
with what it said last. It has no thread: whoever owns it calls `tend` now and then. Each process writes to a file of
its own, is in a session of its own (so that Ctrl-C reaches only its owner) and is tied to its owner's life.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from detent.tether import tied
from events.errors import DetentError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
STEADY_S = 30.0  # who has lived as long is forgiven its earlier ends
QUICK_ENDS = 5
STOP_S = 30.0
POLL_S = 0.05
TAIL = 15


class Program(NamedTuple):
    """What is to run under a name. Programs stop in the order of their rank, all of one rank together."""

    name: str
    command: Sequence[str]
    rank: int = 0


@dataclass(eq=False)
class GivenUp(DetentError):
    """A process that can't be kept going."""

    name: str
    code: int
    ends: int
    log: Path
    tail: str

    def message(self) -> str:
        return (
            f"{self.name} has ended {self.ends} times in a short time, the last time {how_it_ended(self.code)}, and "
            f"is given up. What it said last is in {self.log}:\n{self.tail}"
        )


class Change(NamedTuple):
    """Something that happened to a process: started, ready, ended, restarting (after a pause)."""

    name: str
    what: str
    detail: str = ""


def how_it_ended(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


@dataclass
class Supervised:
    """One program and its process."""

    program: Program
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    start_at: float = 0.0  # when it is to be started again
    quick_ends: int = 0
    restarts: int = 0
    is_ready: bool = False
    said_before: int = 0  # how long its file was when it was last started

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    def said(self) -> str:
        """What this process of it has said."""
        with self.log.open("rb") as file:
            file.seek(self.said_before)
            return file.read().decode(errors="replace")

    @property
    def address(self) -> str:
        """Of its health pages, once it has said so."""
        return self._named("address")

    @property
    def page(self) -> str:
        """Of what it shows to people, if it does."""
        return self._named("page")

    def _named(self, field: str) -> str:
        """From the line that it starts with, key=value or JSON."""
        found = re.search(rf'\b{field}(?:=|": ")([^\s",]+)', self.said())
        return found[1] if found else ""

    def answers(self) -> bool:
        """Whether it says that it is ready."""
        if not self.alive or not (address := self.address):
            return False
        try:
            with urllib.request.urlopen(f"http://{address}/readyz", timeout=1) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            return error.code == 401  # the page asks for a token first, of whoever it is
        except OSError:
            return False


@dataclass
class Supervisor:
    """Use as a context: whatever lives at the end is stopped."""

    programs: Sequence[Program]
    directory: Path  # of the processes' files
    tell: Callable[[Change], None]
    now: Callable[[], float] = time.monotonic
    running: dict[str, Supervised] = field(default_factory=dict)

    def __enter__(self) -> Supervisor:
        self.directory.mkdir(parents=True, exist_ok=True)
        for program in self.programs:
            it = self.running[program.name] = Supervised(program, self.directory / f"{program.name}.log")
            self._start(it)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def tend(self) -> None:
        """Look after all of them. Raises GivenUp."""
        for it in self.running.values():
            if it.alive:
                if not it.is_ready and it.answers():
                    it.is_ready = True
                    self.tell(Change(it.program.name, "ready", f"pid {it.pid}" + (f", {it.page}" if it.page else "")))
            elif it.process is not None:
                self._ended(it, it.process.returncode)
            elif self.now() >= it.start_at:
                it.restarts += 1
                self._start(it)

    def until_ready(self, limit_s: float = 120.0) -> None:
        """Tend until all are ready."""
        deadline = self.now() + limit_s
        while not all(it.is_ready for it in self.running.values()):
            self.tend()
            if self.now() > deadline:
                late = ", ".join(name for name, it in self.running.items() if not it.is_ready)
                raise DetentError(
                    f"{late} did not become ready within {limit_s:g} s; see the files in {self.directory}"
                )
            time.sleep(POLL_S)

    def kill(self, name: str) -> int:
        """SIGKILL one, as a machine that fails would. It is started again as any other that ends. Returns its pid."""
        it = self.running[name]
        pid = it.pid
        if it.process is not None and it.alive:
            it.process.kill()
            it.process.wait()
        return pid

    def stop(self, patience_s: float = STOP_S) -> None:
        """In good order; who does not stop in time is killed."""
        for rank in sorted({it.program.rank for it in self.running.values()}):
            going = [it.process for it in self.running.values() if it.program.rank == rank and it.process]
            for process in going:
                if process.poll() is None:
                    process.terminate()
            deadline = self.now() + patience_s
            for process in going:
                try:
                    process.wait(max(0.1, deadline - self.now()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self.running.clear()

    def _start(self, it: Supervised) -> None:
        it.is_ready = False
        it.started_at = self.now()
        with it.log.open("ab") as file:
            it.said_before = file.tell()
            it.process = subprocess.Popen(
                list(it.program.command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=tied(os.environ),
                start_new_session=True,
            )
        self.tell(Change(it.program.name, "started", f"pid {it.pid}"))

    def _ended(self, it: Supervised, code: int) -> None:
        lived_s = self.now() - it.started_at
        it.quick_ends = it.quick_ends + 1 if lived_s < STEADY_S else 1
        it.process, it.is_ready = None, False
        if it.quick_ends >= QUICK_ENDS:
            tail = "\n".join(f"    {line}" for line in it.said().splitlines()[-TAIL:])
            raise GivenUp(it.program.name, code, it.quick_ends, it.log, tail)
        pause_s = min(FIRST_PAUSE_S * 2 ** (it.quick_ends - 1), LONGEST_PAUSE_S)
        it.start_at = self.now() + pause_s
        detail = f"{how_it_ended(code)}; it is started again in {pause_s:g} s"
        self.tell(Change(it.program.name, "ended", detail))
