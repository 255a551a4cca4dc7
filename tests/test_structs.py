"""Threads that read their first values together: without being made ready, types that are read so end the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from events import records
from events.structs import make_ready

ROOT = Path(__file__).parent.parent
# Eight threads meet the same types for the first time, at the same moment, and are interrupted all the time.
PROGRAM = """
import sys, threading
from coordinator.graph import graph_of
from coordinator.specification import plan
from events.codec import Codec
from events.errors import Place
from events.records import Cause, Event, Task

event = Event(epoch=1, logic=1, incarnation=1, attempt=1, due_at=0, sequence=0, time=0, entity="task/a/0/0",
              transition="x", from_="", to="RUNNING", job="a", cause=Cause(kind="TIMER"), state=Task())
value = Codec().encode(event)
codec = Codec()
body = '{"source": [{"name": "in", "kind": "k"}], "sink": [{"name": "out", "kind": "k", "from": ["in"]}]}'
barrier = threading.Barrier(8)
read = []

def run():
    barrier.wait()
    found = codec.decode(value, Event, Place("events", 0, 0))
    read.append((found == event, plan(body).tasks, len(graph_of(body))))

sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=run) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert read == [(True, (1,), 2)] * 8, read
"""


def test_threads_may_read_their_first_values_together() -> None:
    for _ in range(3):
        done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", PROGRAM], cwd=ROOT, capture_output=True,
                              text=True, timeout=60, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]


def test_every_record_is_made_ready() -> None:
    kinds = {kind for kind in vars(records).values() if isinstance(kind, type) and issubclass(kind, records.Record)}
    assert make_ready(records.Record) == len(kinds - {records.Record})


def test_what_can_not_be_read_is_passed_over() -> None:
    class Odd(msgspec.Struct):
        there: NotThere  # type: ignore[name-defined]  # noqa: F821

    assert make_ready(Odd) == 0
    assert make_ready() > 100
