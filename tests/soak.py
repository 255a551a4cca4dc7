"""python -m tests.soak [--minutes 30] [--streaming-minutes 0] [--seed N] [--json] [--keep]

A fleet of real processes (the embedded broker, three coordinators, three workers with the trial engine and one with
Spark) with jobs all the while, and faults by chance: killed, frozen, stopped, cut off, flooded, refused by a sink. Now
and then everything is healed, and all that should go on must. At the end every job must have ended as it should, and
the oracle judges the whole log and all output; pyarrow reads what Spark has written. The exit code is not 0 when
anything was wrong; then the directory with the logs is kept.

Afterwards, if asked for, a streaming job on Spark runs in a fleet of its own without faults (tests/soak_streaming.py).

A seed gives the same faults and jobs in the same order. What they hit depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.fleet import Fleet, Look
from events.errors import DetentError
from events.records import Cancel, CommandAction, Stop, TakeSavepoint
from events.topics import ensure_topics
from tests import soak_spark
from tests.logs import own_cluster
from tests.oracle import Onlooker, Recorder
from tests.oracle.rules import TERMINAL
from tests.proxy import broker_behind
from tests.scenes import SETTINGS, Scene, numbers
from tests.soak_faults import Faults, Place
from tests.soak_spark import SparkJobs
from tests.soak_streaming import stream, table

SHARDS = 2
MOST_JOBS = 12
FAULT_EVERY_S, JOB_EVERY_S, SETTLE_EVERY_S, TELL_EVERY_S = 2.5, 1.5, 45.0, 10.0
SETTLE_LIMIT_S, END_LIMIT_S = 120.0, 300.0
# Leases that a frozen process outlives at times, and a busy one does not.
SOAKED: dict[str, object] = {
    "worker.lease_ms": 4000, "coordinator.lease_ms": 6000, "coordinator.detection_ms": 1000
}  # fmt: skip
COMMANDS: list[tuple[CommandAction, str]] = [
    (Stop(), "FINISHED"), (Cancel(), "CANCELED"), (TakeSavepoint(name="end", stop=True), "SAVEPOINTED")
]  # fmt: skip
ENV = {"cleanup_delay_ms": 30_000, "restart": {"retries": 1000, "backoff_ms": 50}, "labels": soak_spark.LABELS["trial"]}


class Job:
    """A job that was submitted: how it may end, and what it will be told."""

    def __init__(self, name: str, ends: set[str], command: CommandAction | None, told_at: float) -> None:
        self.name, self.ends, self.command, self.told_at = name, ends, command, told_at
        self.told = False
        self.state = ""
        self.committed = 0


class Soak:
    def __init__(self, scene: Scene, faults: Faults, spark: SparkJobs, chance: random.Random) -> None:
        self.scene, self.faults, self.spark, self.chance = scene, faults, spark, chance
        self.jobs: dict[str, Job] = {}
        self.ended: Counter[str] = Counter()
        self.violations: list[str] = []
        self.events = self.takeovers = 0
        self._began = time.monotonic()

    # The run ---------------------------------------------------------------------------------------------------------

    def run(self, minutes: float) -> None:
        now = self._began
        end, fault_at, job_at, settle_at, tell_at = now + 60 * minutes, now + 3, now, now + SETTLE_EVERY_S, now
        while (now := time.monotonic()) < end:
            self.look()
            self.faults.undo_due()
            self._check_processes()
            if now >= job_at:
                job_at = now + self.chance.expovariate(1 / JOB_EVERY_S)
                self._submit()
            self._tell_jobs()
            if now >= fault_at:
                fault_at = now + self.chance.expovariate(1 / FAULT_EVERY_S)
                if what := self.faults.strike():
                    self.say(what, quiet=True)
            if now >= settle_at:
                self.settle()
                settle_at = time.monotonic() + SETTLE_EVERY_S
            if now >= tell_at:
                tell_at = now + TELL_EVERY_S
                self.say(self._how_it_goes())
            time.sleep(0.01)
        self.settle()

    def look(self) -> None:
        """Take what is new on the log. Only the outcomes of commands are kept of it: a long run is a long log."""
        look, new = self.scene.look, self.scene.look.follow()
        for what in self.spark.judge():
            self.wrong(what)
        if not new:
            return
        del look.seen[-len(new) :]
        look.seen += [seen for seen in new if seen.key.startswith("command/")]
        self.events += len(new)
        for seen in new:
            self.spark.saw(seen)
            kind, _, rest = seen.key.partition("/")
            event = seen.event
            if event is None:
                continue
            self.takeovers += kind == "leader" and event.to == "LEADING"
            job = self.jobs.get(rest.split("/")[0])
            if job is None:
                continue
            if kind == "job":
                job.state = event.to
            elif kind == "checkpoint" and event.to == "COMMITTED":
                job.committed += 1
            elif kind == "savepoint" and event.to == "FAILED":  # it took too long: the job goes on, and is asked again
                job.told = False
        for job in [job for job in self.jobs.values() if job.state in TERMINAL]:
            del self.jobs[job.name]
            self.ended[job.state] += 1
            if job.state not in job.ends:
                self.wrong(f"{job.name} ended {job.state}, it should have been {' or '.join(sorted(job.ends))}")

    def settle(self) -> None:
        """Everything is healed: all processes become ready, and every job that runs commits something new."""
        self.faults.undo_all()
        places = self.faults.places.values()
        self.until(lambda: all(self.faults.child(p).page("/readyz")[0] == 200 for p in places), "all to be ready")
        before = {job.name: job.committed for job in self.jobs.values()}

        def stuck() -> list[str]:
            return [name for name, was in before.items() if name in self.jobs and self.jobs[name].committed <= was]

        self.until(lambda: not stuck(), "all jobs to go on", lambda: f"stuck: {self._states(stuck())}")
        for output in self.spark.open.values():
            for what in output.twice():
                self.wrong(f"{output.job}: {what}")

    def finish(self) -> None:
        """All jobs end; then the oracle."""
        for job in self.jobs.values():
            job.told_at = 0.0
        self.until(
            lambda: not self.jobs or self._tell_jobs(),
            "all jobs to end",
            lambda: self._states(list(self.jobs)),
            END_LIMIT_S,
        )
        gone = "all jobs on Spark to be cleaned up"
        self.until(lambda: not self.spark.open, gone, lambda: self._states(list(self.spark.open)))
        self.say("the oracle looks at it")
        self.violations += map(str, self.scene.verdict())

    def until(
        self,
        wanted: Callable[[], object],
        what: str,
        more: Callable[[], str] = str,
        limit_s: float = SETTLE_LIMIT_S,
    ) -> None:
        deadline = time.monotonic() + limit_s
        while not wanted():
            self.look()
            self._check_processes()
            if time.monotonic() > deadline:
                self.wrong(f"waited {limit_s:g} s for {what} {more()}")
                return
            time.sleep(0.05)

    # Jobs ------------------------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        if len(self.jobs) >= MOST_JOBS:
            return
        chance, name = self.chance, f"job-{len(self.jobs) + sum(self.ended.values())}"
        env = ENV | {"checkpoint": {"interval_ms": chance.choice([100, 300, 1000]), "timeout_ms": 10_000}}
        rows, rate = chance.randint(1, 400), float(chance.choice([20, 50, 100]))
        kind = chance.choice(
            ["bounded", "several", "faulty", "fails", "endless", "endless", "endless", "spark", "spark"]
        )
        sources, sink = [numbers("in", rows, rate=rate)], dict[str, Any]()
        ends, command = {"FINISHED"}, None  # type: tuple[set[str], CommandAction | None]
        if kind == "several":
            sources = [numbers("few", 5), numbers("many", rows, parallelism=2, rate=rate)]
        elif kind == "faulty":
            sources = [numbers("in", rows, rate=rate, fail_after_rows=rows // 2)]
            sink = {"refuse_publish_times": 2, "staging_stuck_times": 1}
        elif kind == "fails":
            # Always: where the word of a failure is lost with its worker, the task is tried once more.
            failing = {"fail_after_rows": rows, "fail_lasting": True, "fail_times": 1000}
            sources, ends = [numbers("in", 500, rate=rate, **failing)], {"FAILED"}
        bounded = kind != "endless" and not (kind == "spark" and chance.random() < 0.6)
        if not bounded:
            sources = [numbers("in", rate=rate, parallelism=chance.choice([1, 2]))]
            command, end = chance.choice(COMMANDS)
            ends = {end}
        told_at = time.monotonic() + chance.uniform(2, 40)
        if kind != "spark":
            self.scene.submit(name, *sources, sink=sink, **env)
        elif len(self.spark.open) < soak_spark.MOST:
            self.spark.submit(name, chance, bounded=bounded)
        else:
            return
        self.jobs[name] = Job(name, ends, command, told_at)

    def _tell_jobs(self) -> None:
        now = time.monotonic()
        for job in self.jobs.values():
            if job.command is not None and not job.told and now >= job.told_at and job.state == "RUNNING":
                job.told = True
                self.scene.sent.append((job.name, self.scene.fleet.send(job.name, job.command)))

    # Telling ---------------------------------------------------------------------------------------------------------

    def _check_processes(self) -> None:
        """Who is not struck lives."""
        for place in self.faults.places.values():
            child = self.faults.child(place)
            if not place.struck and not child.alive:
                self.wrong(f"{place.name} ended by itself with {child.process.returncode}: {child.said()[-500:]}")
                self.faults.start(place)

    def _states(self, jobs: list[str]) -> str:
        known = self.scene.look.known
        mine = {key: event.to for key, event in known.items() if len(p := key.split("/")) > 1 and p[1] in jobs}
        return ", ".join(f"{key}: {state}" for key, state in sorted(mine.items()) if not key.startswith("command/"))

    def _how_it_goes(self) -> str:
        struck = [place.name for place in self.faults.places.values() if place.struck]
        leaders = [self.scene.look.leader(shard) or "-" for shard in range(SHARDS)]
        done = ", ".join(f"{n} {state}" for state, n in sorted(self.ended.items()))
        return (
            f"{sum(self.faults.counts.values())} faults, {self.takeovers} elections, leaders {' '.join(leaders)}, "
            f"down {' '.join(struck) or '-'}; {len(self.jobs)} jobs at work, ended: {done or '-'}; "
            f"{self.events} events, {self.scene.onlooker.rows} rows, on Spark {self.spark.rows} rows of "
            f"{self.spark.judged} jobs, {len(self.violations)} violations"
        )

    def wrong(self, what: str) -> None:
        self.violations.append(what)
        self.say(f"WRONG: {what}")

    def say(self, what: str, *, quiet: bool = False) -> None:
        seconds = time.monotonic() - self._began
        line = f"{int(seconds // 60):3d}:{seconds % 60:04.1f}  {what}\n"
        with (self.scene.fleet.directory / "soak.log").open("a") as log:
            log.write(line)
        if not quiet:
            sys.stderr.write(line)

    def result(self, seed: int) -> dict[str, Any]:
        return {
            "seed": seed,
            "minutes": round((time.monotonic() - self._began) / 60, 1),
            "faults": dict(sorted(self.faults.counts.items())),
            "jobs": dict(sorted(self.ended.items())),
            "elections": self.takeovers,
            "events": self.events,
            "rows": self.scene.onlooker.rows,
            "spark": {"jobs": self.spark.judged, "rows": self.spark.rows},
            "violations": self.violations,
        }


@contextmanager
def a_soak(directory: Path, seed: int) -> Iterator[Soak]:
    chance = random.Random(seed)
    directory.mkdir()
    with ExitStack() as stack:
        broker, (one, two) = stack.enter_context(broker_behind(directory / "broker", 2))
        cluster = own_cluster(broker.bootstrap_servers, SHARDS)
        ensure_topics(cluster)
        fleet = stack.enter_context(Fleet(cluster, directory, SETTINGS | SOAKED))
        look: Look = stack.enter_context(fleet.look())
        recorder = stack.enter_context(Recorder(cluster))
        onlooker = stack.enter_context(Onlooker(directory / "out", every_s=0.5))
        scene = Scene(fleet, look, recorder, onlooker, directory / "out")
        ways = {"c2": one, "w2": two}
        through: dict[str, dict[str, object]] = {
            name: {"kafka.bootstrap_servers": proxy.address} for name, proxy in ways.items()
        }
        trial: dict[str, object] = {soak_spark.LABEL: "trial"}
        places = [Place(f"c{n}", "coordinator", dict(through.get(f"c{n}", {}))) for n in range(3)]
        places += [Place(f"w{n}", "worker", trial | through.get(f"w{n}", {})) for n in range(3)]
        places += [Place("s0", "spark", soak_spark.SETTINGS)]
        spark = SparkJobs(scene, directory / "spark")
        faults = Faults(scene, broker, ways, places, chance, spark.sinks)
        for place in places:
            faults.start(place)
        scene.ready()
        yield Soak(scene, faults, spark, chance)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Faults by chance on real processes.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--streaming-minutes", type=float, default=0.0, help="of streaming without faults, afterwards")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout at the end")
    parser.add_argument("--keep", action="store_true", help="keep the directory, also when all went well")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    directory = Path(tempfile.mkdtemp(prefix="detent-soak-"))
    sys.stderr.write(f"seed {seed}, {given.minutes:g} minutes, in {directory}\n")
    result: dict[str, Any] = {"seed": seed, "faults": {}, "violations": []}
    if given.minutes > 0:
        with a_soak(directory / "faults", seed) as soak:
            try:
                soak.run(given.minutes)
                soak.finish()
            except DetentError as error:  # what the run itself needs, such as its broker: what was seen is told
                soak.wrong(f"it ended before its time: {error}")
            soak.say(soak._how_it_goes())
            result = soak.result(seed)
    if given.streaming_minutes > 0:
        told, wrong = stream(directory / "streaming", given.streaming_minutes, _say)
        result |= {"streaming": told, "violations": result["violations"] + wrong}
    if given.json:
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        sys.stdout.write("faults by kind:\n" + "".join(f"  {n:5d}  {kind}\n" for kind, n in result["faults"].items()))
        sys.stdout.write(table(result["streaming"]) if "streaming" in result else "")
        sys.stdout.write("".join(f"WRONG: {what}\n" for what in result["violations"]) or "nothing was wrong\n")
    if not given.keep and not result["violations"]:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        sys.stderr.write(f"logs are in {directory}; again: python -m tests.soak --seed {seed}\n")
    return 1 if result["violations"] else 0


def _say(what: str) -> None:
    sys.stderr.write(f"{what}\n")


if __name__ == "__main__":
    sys.exit(main())
