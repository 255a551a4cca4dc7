"""Why a job is in its state, in plain sentences: the chain of causes back to the first one, what happened on the way,
what it waits for and what would move it, and what was late or ignored.

Given what is known of the job and its history; pure. Nothing here decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coordinator.history import Seen
from coordinator.ignored import Ignored
from coordinator.phrases import count, duration, listing, sentence, tasks, told
from coordinator.story import Moment, story
from coordinator.views import JobDetail, JobView, View
from coordinator.waits import Wait
from events.records import Checkpoint, Event, Outcome, Task

When = Callable[[int], str]
VERBS = {"FINISHED": "FINISHED", "FAILED": "FAILED", "CANCELED": "was CANCELED", "SAVEPOINTED": "was SAVEPOINTED"}
BEGUN = ("failing", "quarantined", "repaired", "cancelling", "savepointing", "draining", "pausing")


class Explanation(View, frozen=True):
    """Answers to: what is with this job, why, what happened, and what now?"""

    job: str
    incarnation: int
    state: str
    at: int
    headline: str
    why: tuple[str, ...]  # from its state back to the first cause
    waits: tuple[Wait, ...]  # what it waits for; nothing for an ended job that is cleaned up
    story: tuple[Moment, ...]
    ignored: tuple[Ignored, ...]
    notes: tuple[str, ...] = ()  # what could not be told, and why


def explain(
    detail: JobDetail,
    history: Sequence[Seen],
    now: int,
    when: When,
    waits: Sequence[Wait] = (),
    ignored: Sequence[Ignored] = (),
) -> Explanation:
    """`when` writes a time as the reader wants it."""
    job = detail.job
    mine = [
        each for each in history
        if each.entity.job == job.id and each.incarnation == job.incarnation and not each.is_void
    ]  # fmt: skip
    notes = []
    begun = any(e.event and e.event.transition in ("submitted", "restored") for e in mine if e.entity.kind == "job")
    if not begun:
        notes.append("Its beginning is no longer on the log: older transitions have been compacted away.")
    return Explanation(
        job=job.id,
        incarnation=job.incarnation,
        state=job.state,
        at=now,
        headline=_headline(job, now, when),
        why=tuple(sentence(text) for text in _why(job, mine, when)),
        waits=tuple(waits),
        story=tuple(story(history, job.id, job.incarnation)),
        ignored=tuple(ignored),
        notes=tuple(notes),
    )


def _headline(job: JobView, now: int, when: When) -> str:
    name = f"job {job.id} (incarnation {job.incarnation})"
    rows = f"{count(job.rows_published, 'row')} published"
    if job.is_ended:
        ran = f" after {duration(job.ended_at - job.submitted_at)}" if job.ended_at and job.submitted_at else ""
        at = f" at {when(job.ended_at)}" if job.ended_at else ""
        said = f": {told(job.reason, job.ended_at or now)}" if job.reason else ""
        return sentence(f"{name} {VERBS.get(job.state, job.state)}{at}{ran}, with {rows}{said}")
    since = f" since {when(job.since)} ({duration(now - job.since)})" if job.since else ""
    ill = f", and it is not well: {job.health_reason}" if job.health == "UNHEALTHY" else ""
    return sentence(f"{name} is {job.state}{since}, with {rows}{ill}")


def _why(job: JobView, mine: Sequence[Seen], when: When) -> list[str]:
    """The chain, link by link. Every link names what led to the one before it."""
    jobs = [each for each in mine if each.entity.kind == "job" and each.event is not None]
    if not jobs:
        return [f"only its summary is left, which says: {job.reason or job.state}"]
    if job.state == "FINISHED" and not _begun(jobs):
        return _why_finished(mine, when)
    last = _begun(jobs) if job.is_ended or job.state not in ("CREATED", "SCHEDULED", "RUNNING") else None
    if last is not None:
        return _why_begun(job, last, mine, when)
    if job.state == "RUNNING":
        return _why_running(jobs, mine, when)
    return _why_not_running(job, jobs, mine, when)


def _begun(jobs: Sequence[Seen]) -> Seen | None:
    """What set the end, or the pause, in motion."""
    for each in jobs[::-1]:
        if each.event is not None and each.event.transition in BEGUN:
            return each
        if each.event is not None and each.event.transition in ("resumed", "submitted", "restored"):
            return None
    return None


def _why_finished(mine: Sequence[Seen], when: When) -> list[str]:
    links = []
    finals = [
        each for each in mine
        if each.entity.kind == "checkpoint" and each.event and each.event.to == "COMMITTED"
        and isinstance(each.event.state, Checkpoint) and each.event.state.purpose == "FINAL"
    ]  # fmt: skip
    for each in finals:
        state = each.event.state if each.event else None
        assert isinstance(state, Checkpoint)
        rows = sum(piece.rows for ack in state.acks for piece in ack.staged)
        links.append(
            f"it FINISHED because the final checkpoint {state.id} of pipeline {each.entity.parts[1]} was committed at "
            f"{when(each.time)} ({count(rows, 'row')}): all that it had read was published then"
        )
        marks = [e for e in mine if e.entity.kind == "ready" and e.event and e.entity.parts[1] == each.entity.parts[1]]
        newest = {e.entity: e for e in marks if e.time <= each.time}
        if newest:
            last = max(newest.values(), key=lambda e: e.offset)
            all_read = f"all {len(newest)} tasks had read all of their sources, the last of them {tasks([_name(last)])}"
            one_read = f"its one task, {_name(last)[0]}/{_name(last)[1]}, had read all of its source"
            said = all_read if len(newest) > 1 else one_read
            links.append(f"that checkpoint was taken because {said} at {when(last.time)} ({_place(last.event)})")
    return [*(links or ["it FINISHED because all its pipelines had"]), *_interruptions(mine, when)]


def _interruptions(mine: Sequence[Seen], when: When) -> list[str]:
    """What did not keep it from its end."""
    failed = [e for e in mine if e.entity.kind == "task" and e.event and e.event.transition in ("failed", "repaired")]
    if not failed:
        return []
    reasons = dict.fromkeys(
        f"{told(str(getattr(e.event.state, 'reason', '')), e.time)} (at {when(e.time)})" for e in failed if e.event
    )
    lost = count(len(failed), "attempt was lost", "attempts were lost")
    rest = "what it had" if len(failed) == 1 else "what they had"
    return [f"on the way {lost}, and {rest} not published was read again: {listing(reasons, 3)}"]


def _why_begun(job: JobView, last: Seen, mine: Sequence[Seen], when: When) -> list[str]:
    event = last.event
    assert event is not None
    reason = told(str(getattr(event.state, "reason", "")), last.time)
    verb = {"failing": "could not go on", "quarantined": "was quarantined", "repaired": "was ended by a repair",
            "cancelling": "was cancelled", "savepointing": "was told to end with a savepoint",
            "draining": "was told to stop after what it had read", "pausing": "was paused"}  # fmt: skip
    said = f": {reason}" if reason and not job.reason.endswith(reason) else ""  # the headline has it already
    now = (
        f"it {VERBS.get(job.state, 'is ' + job.state)} because, at {when(last.time)}, it {verb[event.transition]}{said}"
    )
    return [now, *_first_causes(last, mine, when)]


def _first_causes(last: Seen, mine: Sequence[Seen], when: When) -> list[str]:
    """What the same decision says besides, down to the input it was decided on."""
    assert last.event is not None
    cause = last.event.cause
    same = [e for e in mine if e.event is not None and e.event.cause == cause and abs(e.time - last.time) <= 1]
    links = []
    for each in same:
        event = each.event
        if event is None or each.entity.kind not in ("command", "task", "pending", "checkpoint"):
            continue
        if isinstance(event.state, Outcome):
            who, which = event.state.by or "somebody", f"{event.state.action} {each.entity.parts[1]}"
            return [f"that was asked for by {who} with the command {which} ({_place(event)})"]
        if isinstance(event.state, Task) and event.transition in ("failed", "repaired"):
            links += _why_failed(each, mine, when)
        elif isinstance(event.state, Checkpoint) and event.transition in ("aborted", "retried", "abandoned"):
            links.append(f"checkpoint {event.state.id} had failed: {event.state.reason} ({_place(event)})")
    return links[:3] or [f"the first cause is {_place(last.event)}"]


def _why_failed(each: Seen, mine: Sequence[Seen], when: When) -> list[str]:
    event = each.event
    assert event is not None
    assert isinstance(event.state, Task)
    name, state = _name(each), event.state
    before = [e for e in mine if e.entity == each.entity and e.event and e.offset < each.offset]
    placed = [e for e in before if e.event and e.event.transition == "placed"]
    tries = sum(e.event is not None and e.event.transition in ("failed", "repaired") for e in before)
    links = [
        f"{tasks([name])}, attempt {event.attempt} on {state.worker or 'no worker'}, failed at {when(each.time)}: "
        f"{told(state.reason, each.time)} ({_place(event)})"
    ]
    if placed:
        links.append(f"that attempt had been deployed on {state.worker} at {when(placed[-1].time)}")
    if tries:
        reasons = listing(dict.fromkeys(
            told(str(getattr(e.event.state, "reason", "")), e.time) for e in before
            if e.event and e.event.transition in ("failed", "repaired")
        ), 3)  # fmt: skip
        links.append(f"it had failed {count(tries, 'time')} before ({reasons}), and its restart policy allows no more")
    return links


def _why_running(jobs: Sequence[Seen], mine: Sequence[Seen], when: When) -> list[str]:
    runs = [each for each in jobs if each.event and each.event.transition == "running"]
    if not runs:
        return ["it runs; when it began to is no longer on the log"]
    links = [f"it is RUNNING because all its tasks have been running since {when(runs[-1].time)}"]
    failed = [e for e in mine if e.entity.kind == "task" and e.event and e.event.transition in ("failed", "repaired")]
    if len(runs) > 1 and failed:
        last = failed[-1]
        links.append(f"it had been interrupted {count(len(runs) - 1, 'time')}, the last time because "
                     + _why_failed(last, mine, when)[0])  # fmt: skip
    return links


def _why_not_running(job: JobView, jobs: Sequence[Seen], mine: Sequence[Seen], when: When) -> list[str]:
    left = {state: number for state, number in job.tasks.items() if state not in ("RUNNING", "READY_TO_CLOSE")}
    said = listing(
        f"{count(number, 'task')} {'is' if number == 1 else 'are'} {state}" for state, number in left.items()
    )
    links = [f"it is {job.state} and not RUNNING because {said}"]
    restarts = [each for each in jobs if each.event and each.event.transition == "restarting"]
    failed = [e for e in mine if e.entity.kind == "task" and e.event and e.event.transition in ("failed", "repaired")]
    if failed and (restarts or failed[-1].offset > jobs[-1].offset - 50):
        links += _why_failed(failed[-1], mine, when)
    elif jobs[0].event is not None and not restarts:
        links.append(f"it was submitted at {when(jobs[0].time)} ({_place(jobs[0].event)}) and has not run yet")
    return links


def _name(each: Seen) -> tuple[int, int]:
    return int(each.entity.parts[1]), int(each.entity.parts[2])


def _place(event: Event | None) -> str:
    """The first cause, as people can look it up."""
    if event is None:
        return "an unknown cause"
    cause = event.cause
    if cause.kind == "INPUT":
        what = {"reports": "a worker's report, "}.get(cause.topic, "")
        return f"{what}{cause.topic}/{cause.partition} at offset {cause.offset}"
    if cause.kind == "TIMER":
        return f"a deadline of {cause.note}"
    if cause.kind == "DETECTOR":
        return f"the failure detector: {cause.note}"
    if cause.kind == "ELECTION":
        return f"a new leader's first look: {cause.note}"
    return f"what the state called for: {cause.note}" if cause.note else "what the state called for"
