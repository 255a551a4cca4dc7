"""Explaining a job of a cluster: gathers what `coordinator/explain.py` needs, from the answers of a moment, the job's
history and the reports topic. For the command line and for servers.

`ask` is quick, for who holds the read model; `tell` reads the log and may take its time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from coordinator.answers import Answers
from coordinator.explain import Explanation, explain
from coordinator.ignored import ignored
from coordinator.past import Past
from coordinator.phrases import duration
from coordinator.views import JobDetail, ShardView, WorkerView
from coordinator.waits import waits
from events.records import Cursor

SILENT_MS = 5000  # a leader that has not been heard for as long may be gone


@dataclass(frozen=True)
class Question:
    """A job at a moment, with what is around it."""

    detail: JobDetail
    at: int
    shard: ShardView
    workers: tuple[WorkerView, ...]
    silent: str  # why nobody seems to lead its shard; empty when somebody does
    consumed: int  # how far its shard's leader has read reports
    end: int | None  # of the past: what is on the log from there on had not happened


def ask(answers: Answers, job: str, incarnation: int = 0) -> Question | None:
    """None where there is no such job at that moment, nor its summary. `answers` may be of now or of the past."""
    detail = answers.job(job, incarnation)
    if detail is None:
        return None
    state = answers.state_of(job)
    shard = answers.shards()[state.shard]
    known = state.cursor.state if state.cursor is not None else None
    positions = known.positions if isinstance(known, Cursor) else ()
    return Question(
        detail=detail,
        at=answers.at,
        shard=shard,
        workers=tuple(answers.workers()),
        silent=_silent(answers, shard),
        consumed=max((p.offset for p in positions if p.topic == "reports"), default=0),
        end=None if answers.soft is not None else answers.offsets[state.shard],
    )


def tell(past: Past, question: Question, when: Callable[[int], str]) -> Explanation:
    """`when` writes a time as the reader wants it."""
    job, end = question.detail.job, question.end
    history = [each for each in past.history(job.id) if end is None or each.offset < end]
    reports = past.reports(job.id)
    if end is not None:  # of the past: what had not come yet is not told
        reports = [each for each in reports if each.offset < question.consumed]
    late = ignored(reports, history, job.id, job.incarnation, question.consumed)
    found = waits(question.detail, question.shard, question.workers, question.silent)
    return explain(question.detail, history, question.at, when, found, late)


def explain_job(
    past: Past, answers: Answers, job: str, when: Callable[[int], str], incarnation: int = 0
) -> Explanation | None:
    """Both at once, for who has the time."""
    question = ask(answers, job, incarnation)
    return tell(past, question, when) if question is not None else None


def _silent(answers: Answers, shard: ShardView) -> str:
    if shard.state != "LEADING":
        return f"shard {shard.shard} has no leader" + (f": {shard.reason}" if shard.reason else "")
    if answers.soft is None:
        return ""  # of the past nobody knows
    beat = answers.soft.beats.get(shard.leader)
    if beat is None:
        return f"nothing is heard of {shard.leader}, which led shard {shard.shard} last"
    silent_ms = answers.at - beat[1]
    if silent_ms > SILENT_MS:
        return f"{shard.leader}, which led shard {shard.shard} last, has not been heard for {duration(silent_ms)}"
    return ""


def clock(ms: int | None, now: int | None = None) -> str:
    """The time of day in this machine's zone, with the date where it is not today's."""
    if not ms:
        return ""
    then = datetime.fromtimestamp(ms / 1000).astimezone()
    today = datetime.fromtimestamp(time.time() if now is None else now / 1000).astimezone()
    text = f"{then:%H:%M:%S}.{ms % 1000:03}"
    return text if then.date() == today.date() else f"{then:%Y-%m-%d} {text}"
