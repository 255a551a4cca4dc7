"""The trial engine: every row once, whenever its process is killed; its faults; and what it refuses."""

from __future__ import annotations

import json
import logging
import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from events import records as r
from tests.tiny_coordinator import TinyCoordinator
from tests.trial_worker import Line
from workers import happenings as h

ROOT = Path(__file__).parent.parent
LOG = logging.getLogger(__name__)
KILLS = 12  # then it may end in peace
ROUNDS = int(os.environ.get("DETENT_TRIAL_ROUNDS", "1"))


def a_specification(path: Path, sources: list[dict[str, Any]] | None = None, **sink: Any) -> str:
    sources = sources or [{"rows": 10}]
    steps = [
        {"name": f"in{i}", "kind": "numbers", "parallelism": options.pop("parallelism", 1), "options": options}
        for i, options in enumerate(map(dict, sources))
    ]
    out = {"name": "out", "kind": "lines", "from": [step["name"] for step in steps],
           "options": {"path": str(path), **sink}}  # fmt: skip
    return json.dumps({"source": steps, "sink": [out]})


def published(path: Path) -> Counter[str]:
    return Counter(line for file in path.glob("*") if file.is_file() for line in file.read_text().splitlines())


# Killed at any instant -----------------------------------------------------------------------------------------------


class Process:
    """A worker process at the other end of two pipes."""

    def __init__(self, directory: Path, orders: list[Line], die_before: int) -> None:
        command = [sys.executable, "-m", "tests.trial_worker", str(directory), "--die-before", str(die_before)]
        self._child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._stdin, self._stdout = self._child.stdin, self._child.stdout
        self.reports: queue.SimpleQueue[r.Report] = queue.SimpleQueue()
        first = self._stdout.readline()
        self.position = int(first or -1)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        for line in orders[self.position :] if first else ():
            self.send(line)

    def _read(self) -> None:
        for line in self._stdout:
            if line.endswith(b"\n"):  # half a line is a report that was never sent
                self.reports.put(msgspec.json.decode(line, type=r.Report))

    def send(self, line: Line) -> None:
        try:
            self._stdin.write(msgspec.json.encode(line) + b"\n")
            self._stdin.flush()
        except BrokenPipeError:
            LOG.debug("it is dead; the next one reads it from the orders")

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    def kill(self) -> None:
        self._child.kill()
        self._child.wait(30)
        self._reader.join()
        try:
            self._stdin.close()
        except BrokenPipeError:
            LOG.debug("it was dead")
        self._stdout.close()


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_every_row_is_published_once_whenever_the_process_is_killed(tmp_path: Path, round_: int) -> None:
    seed = int(os.environ.get("DETENT_TRIAL_SEED", random.SystemRandom().randint(0, 2**31)))
    LOG.warning("seed=%d", seed)
    rng, out, orders = random.Random(seed), tmp_path / "out", list[Line]()
    sources = [{"rows": 1400, "rate": 300, "parallelism": 2}, {"rows": 600, "rate": 300}]
    process: Process | None = None

    def give(order: r.Order | h.Withdrawn) -> None:
        withdrawn = (order.job, order.pipeline, order.task) if isinstance(order, h.Withdrawn) else None
        orders.append(Line(len(orders) + 1, order if isinstance(order, r.Order) else None, withdrawn))
        if process is not None:
            process.send(orders[-1])

    coordinator = TinyCoordinator(a_specification(out, sources, slow_publish_ms=3), 3, give, interval_s=0.03)
    coordinator.start()
    kills, deadline = 0, time.monotonic() + 120
    while not coordinator.done:
        die_before = rng.choice([0, rng.randint(1, 300)]) if kills < KILLS else 0
        process = Process(tmp_path, orders, die_before)
        killed_at = time.monotonic() + (rng.uniform(0.05, 0.7) if kills < KILLS else 60)
        while process.alive and time.monotonic() < killed_at and not coordinator.done:
            assert time.monotonic() < deadline, f"seed {seed}: {coordinator}"
            while not process.reports.empty():
                coordinator.hear(process.reports.get())
            coordinator.tend()
            time.sleep(0.002)
        process.kill()
        kills += 1
        dead, process = process, None
        while not dead.reports.empty():
            coordinator.hear(dead.reports.get())
    LOG.warning("kills=%d restarts=%d checkpoints=%d", kills, coordinator.restarts, len(coordinator.committed))
    expected = Counter([f"in0 {n}" for n in range(1400)] + [f"in1 {n}" for n in range(600)])
    assert published(out) == expected, f"seed {seed}"
    assert kills > 3, f"seed {seed}: it was over before it was killed often"
    assert list((out / ".staging").iterdir()) == [], f"seed {seed}"
