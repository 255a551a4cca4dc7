"""The API: how long lists and jobs take with ten thousand jobs, asked at a steady rate while a coordinator works, and
what that costs the coordinator.

    python -m bench.api --json

A coordinator process leads one shard, and `detent web` follows the log. It is asked by a process of its own
(bench.asking): lists of fifty at any place, and any job, in turn.

How long answers take is measured while jobs are submitted and canceled at a steady rate. What the asking costs the
coordinator is measured with a client that keeps it as busy as it can be (see bench.transitions), with and without the
asking, in turns. Answers take as long then as the machine has cores to spare, which two have not.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench import harness, kafka
from bench.fleet import Child, resident_mb, until
from bench.transitions import Load, coordinator, percentile
from events.cluster import Cluster
from events.codec import Codec
from events.reader import PartitionReader

TASKS = 2
BATCH = 200
TICK_S = 0.1


def specification() -> str:
    """A job that waits: nobody is there to run it."""
    source = {"name": "in", "kind": "numbers", "parallelism": TASKS}
    env = {"cleanup_delay_ms": 86_400_000, "checkpoint": {"interval_ms": 1000}}
    return json.dumps({"env": env, "source": [source], "sink": [{"name": "out", "kind": "lines", "from": ["in"]}]})


@contextmanager
def web(cluster: Cluster, directory: Path) -> Iterator[Child]:
    """`detent web` that has read the log."""
    log = directory / "web.log"
    settings = {"kafka.topic_prefix": cluster.prefix, "web.port": 0, "state_dir": directory / "state"}
    command = [sys.executable, "-m", "detent", "web", "--bootstrap-servers", cluster.bootstrap_servers]
    command += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file, env=os.environ | {"DETENT_CONFIG": ""})
    child = Child("web", process, log)
    try:
        until(lambda: child.page("/readyz")[0] == 200, "the web to have read the log")
        yield child
    finally:
        process.terminate()
        process.wait(30)


@dataclass
class Trial:
    """The load on the coordinator, with or without people who ask."""

    load: Load
    web: Child
    window: int
    rate: float
    seconds: float
    latency_seconds: float
    commands_per_s: float
    seed: int = 0
    answers_s: dict[str, list[float]] = field(default_factory=lambda: {"list": [], "job": []})
    late_s: list[float] = field(default_factory=list)  # of answers while the coordinator is as busy as it can be

    def answers(self) -> float:
        """Ask while jobs come and go at a steady rate; commands a second."""
        asker, began, sent = self._asker(self.latency_seconds), time.monotonic(), 0
        while not _has_more(asker):
            self.load.run(self.load.commands(int(self.commands_per_s * TICK_S)), self.window)
            sent += int(self.commands_per_s * TICK_S)
            time.sleep(max(0.0, began + sent / self.commands_per_s - time.monotonic()))
        took = time.monotonic() - began
        for kind, times in _said(asker).items():
            self.answers_s[kind] += times
        return sent / took

    def alone(self) -> float:
        """Transitions a second as fast as they come, with nobody asking."""
        end = time.monotonic() + self.seconds
        return self._work(lambda: time.monotonic() > end)

    def asked(self) -> float:
        """The same, for as long as requests come."""
        asker = self._asker(self.seconds)
        measured = self._work(lambda: _has_more(asker))
        self.late_s += [time for times in _said(asker).values() for time in times]
        return measured

    def _asker(self, seconds: float) -> subprocess.Popen[str]:
        """Begun."""
        self.seed += 1
        options = {"address": self.web.address, "rate": self.rate, "seconds": seconds, "seed": self.seed}
        command = [sys.executable, "-m", "bench.asking"]
        command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
        asker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert asker.stdout is not None
        asker.stdout.readline()
        return asker

    def _work(self, is_over: Callable[[], bool]) -> float:
        seconds, events = 0.0, 0
        while not is_over():
            took, seen, _ = self.load.run(self.load.commands(BATCH), self.window)
            seconds, events = seconds + took, events + seen
        return events / seconds


def _said(asker: subprocess.Popen[str]) -> dict[str, list[float]]:
    """The times of its answers, by what was asked."""
    said, _ = asker.communicate(timeout=120)
    if asker.returncode:
        raise SystemExit(f"asking failed with {asker.returncode}")
    times: dict[str, list[float]] = json.loads(said)
    return times


def _has_more(process: subprocess.Popen[str]) -> bool:
    """Whether it has said something that is not read yet, or has ended."""
    assert process.stdout is not None
    return bool(select.select([process.stdout.fileno()], [], [], 0)[0])


def run(arguments: argparse.Namespace) -> harness.Result:
    figures: dict[str, harness.Figure] = {"jobs": arguments.jobs, "requests_per_s": arguments.rate}
    with (
        kafka.fresh_cluster(arguments) as cluster,
        tempfile.TemporaryDirectory(prefix="detent-bench-") as directory,
        coordinator(cluster, Path(directory)),
        PartitionReader(cluster, "events", 0, wait_ms=20) as reader,
    ):
        load = Load(cluster, Codec(), reader)
        load.body = specification()
        harness.progress(f"making {arguments.jobs:,} jobs")
        load.run(load.commands(arguments.jobs, submit_only=True), arguments.window)
        with web(cluster, Path(directory)) as served:
            trial = Trial(load, served, arguments.window, arguments.rate, arguments.seconds,
                          arguments.latency_seconds, arguments.commands_per_s)  # fmt: skip
            figures["web_memory_mb"] = resident_mb(served.process.pid)
            figures["commands_per_s, steady"] = trial.answers()
            contenders = {"alone": trial.alone, "asked": trial.asked}
            measured = harness.alternate(contenders, warmups=1, repetitions=arguments.repetitions)
    for kind, times in trial.answers_s.items():
        figures |= {f"{kind}_requests": len(times), f"{kind}_p50_ms": percentile(times, 0.5)}
    for name, rate in harness.medians(measured).items():
        figures[f"transitions_per_s, {name}"] = rate
    figures["p99_ms of answers meanwhile"] = percentile(trial.late_s, 0.99)
    bars = [
        harness.Bar("list p99 ms", percentile(trial.answers_s["list"], 0.99), "<=", 50),
        harness.Bar("job p99 ms", percentile(trial.answers_s["job"], 0.99), "<=", 20),
        harness.Bar("transitions, asked/alone", harness.ratio(measured, "asked", "alone"), ">=", 0.9),
    ]
    return harness.Result("api", figures, bars)


def main() -> int:
    options = harness.parser(__doc__ or "")
    kafka.add_options(options)
    options.add_argument("--jobs", type=int, default=10_000, help="jobs there are")
    options.add_argument("--rate", type=float, default=200.0, help="requests a second")
    options.add_argument("--latency-seconds", type=float, default=20.0, help="how long answers are timed")
    options.add_argument("--commands-per-s", type=float, default=100.0, help="commands a second meanwhile")
    options.add_argument("--seconds", type=float, default=3.0, help="how long each measurement of throughput lasts")
    options.add_argument("--window", type=int, default=40, help="commands under way at a time")
    options.set_defaults(repetitions=11)
    arguments = options.parse_args()
    return harness.report(run(arguments), as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
