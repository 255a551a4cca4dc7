"""The API: how long lists and jobs take with ten thousand jobs, asked at a steady rate while a coordinator works, and
what that costs the coordinator.

    python -m bench.api --json

A coordinator process leads one shard; a client keeps commands under way (see bench.transitions), so that it works as
much as it can. `detent web` follows the log, and is asked by a process of its own (bench.asking): lists of fifty at any
place, and any job, in turn. The coordinator's throughput is measured with and without the asking, in turns.
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
from bench.fleet import Child, until
from bench.transitions import Load, coordinator, percentile
from events.cluster import Cluster
from events.codec import Codec
from events.reader import PartitionReader

TASKS = 2
BATCH = 200


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
    seed: int = 0
    answers_s: dict[str, list[float]] = field(default_factory=lambda: {"list": [], "job": []})

    def alone(self) -> float:
        """Transitions a second, with nobody asking."""
        end = time.monotonic() + self.seconds
        return self._work(lambda: time.monotonic() > end)

    def asked(self) -> float:
        """The same, for as long as requests come."""
        self.seed += 1
        options = {"address": self.web.address, "rate": self.rate, "seconds": self.seconds, "seed": self.seed}
        command = [sys.executable, "-m", "bench.asking"]
        command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
        asker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert asker.stdout is not None
        asker.stdout.readline()  # it begins
        measured = self._work(lambda: asker.poll() is not None or _has_more(asker))
        said, _ = asker.communicate(timeout=60)
        if asker.returncode:
            raise SystemExit(f"asking failed with {asker.returncode}")
        for kind, times in json.loads(said).items():
            self.answers_s[kind] += times
        return measured

    def _work(self, is_over: Callable[[], bool]) -> float:
        seconds, events = 0.0, 0
        while not is_over():
            took, seen, _ = self.load.run(self.load.commands(BATCH), self.window)
            seconds, events = seconds + took, events + seen
        return events / seconds


def _has_more(process: subprocess.Popen[str]) -> bool:
    """Whether it has said something that is not read yet."""
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
            trial = Trial(load, served, arguments.window, arguments.rate, arguments.seconds)
            contenders = {"alone": trial.alone, "asked": trial.asked}
            measured = harness.alternate(contenders, warmups=1, repetitions=arguments.repetitions)
            figures["web_memory_mb"] = memory_mb(served.process.pid)
    for name, rate in harness.medians(measured).items():
        figures[f"transitions_per_s, {name}"] = rate
    for kind, times in trial.answers_s.items():
        figures |= {f"{kind}_requests": len(times), f"{kind}_p50_ms": percentile(times, 0.5)}
    bars = [
        harness.Bar("list p99 ms", percentile(trial.answers_s["list"], 0.99), "<=", 50),
        harness.Bar("job p99 ms", percentile(trial.answers_s["job"], 0.99), "<=", 20),
        harness.Bar("transitions, asked/alone", harness.ratio(measured, "asked", "alone"), ">=", 0.9),
    ]
    return harness.Result("api", figures, bars)


def memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1000 for line in status.splitlines() if line.startswith("VmRSS:"))


def main() -> int:
    options = harness.parser(__doc__ or "")
    kafka.add_options(options)
    options.add_argument("--jobs", type=int, default=10_000, help="jobs there are")
    options.add_argument("--rate", type=float, default=200.0, help="requests a second")
    options.add_argument("--seconds", type=float, default=8.0, help="how long each measurement lasts")
    options.add_argument("--window", type=int, default=60, help="commands under way at a time")
    arguments = options.parse_args()
    return harness.report(run(arguments), as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
