"""Transitions: what one coordinator makes durable per second under load, and how long a command waits for its events.

    python -m bench.transitions --json

A coordinator process leads one shard. A client keeps so many commands under way (submit a job, cancel it, submit the
next…), and reads the committed events: a command's time runs from its sending to the moment its outcome can be read.
bare: the limit of the client library, a bare transactional producer of the same bytes, measured in the same run
(see bench.write). The same again with many jobs alive.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import harness, kafka, workload
from bench.write import bare, bare_batch, bare_producer
from events.cluster import Cluster
from events.codec import Codec
from events.keys import named
from events.reader import PartitionReader
from events.records import Cancel, Command, Submit

TASKS = 20
START_S = 60.0


def specification() -> str:
    """A job that waits: nobody is there to run it."""
    source = {"name": "in", "kind": "numbers", "parallelism": TASKS}
    env = {"cleanup_delay_ms": 86_400_000, "checkpoint": {"interval_ms": 1000}}
    return json.dumps({"env": env, "source": [source], "sink": [{"name": "out", "kind": "lines", "from": ["in"]}]})


@contextmanager
def coordinator(cluster: Cluster, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A coordinator process that leads the shard."""
    log = (directory / "coordinator.log").open("wb")
    command = [sys.executable, "-m", "detent", "coordinator", "--bootstrap-servers", cluster.bootstrap_servers]
    settings = {"kafka.shards": 1, "kafka.topic_prefix": cluster.prefix, "state_dir": directory / "state"}
    command += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    process = subprocess.Popen(command, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)
        log.close()


@dataclass
class Load:
    """A client that keeps commands under way."""

    cluster: Cluster
    codec: Codec
    reader: PartitionReader

    def __post_init__(self) -> None:
        self.producer = self.cluster.producer(linger_ms=1, queue_buffering_max_messages=1_000_000)
        self.topic = self.cluster.topic("commands")
        self.body = specification()
        self.number = 0

    def commands(self, count: int, *, submit_only: bool = False) -> list[tuple[bytes, bytes, bytes]]:
        """Key of the outcome, key of the command, the command."""
        made = []
        for _ in range(count):
            odd = self.number % 2 and not submit_only
            job = f"job-{self.number // (1 if submit_only else 2):08d}{'-live' if submit_only else ''}"
            name = f"{'cancel' if odd else 'submit'}-{uuid.uuid4().hex[:12]}"
            command = Command(id=name, job=job, by="bench", action=Cancel() if odd else Submit(specification=self.body))
            made.append((named("command", job, name).key, job.encode(), self.codec.encode(command)))
            self.number += 1
        return made

    def run(self, made: list[tuple[bytes, bytes, bytes]], window: int) -> tuple[float, int, list[float]]:
        """Send all, with so many under way at a time. Returns the seconds, the events seen, each command's time."""
        sent: dict[bytes, float] = {}
        times: list[float] = []
        events, position, started = 0, 0, time.perf_counter()
        deadline = time.monotonic() + 120
        while len(times) < len(made):
            while position < len(made) and len(sent) < window:
                outcome, key, value = made[position]
                self.producer.produce(self.topic, value, key, 0)
                sent[outcome] = time.perf_counter()
                position += 1
            self.producer.poll(0)
            messages = self.reader.poll(0.005, 10_000)
            events += len(messages)
            now = time.perf_counter()
            for message in messages:
                begun = sent.pop(message.key() or b"", None)
                if begun is not None:
                    times.append(now - begun)
            if time.monotonic() > deadline:
                raise SystemExit(f"{len(made) - len(times)} commands had no outcome within two minutes")
        return time.perf_counter() - started, events, times


def percentile(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(share * len(times)))] * 1000


def run(arguments: argparse.Namespace) -> harness.Result:
    codec = Codec()
    groups = list(workload.groups(arguments.events, 10_000))
    encoded = [[(event.entity.encode(), codec.encode(event)) for event in group] for group in groups]
    figures: dict[str, harness.Figure] = {"window": arguments.window, "tasks per job": TASKS}
    with kafka.fresh_cluster(arguments) as cluster, tempfile.TemporaryDirectory(prefix="detent-bench-") as directory:
        producer, topic = bare_producer(cluster), cluster.topic("dead-letters")
        limits = [max(bare(producer, topic, encoded), bare_batch(producer, topic, encoded)) for _ in range(3)]
        with coordinator(cluster, Path(directory)), PartitionReader(cluster, "events", 0, wait_ms=20) as reader:
            load = Load(cluster, codec, reader)
            load.run(load.commands(2000), arguments.window)  # warm
            rates = {1: 0.0, arguments.live: 0.0}
            tails = dict(rates)
            for live in rates:
                if live > 1:
                    harness.progress(f"making {live} live jobs")
                    load.run(load.commands(live, submit_only=True), arguments.window)
                seconds, events, times = [], [], list[float]()
                for _ in range(arguments.repetitions):
                    took, seen, each = load.run(load.commands(arguments.commands), arguments.window)
                    seconds.append(took)
                    events.append(seen)
                    times += each
                rates[live] = statistics.median(e / s for e, s in zip(events, seconds, strict=True))
                tails[live] = percentile(times, 0.99)
                figures |= {
                    f"transitions_per_s, {live} live jobs": rates[live],
                    f"commands_per_s, {live} live jobs": arguments.commands / statistics.median(seconds),
                    f"p50_ms, {live} live jobs": percentile(times, 0.5),
                    f"p99_ms, {live} live jobs": tails[live],
                }
    limit = statistics.median(limits)
    figures["bare_per_s"] = limit
    bars = [
        bar
        for live in rates
        for bar in (
            harness.Bar(f"transitions/bare, {live} live jobs", rates[live] / limit, ">=", 0.2),
            harness.Bar(f"p99 ms, {live} live jobs", tails[live], "<=", 250),
        )
    ]
    return harness.Result("transitions", figures, bars)


def main() -> int:
    options = harness.parser(__doc__ or "")
    kafka.add_options(options)
    options.add_argument("--events", type=int, default=100_000, help="events per measurement of the bare limit")
    options.add_argument("--commands", type=int, default=3000, help="commands per measurement")
    options.add_argument("--window", type=int, default=40, help="commands under way at a time")
    options.add_argument("--live", type=int, default=10_000, help="jobs alive in the second part")
    arguments = options.parse_args()
    return harness.report(run(arguments), as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
