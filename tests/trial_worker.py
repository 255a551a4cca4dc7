"""A worker process without Kafka: its core, its ledger on disk and the trial engine, with orders on stdin and reports
on stdout, to be killed: `python -m tests.trial_worker`. It can be told to die by itself before the n-th step by which
anything becomes durable or visible.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from events import records as r
from tests.worker_bench import addressed
from workers import files, lines
from workers import happenings as h
from workers import store as stores
from workers.decider import Decider
from workers.engine import Surroundings
from workers.inbox import Inbox, Ordered
from workers.ledger import Ledger
from workers.trial import TrialEngine


class Line(msgspec.Struct, frozen=True):
    """An order as it comes, with the position after it."""

    position: int
    order: r.Order | None = None
    withdrawn: tuple[str, int, int] | None = None


class Death:
    """Counts the steps, and ends the process before one of them."""

    def __init__(self, before: int) -> None:
        self._left, self._lock = before, threading.Lock()
        for owner, name in [(os, "fsync"), (os, "close"), (Path, "rename"), (Path, "replace"), (Path, "unlink"),
                            (stores.LedgerStore, "_write"), (files, "sync_directory"), (lines, "sync_directory"),
                            (lines, "write_durably")]:  # fmt: skip
            setattr(owner, name, self._before(getattr(owner, name)))

    def _before(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            self.step()
            return step(*args, **named)

        return counted

    def step(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def read_orders(inbox: Inbox) -> None:
    for line in sys.stdin.buffer:
        it = msgspec.json.decode(line, type=Line)
        inbox.hand_over([Ordered(it.order or (h.Withdrawn(*it.withdrawn) if it.withdrawn else None), it.position)])
    os.kill(os.getpid(), signal.SIGKILL)  # whoever started it has gone


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--die-before", type=int, default=0)
    chosen = parser.parse_args()
    path = chosen.directory / "ledger"
    store, ledger = stores.load(path) if path.exists() else (stores.create(path, "w1", "pipe", 0, 0), Ledger())
    death = Death(chosen.die_before)
    inbox = Inbox()

    def send(report: r.Report) -> None:
        death.step()
        os.write(1, msgspec.json.encode(report) + b"\n")

    os.write(1, b"%d\n" % store.position)
    engine = TrialEngine(Surroundings("w1", "i", chosen.directory, now_ms))
    settings = h.Settings(worker="w1", slots=16, repeat_ms=200, repeat_cap_ms=1000, stop_patience_ms=2000)
    decider = Decider(store, ledger, settings, engine, now_ms, send, inbox.say)
    decider.give(h.Restarted())
    threading.Thread(target=read_orders, args=(inbox,), daemon=True).start()
    while True:
        decider.answered(now_ms())
        decider.give(h.Tick())
        for item in inbox.take(0.05, 100):
            if not isinstance(item, Ordered):
                decider.give(item)
            elif item.it is not None:
                decider.give(addressed(item.it, decider.ledger, settings), item.position)


if __name__ == "__main__":
    main()
