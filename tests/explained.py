"""Stories (tests/scenarios) explained: what `detent explain` says of a job after a telling, with times counted from its
beginning. `python -m tests.explained R1 D9` prints them, `--write` writes the golden texts anew."""

from __future__ import annotations

import sys
from pathlib import Path

from coordinator import history
from coordinator.draft import Gone
from coordinator.explain import Explanation, explain
from coordinator.ignored import Reported, ignored
from coordinator.viewing import job_detail
from coordinator.waits import waits
from detent.explain_text import explanation_lines
from events.codec import Codec
from events.records import Event, Report
from events.table import Raw, tombstone_headers, transactions
from tests.published import events_of
from tests.scenarios.runner import find, tell
from tests.simulation.broker import COMMITTED, Broker
from tests.simulation.coordinators import Reading
from tests.simulation.world import BEGIN_MS

CODEC = Codec()
FOLDER = Path(__file__).parent / "explanations"
# Which stories have a golden text: one of each kind of ending and of trouble.
GOLDEN = ("R1", "R2", "D5", "D7", "D9", "D10", "T7", "Z1", "Z3", "O3", "B3", "B5", "B12")


def raws(log: list[Event | Gone]) -> list[Raw]:
    """As they would stand on a topic."""
    return [
        Raw(offset, event.entity.encode(), CODEC.encode(event))
        if isinstance(event, Event)
        else Raw(offset, event.entity.encode(), None, tombstone_headers(event.epoch, event.incarnation))
        for offset, event in enumerate(log)
    ]


def when(ms: int) -> str:
    return f"{(ms - BEGIN_MS) / 1000:.3f}"


def reports_of(broker: Broker) -> list[Reported]:
    stored = broker.partition("reports").stored
    return [
        Reported(0, offset, record.value)
        for offset, record in enumerate(stored)
        if record.status == COMMITTED and isinstance(record.value, Report)
    ]


def explained(broker: Broker, job: str, incarnation: int, end: int | None = None) -> Explanation:
    """Of the whole log, or of its first records."""
    log = events_of(broker)[:end]
    reading = Reading()
    reading.take((at, event.entity, event) for at, event in enumerate(log))
    now = max(event.time for event in log if isinstance(event, Event))
    detail = job_detail(reading.state, job, now, incarnation=incarnation)
    assert detail is not None
    seen = list(history.seen(transactions(raws(log), b"cursor/0"), CODEC, 0, history.of_job(job)))
    late = ignored(reports_of(broker), seen, job, incarnation, 10**9)
    return explain(detail, seen, now, when, waits(detail, None, []), late)


def jobs_of(broker: Broker) -> list[tuple[str, int]]:
    found = {(e.job, e.incarnation) for e in events_of(broker) if isinstance(e, Event) and e.entity.startswith("job/")}
    return sorted(found)


def text_of(name: str) -> str:
    """What is said of every job of a scenario's stories at their ends."""
    parts = []
    for story in find(name):
        broker = tell(story).broker
        parts.append(f"{story.id}  {story.title}\n")
        for job, incarnation in jobs_of(broker):
            parts.append("\n".join(explanation_lines(explained(broker, job, incarnation), when)) + "\n")
    return "\n".join(parts)


def main() -> None:
    names = [name for name in sys.argv[1:] if not name.startswith("--")] or list(GOLDEN)
    for name in names:
        if "--write" in sys.argv:
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / f"{name}.txt").write_text(text_of(name))
        else:
            sys.stdout.write(text_of(name) + "\n")


if __name__ == "__main__":
    main()
