"""Failover: how long nothing moves when the leading coordinator dies, freezes or is stopped.

    python -m bench.failover --kills 20 --json

Two coordinators and two workers as processes, jobs in flight that checkpoint all the time. From the kill to the next
transition that the new leader wrote, as any reader of the log sees it. After each kill the dead one is started again
and stands by. At the end the log is gone through: no transition was lost or doubled, and no running task was touched.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from bench import harness, kafka
from bench.fleet import Child, Fleet, Look, numbers
from events.records import Submit

JOBS = 5
PHASES = ("detect", "fence", "replay", "first_commit")


class Trial:
    """Two coordinators, two workers, jobs that never end."""

    def __init__(self, fleet: Fleet, look: Look, detection_ms: int) -> None:
        self.fleet, self.look, self.detection_ms = fleet, look, detection_ms
        self.coordinators = {name: fleet.coordinator(name) for name in ("c0", "c1")}
        self.workers = [fleet.worker(f"w{i}") for i in range(2)]
        fleet.ready(*self.coordinators.values())
        for number in range(JOBS):
            env = {"checkpoint": {"interval_ms": 100, "timeout_ms": 20_000}}
            body = numbers(fleet.directory / "out" / str(number), -1, 2, rate=500, env=env)
            fleet.send(f"job-{number}", Submit(specification=body))
        for number in range(JOBS):
            look.until_job(f"job-{number}", "RUNNING")
        self.stable()

    def stable(self) -> Child:
        """Wait until somebody leads, work goes on, and the other one stands by. Returns who leads."""
        look = self.look
        look.until(lambda: look.leader(0) in self.coordinators, "a leader")
        other = next(c for name, c in self.coordinators.items() if name != look.leader(0))
        self.fleet.ready(*self.coordinators.values())
        look.until(lambda: '"0": "stands by"' in other.page("/readyz")[1], f"{other.name} to stand by")
        before = len(look.seen)
        look.until(lambda: len(self.moves(before)) >= 2 * JOBS, "jobs that go on")
        return self.coordinators[look.leader(0)]

    def moves(self, since: int) -> list[object]:
        return [s for s in self.look.seen[since:] if s.key.startswith("checkpoint/") and s.event is not None]

    def take(self, strike: Callable[[Child], None]) -> tuple[float, dict[str, float]]:
        """Strike the leader; the time to the first transition of the next, and what that one says it took, in ms."""
        leader = self.stable()
        epoch = self.look.known["leader/0"].epoch
        began = time.monotonic()
        strike(leader)
        seen = self.look.until(lambda: [s for s in self.look.seen if s.event is not None and s.event.epoch > epoch],
                               "a transition of the next leader")[0]  # fmt: skip
        took_ms = (seen.at - began) * 1000
        return took_ms, self.says(self.coordinators[self.look.leader(0)])

    @staticmethod
    def says(leader: Child) -> dict[str, float]:
        """The last takeover, from its metrics."""
        text = leader.page("/metrics")[1]
        found = re.findall(r'detent_last_takeover_seconds\{phase="(\w+)",shard="0"\} (\S+)', text)
        return {phase: float(seconds) * 1000 for phase, seconds in found}

    # What strikes --------------------------------------------------------------------------------------------------

    def kill(self, leader: Child) -> None:
        leader.process.kill()

    def freeze(self, leader: Child) -> None:
        leader.freeze()

    def stop(self, leader: Child) -> None:
        leader.process.terminate()

    def again(self, name: str) -> None:
        """The one that was struck goes for good and another is started in its place."""
        child = self.coordinators[name]
        child.wake()
        child.kill()
        self.coordinators[name] = self.fleet.coordinator(name)

    def findings(self) -> list[str]:
        """What the log says of all this."""
        found, last, starts = [], dict[str, str](), Counter[tuple[str, int]]()
        for seen in self.look.seen:
            if seen.event is None:
                last.pop(seen.key, None)
                continue
            if seen.event.from_ != last.get(seen.key, ""):
                found.append(f"{seen.key} at {seen.offset} left {seen.event.from_}, it was {last.get(seen.key, '')}")
            last[seen.key] = seen.event.to
            if seen.event.transition == "placed":
                starts[seen.key, seen.event.attempt] += 1
        touched = [key for key, attempt in starts if attempt > 1]
        twice = [key for key, times in starts.items() if times > 1]
        return found + [f"{k} was started anew" for k in touched] + [f"{k} was placed twice" for k in twice]


Accounts = list[dict[str, float]]


def measure(trial: Trial, name: str, strike: Callable[[Child], None], times: int) -> tuple[list[float], Accounts]:
    """What was seen from outside, and each new leader's own account of it by phases; in ms."""
    seen, told = [], []
    for number in range(times):
        harness.progress(f"{name}: {number + 1} of {times}")
        struck = trial.look.leader(0)
        took_ms, phases = trial.take(strike)
        seen.append(took_ms)
        told.append(phases)
        trial.again(struck)
    harness.progress("")
    return seen, told


def run(arguments: argparse.Namespace) -> harness.Result:
    detection = arguments.detection_ms
    figures: dict[str, harness.Figure] = {"detection_ms": detection, "kills": arguments.kills}
    with kafka.fresh_cluster(arguments) as cluster, tempfile.TemporaryDirectory(prefix="detent-bench-") as directory:
        settings: dict[str, object] = {"coordinator.detection_ms": detection, "worker.slots": 2 * JOBS}
        with Fleet(cluster, Path(directory), settings) as fleet, fleet.look() as look:
            trial = Trial(fleet, look, detection)
            measured = {
                name: measure(trial, name, strike, arguments.kills)
                for name, strike in (("killed", trial.kill), ("frozen", trial.freeze), ("stopped", trial.stop))
            }
            trial.stable()
            findings = trial.findings()
    for name, (seen, told) in measured.items():
        off = [abs(took_ms - sum(phases.values())) for took_ms, phases in zip(seen, told, strict=True)]
        figures |= {f"{name}: median_ms": statistics.median(seen), f"{name}: worst_ms": max(seen)}
        figures |= {f"{name}: {p}, median_ms": statistics.median(each.get(p, 0.0) for each in told) for p in PHASES}
        figures[f"{name}: own account off by, median_ms"] = statistics.median(off)
    figures["transitions seen"] = len(look.seen)
    figures["findings"] = "; ".join(findings[:5]) or "none"
    median = {name: statistics.median(seen) for name, (seen, _) in measured.items()}
    bars = [
        harness.Bar("killed: median ms", median["killed"], "<=", 150),
        harness.Bar("killed: worst ms", max(measured["killed"][0]), "<=", detection + 500),
        harness.Bar("frozen: median ms", median["frozen"], "<=", detection + 150),
        harness.Bar("stopped: median ms", median["stopped"], "<=", 100),
        harness.Bar("lost, doubled or touched", len(findings), "<=", 0),
    ]
    return harness.Result("failover", figures, bars)


def main() -> int:
    options = harness.parser(__doc__ or "")
    kafka.add_options(options)
    options.add_argument("--kills", type=int, default=20, help="of each kind")
    options.add_argument("--detection-ms", type=int, default=500, help="silence before a standby takes over")
    arguments = options.parse_args()
    return harness.report(run(arguments), as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
