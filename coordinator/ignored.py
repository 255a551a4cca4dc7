"""What came and led to nothing: reports that were late, or said what was known already, and those that nobody has read
yet. They are on the reports topic and not in the job's history; together the two tell. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from coordinator.history import Seen
from coordinator.lifecycle import ACTIVE_TASK, TERMINAL_JOB
from coordinator.phrases import count
from coordinator.views import View
from events.records import CheckpointAcked, CheckpointCommitted, CheckpointFailed, Event, Report, TaskStopped

COMMIT_TASK = STAGING = -1
ENDED_TASK = frozenset({"FINISHED", "CANCELED", "SUSPENDED"})


class Reported(NamedTuple):
    """A report as it stands on its topic."""

    partition: int
    offset: int
    report: Report


class Ignored(View, frozen=True):
    """Reports of the same kind that led to nothing."""

    kind: str  # "late", "again" (it was known already) or "unread"
    what: str
    worker: str
    count: int
    first_at: int
    last_at: int
    last_offset: int
    text: str


def ignored(
    reports: Iterable[Reported], history: Sequence[Seen], job: str, incarnation: int, consumed: int
) -> list[Ignored]:
    """Those about this incarnation. `consumed` is how far the shard's leader has read."""
    mine = [each for each in history if each.entity.job == job and not each.is_void]
    led = {e.event.cause.offset: e.offset for e in mine if e.event and e.event.cause.topic == "reports"}
    groups: dict[tuple[str, str, str, str], list[Reported]] = {}
    for each in reports:
        report = each.report
        if report.job != job or report.incarnation != incarnation or each.offset in led:
            continue
        if each.offset >= consumed:
            kind, why = "unread", "no coordinator has read it yet"
        else:
            kind, why = _why(report, _known(each, mine, led), incarnation)
        if kind == "expected":
            continue
        groups.setdefault((kind, why, _what(report), report.worker), []).append(each)
    found = []
    for (kind, why, what, worker), group in groups.items():
        times = "" if len(group) == 1 else f" ({count(len(group), 'time')})"
        found.append(
            Ignored(
                kind=kind,
                what=what,
                worker=worker,
                count=len(group),
                first_at=group[0].report.time,
                last_at=group[-1].report.time,
                last_offset=group[-1].offset,
                text=f"{worker} said {what}{times}, which changed nothing: {why}.",
            )
        )
    return sorted(found, key=lambda each: each.last_offset)


def _known(each: Reported, mine: Sequence[Seen], led: dict[int, int]) -> list[Seen]:
    """What was on the log when the report was read, as far as that can be told: not what later reports led to, at
    least what earlier ones did, and else by time."""
    after = min((place for offset, place in led.items() if offset > each.offset), default=None)
    if after is not None:
        return [e for e in mine if e.offset < after]
    before = max((place for offset, place in led.items() if offset < each.offset), default=-1)
    return [e for e in mine if e.offset <= before or e.time <= each.report.time]


def _what(report: Report) -> str:
    said = report.happening
    name = type(said).__name__
    if isinstance(said, CheckpointAcked | CheckpointCommitted | CheckpointFailed):
        name += f" {said.checkpoint}"
    if report.pipeline == STAGING:
        return f"{name} of the job"
    if report.task == COMMIT_TASK:
        return f"{name} of pipeline {report.pipeline}"
    return f"{name} of task {report.pipeline}/{report.task} attempt {report.attempt}"


def _why(report: Report, known: Sequence[Seen], incarnation: int) -> tuple[str, str]:
    """By what was known then."""
    newest: dict[str, Event | None] = {}
    for each in known:
        if each.incarnation == incarnation or each.event is None:
            newest[each.entity.text] = each.event
    if report.pipeline == STAGING:
        return "expected", "its staging is removed"
    jobs = [event for key, event in newest.items() if key.startswith("job/")]
    task = next((e for k, e in newest.items() if k.startswith("task/") and _is(k, report)), None)
    ended = task is not None and task.attempt == report.attempt and task.to in ENDED_TASK
    if isinstance(report.happening, TaskStopped) and ended:
        return "expected", "it was told to stop"
    if jobs and jobs[0] is None:
        return "late", "the job was cleaned up by then"
    if jobs and jobs[0] is not None and jobs[0].to in TERMINAL_JOB:
        return "late", f"the job was {jobs[0].to} already"
    if report.task == COMMIT_TASK:
        return "again", "that was known already"
    if task is None:
        return "late", "there was no such task"
    if task.attempt != report.attempt:
        return "late", f"attempt {task.attempt} was {task.to} by then"
    if task.to not in ACTIVE_TASK:
        return "late", f"the attempt was {task.to} already"
    return "again", "that was known already"


def _is(key: str, report: Report) -> bool:
    return key.endswith(f"/{report.pipeline}/{report.task}")
