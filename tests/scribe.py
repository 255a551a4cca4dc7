"""Writes a small, legal log by hand, as records on topics, for tests of the oracle: the coordinator's core decides, the
test plays services and workers. No broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coordinator.core import Input, Sweep, Timer, activation, decide, note_heartbeat
from coordinator.draft import Decision, boundary, take_over
from coordinator.state import State, entity_of, fold
from events import records as r
from events.codec import Codec
from events.keys import order_key
from tests.oracle import Log, Record

CODEC = Codec()


def specification(path: Path, *rows: int, **env: Any) -> str:
    """One pipeline with a source of so many rows for each; -1 is without end."""
    sources = [{"name": f"in{i}", "kind": "numbers", "options": {"rows": n}} for i, n in enumerate(rows)]
    sink = {"name": "out", "kind": "lines", "from": [s["name"] for s in sources], "options": {"path": str(path)}}
    return json.dumps({"env": {"restart": {"retries": 3}} | env, "source": sources, "sink": [sink]})


class Scribe:
    def __init__(self) -> None:
        self.log, self.state, self.now = Log(1), State(0), 1_000_000
        self.consumed = {"commands": 0, "reports": 0}
        self.events_end = 0
        self.elect()

    def put(self, topic: str, key: bytes, value: bytes | None, headers: dict[str, int] | None = None) -> int:
        offset = self.events_end if topic == "events" else len(self.log.partition(topic, 0))
        said = tuple((name, b"%d" % number) for name, number in (headers or {}).items())
        self.log.add(Record(topic, 0, offset, key, value, said))
        self.events_end += topic == "events"
        return offset

    def write(self, decision: Decision) -> None:
        take_over(self.state, decision)
        for order in decision.orders:
            key = order_key(order.worker, order.job, order.pipeline, order.task)
            self.put("orders", key, CODEC.encode(order) if isinstance(order, r.Order) else None)
        for event in decision.events:
            if isinstance(event, r.Event):
                self.put("events", event.entity.encode(), CODEC.encode(event))
            else:
                said = {"epoch": event.epoch, "incarnation": event.incarnation}
                self.put("events", event.entity.encode(), None, said)
        positions = tuple(r.Position(topic=t, partition=0, offset=o) for t, o in self.consumed.items())
        cursor = boundary(self.state, self.now, positions)
        fold(self.state, entity_of(cursor.entity), cursor)
        self.put("events", cursor.entity.encode(), CODEC.encode(cursor))
        self.events_end += 1  # the transaction's marker

    def elect(self) -> None:
        leader = r.Leader(coordinator=f"c{self.state.epoch}", instance=f"i{self.state.epoch}")
        self.write(activation(self.state, self.state.epoch + 1, self.now, leader).decision())

    def give(self, given: Input, cause: r.Cause) -> None:
        self.write(decide(self.state, given, self.now, cause))

    def input(self, topic: str, record: r.Command | r.Report) -> None:
        offset = self.put(topic, record.job.encode(), CODEC.encode(record))
        self.consumed[topic] = offset + 1
        self.give(record, r.Cause(kind="INPUT", topic=topic, partition=0, offset=offset))

    def command(self, job: str, action: r.CommandAction) -> None:
        self.input("commands", r.Command(id=f"cmd-{self.consumed['commands']}", job=job, action=action))

    def report(self, job: str, task: int, happening: r.ReportHappening, pipeline: int = 0) -> None:
        view = self.state.jobs[job]
        known = view.pipelines[pipeline].tasks.get(task) if pipeline in view.pipelines else None
        attempt, worker = (known.attempt, known.state.worker) if known else (0, "w")  # type: ignore[union-attr]
        said = r.Report(job=job, incarnation=max([view.event.incarnation] if view.event else [1]), pipeline=pipeline,
                        task=task, attempt=attempt, worker=worker, time=self.now, happening=happening)  # fmt: skip
        self.input("reports", said)

    def worker(self, name: str) -> None:
        said = r.Heartbeat(worker=name, instance=f"{name}-1", time=self.now, slots=8)
        note_heartbeat(self.state, said, self.now)
        self.give(said, r.Cause(kind="DETECTOR", note="heartbeat"))

    def wait(self, ms: int) -> None:
        end = self.now + ms
        while (due := self.state.next_due()) is not None and due <= end:
            self.now = max(self.now, due)
            for due_at, entity in self.state.due(self.now):
                self.give(Timer(entity, due_at), r.Cause(kind="TIMER", note=entity))
        self.now = end

    def sweep(self) -> None:
        self.give(Sweep(tuple(self.state.jobs)), r.Cause(kind="STATE", note="sweep"))

    # A checkpoint as workers see it -----------------------------------------------------------------------------------

    def pending(self, job: str) -> int:
        event = self.state.jobs[job].pipelines[0].pending
        assert event is not None
        assert event.to == "TRIGGERED"
        assert isinstance(event.state, r.Checkpoint)
        return event.state.id

    def ack(self, job: str, task: int, rows: int, *pieces: str) -> None:
        staged = tuple(r.Staged(name=name, rows=1, size=1) for name in pieces)
        said = r.CheckpointAcked(checkpoint=self.pending(job), position=b"%d" % rows, staged=staged)
        self.report(job, task, said)

    def committed(self, job: str, number: int) -> None:
        self.report(job, -1, r.CheckpointCommitted(checkpoint=number))


def a_run(root: Path) -> Scribe:
    """`done` has two sources of 4 and 2 rows: it is finished and cleaned up. `more` is endless and loses a worker after
    its first checkpoint; a second leader goes on with it. `off` is canceled."""
    scribe = Scribe()
    scribe.worker("w")
    scribe.command("done", r.Submit(specification=specification(root / "done", 4, 2, cleanup_delay_ms=5000)))
    scribe.command("more", r.Submit(specification=specification(root / "more", -1)))
    for job, task in (("done", 0), ("done", 1), ("more", 0)):
        scribe.report(job, task, r.TaskRunning())
    scribe.report("done", 1, r.TaskReady(position=b"2"))
    scribe.wait(10_000)  # the first checkpoint of both
    scribe.worker("w")
    publish(root / "done", "done-1-0-1-a", "in0 0", "in0 1", "in1 0", "in1 1")
    scribe.ack("done", 0, 2, "a")
    scribe.ack("done", 1, 2)
    scribe.committed("done", 1)
    publish(root / "more", "more-2-0-1-b", "in0 0", "in0 1")
    scribe.ack("more", 0, 2, "b")
    scribe.committed("more", 1)
    scribe.elect()
    scribe.state.led_since = scribe.now
    scribe.worker("w")
    scribe.report("done", 0, r.TaskReady(position=b"4"))  # all are: the final one is triggered
    publish(root / "done", "done-1-0-2-c", "in0 2", "in0 3")
    scribe.ack("done", 1, 2)
    scribe.ack("done", 0, 4, "c")
    scribe.committed("done", 2)
    scribe.report("more", 0, r.TaskFailed(reason="it broke"))
    scribe.wait(2000)
    scribe.report("more", 0, r.TaskRunning())
    scribe.command("off", r.Submit(specification=specification(root / "off", 9)))
    scribe.command("off", r.Cancel())
    scribe.wait(4000)  # the cleanup of `done` is due
    scribe.report("done", -1, r.StagingRemoved(), pipeline=-1)
    scribe.worker("w")
    scribe.wait(9000)  # the next checkpoint of `more`, after it was restored from the first
    scribe.ack("more", 0, 3, "d")
    publish(root / "more", "more-2-0-2-d", "in0 2")
    scribe.committed("more", 2)
    assert "done" not in scribe.state.jobs
    return scribe


def publish(path: Path, name: str, *rows: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / name).write_text("".join(f"{row}\n" for row in rows))
