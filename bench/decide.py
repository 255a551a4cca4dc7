"""Deciding: decisions per second of the coordinator's core alone, with few and with many live tasks.

    python -m bench.decide --json

A decision is what the core makes of one input: a checkpoint that comes due, a task's acknowledgement, the report that
it is committed. Each is decided and folded, as a leader does it. The jobs that are asked are the same number in both
cases; what differs is how many others are alive.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from bench import harness
from coordinator.core import Input, Timer, activation, decide, note_heartbeat
from coordinator.draft import take_over
from coordinator.state import State
from events.records import (
    Cause,
    Checkpoint,
    CheckpointAcked,
    CheckpointCommitted,
    Command,
    Heartbeat,
    Leader,
    Report,
    ReportHappening,
    Staged,
    Submit,
    Task,
    TaskRunning,
)

TASKS = 10
ASKED_JOBS = 100
CAUSE = Cause(kind="TIMER")


class Shard:
    """A shard with jobs that all run."""

    def __init__(self, tasks: int) -> None:
        self.state, self.now, self.decisions = State(0), 1_000_000, 0
        activation(self.state, 1, self.now, Leader(coordinator="bench"))
        for i in range(20):
            said = Heartbeat(worker=f"w{i:02}", instance="1", time=self.now, slots=tasks)
            note_heartbeat(self.state, said, self.now)
        source = [{"name": "in", "kind": "x", "parallelism": TASKS}]
        body = json.dumps({"source": source, "sink": [{"name": "out", "kind": "x", "from": ["in"]}]})
        for number in range(tasks // TASKS):
            self.give(Command(id="1", job=f"job-{number}", action=Submit(specification=body)))
            for index in range(TASKS):
                self.report(f"job-{number}", index, TaskRunning())

    def give(self, given: Input) -> None:
        self.decisions += 1
        take_over(self.state, decide(self.state, given, self.now, CAUSE))

    def report(self, job: str, task: int, happening: ReportHappening) -> None:
        view = self.state.jobs[job]
        known = view.pipelines[0].tasks.get(task)
        worker = known.state.worker if known and isinstance(known.state, Task) else "w00"
        attempt = known.attempt if known else 0
        incarnation = view.event.incarnation if view.event else 0
        self.give(Report(incarnation=incarnation, job=job, pipeline=0, task=task, attempt=attempt, worker=worker,
                         time=self.now, happening=happening))  # fmt: skip

    def checkpoint_some(self) -> float:
        """One whole checkpoint of each of the asked jobs. Returns decisions per second."""
        before, started = self.decisions, time.perf_counter()
        piece = (Staged(name="x", rows=1, size=1),)
        for number in range(ASKED_JOBS):
            job, pipeline = f"job-{number}", self.state.jobs[f"job-{number}"].pipelines[0]
            assert pipeline.event is not None
            self.now += 1
            self.give(Timer(f"pipeline/{job}/0", pipeline.event.due_at))
            assert pipeline.pending is not None
            assert isinstance(pipeline.pending.state, Checkpoint)
            checkpoint = pipeline.pending.state.id
            for index in range(TASKS):
                self.report(job, index, CheckpointAcked(checkpoint=checkpoint, position=b"1", staged=piece))
            self.report(job, -1, CheckpointCommitted(checkpoint=checkpoint))
            assert pipeline.checkpoint is not None
            assert pipeline.checkpoint.to == "COMMITTED"
        return (self.decisions - before) / (time.perf_counter() - started)


def run(arguments: argparse.Namespace) -> harness.Result:
    few, many = Shard(arguments.few), Shard(arguments.many)
    names = {count: f"decisions_per_s with {count:,} live tasks" for count in (arguments.few, arguments.many)}
    measured = harness.alternate(
        {names[arguments.few]: few.checkpoint_some, names[arguments.many]: many.checkpoint_some},
        repetitions=arguments.repetitions,
    )
    ratio = harness.ratio(measured, names[arguments.many], names[arguments.few])
    return harness.Result("decide", {**harness.medians(measured)}, [harness.Bar("many/few", ratio, ">=", 0.7)])


def main() -> int:
    options = harness.parser(__doc__ or "")
    options.add_argument("--few", type=int, default=1000, help="live tasks in the one case")
    options.add_argument("--many", type=int, default=100_000, help="and in the other")
    options.set_defaults(repetitions=9)
    arguments = options.parse_args()
    return harness.report(run(arguments), as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
