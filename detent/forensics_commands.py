"""`detent log`, `at`, `explain`, `verify`: what happened, how it was, why, and whether the log is sound."""

from __future__ import annotations

from typing import Annotated

import typer

from coordinator.answers import Answers
from coordinator.explaining import ask, tell
from coordinator.history import Transition, transitions
from coordinator.phrases import count, duration
from coordinator.verifying import Verdict, verify_cluster
from detent.exits import Exit
from detent.explain_text import explanation_lines
from detent.looking import Look, looks
from detent.output import console, say, say_json
from detent.stopping import Stopping
from detent.tables import COLOURS, number, table
from detent.times import clock, now_ms, parse
from detent.view_commands import Incarnation, JobId, print_job
from events.keys import KINDS

QUIET = frozenset({"ack", "cursor"})


def _known_kinds(given: list[str] | None) -> list[str] | None:
    for kind in given or ():
        if kind not in KINDS:
            raise typer.BadParameter(f"{kind!r} is no kind of entity; it may be {', '.join(KINDS)}")
    return given


@looks
def log(
    look: Look,
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", callback=_known_kinds, help="Only of these kinds: job, task, checkpoint, …"),
    ] = None,
    incarnation: Annotated[int, typer.Option("--incarnation", min=0, help="Only of this one; without it all.")] = 0,
    limit: Annotated[int, typer.Option("--limit", min=0, help="At most so many, the newest; 0 for all.")] = 0,
) -> None:
    """Print every transition of a job: when, from, to, cause, offset, epoch and attempt.

    The log keeps all of them for the forensics window (kafka.forensics_window_ms); after that the newest of each
    entity. Every record ends a question: `detent at --offset N JOB` shows the job as it was right after it.

    Example: detent log orders --kind job --kind task --follow
    """
    known = look.past.history(job_id)
    found = _wanted(transitions(known, job_id, incarnation), kind)
    if not any(each.entity.job == job_id for each in known) and not follow:
        raise look.unknown(job_id)
    shown = found[-limit:] if limit else found
    if not follow and not look.as_json:
        table(COLUMNS, [_row(each) for each in shown])
        return
    if not follow:
        _print(shown, look)
        return
    with Stopping() as stopping:  # before anything is printed: whoever reads it may stop it
        _print(shown, look)
        _follow(look, stopping, job_id, incarnation, kind, len(found))


def _wanted(found: list[Transition], kinds: list[str] | None) -> list[Transition]:
    return [each for each in found if (each.kind in kinds if kinds else each.kind not in QUIET)]


def _follow(look: Look, stopping: Stopping, job: str, incarnation: int, kinds: list[str] | None, told: int) -> None:
    model = look.model  # it has caught up: from now on every change is told
    changed = True
    while not stopping.asked:
        if changed:
            found = _wanted(transitions(look.past.history(job), job, incarnation), kinds)
            _print(found[told:], look)
            told = len(found)
        changed = any(job in change.jobs and change.shard is not None for change in model.advance(0.2))


COLUMNS = ["time", "offset", "epoch", "entity", "transition", "from", "to", "attempt", "worker", "cause", "reason"]


def _row(each: Transition) -> list[str]:
    what = f"{each.transition} {each.checkpoint}" if each.checkpoint is not None else each.transition
    return [
        clock(each.time),
        str(each.offset),
        str(each.epoch),
        each.entity,
        f"{what} (void)" if each.is_void else what,
        each.from_,
        each.to,
        str(each.attempt or ""),
        each.worker,
        each.cause.text if each.cause else "",
        each.reason,
    ]


def _print(found: list[Transition], look: Look) -> None:
    """One by one, as they come: a line each."""
    screen = console()
    for each in found:
        if look.as_json:
            say_json(each)
            continue
        time, offset, epoch, entity, what, before, after, attempt, worker, cause, reason = _row(each)
        moved = f"{before or '·'} → {after or '·'}"
        more = "".join([f" attempt {attempt}" if attempt else "", f" on {worker}" if worker else ""])
        text = f"{time}  {offset:>7}  epoch {epoch}  {entity}  {what}: {moved}{more}"
        text += f"  [{cause}]" if cause else ""
        text += f"  {reason}" if reason else ""
        if screen.is_terminal:
            screen.print(text, style=COLOURS.get(after, ""), markup=False)
        else:
            say(text)


@looks
def at(
    look: Look,
    job_id: Annotated[str, typer.Argument(metavar="[JOB]", help="Only this job; without it everything.")] = "",
    time: Annotated[
        str, typer.Option("--time", help="When: 10:42:03, 2026-11-16T10:42:03, or how long ago: 5m, 90s, 2h.")
    ] = "",
    offset: Annotated[
        int, typer.Option("--offset", min=-1, help="After which record of the shard's events, as `detent log` says.")
    ] = -1,
    shard: Annotated[int, typer.Option("--shard", min=-1, help="Of which shard; for a job its own.")] = -1,
) -> None:
    """Show the state as it was: at a time, or right after a record. Of a job, or of everything.

    What workers said is not on the log: rows are those that checkpoints name.

    Example: detent at --time 5m orders
    """
    if bool(time) == (offset >= 0):
        raise typer.BadParameter("give either --time or --offset")
    if offset >= 0 and shard < 0:
        if not job_id and look.cluster.shards > 1:
            raise typer.BadParameter("an offset is one of a shard: name a job, or --shard")
        shard = look.model.shard_of(job_id) if job_id else 0
    then = look.past.at_time(parse(time)) if time else look.past.at_offset(shard, offset)
    if job_id:
        _job_then(look, job_id, then)
    elif look.as_json:
        say_json(
            {"at": then.at, "offsets": list(then.offsets), "cluster": then.cluster(), "jobs": then.jobs(limit=10_000)}
        )
    else:
        _all_then(then)


def _job_then(look: Look, job: str, then: Answers) -> None:
    found = then.job(job)
    if found is None:
        raise look.unknown(job, then, f"at {clock(then.at)}")
    if look.as_json:
        say_json(found)
    else:
        say(f"As it was at {clock(then.at)}:\n")
        print_job(found)


def _all_then(then: Answers) -> None:
    page = then.jobs(limit=100)
    offsets = ", ".join(f"{number} of shard {shard}" for shard, number in enumerate(then.offsets))
    say(f"As it was at {clock(then.at)}, before offset {offsets}:\n")
    for shard in then.shards():
        say(f"  shard {shard.shard}  {shard.state or 'UNLED'}  {shard.leader}  epoch {shard.epoch}")
    say("")
    if not page.items:
        say("No jobs.")
        return
    table(
        ["job", "state", "since", "rows", "checkpoint", "tasks", "reason"],
        [
            [
                job.id,
                job.state,
                clock(job.since),
                number(job.rows_published),
                str(job.last_checkpoint_id or ""),
                ", ".join(f"{many} {state}" for state, many in sorted(job.tasks.items())),
                job.reason,
            ]
            for job in page.items
        ],
    )
    if page.total > len(page.items):
        say(f"\n{len(page.items)} of {count(page.total, 'job')}; --json has all.")


@looks
def explain(
    look: Look,
    job_id: JobId,
    incarnation: Incarnation = 0,
    time: Annotated[str, typer.Option("--time", help="As it was then, such as 10:42:03 or 5m.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Tell a long story whole.")] = False,
) -> None:
    """Tell in plain sentences why a job is in its state, and what it waits for.

    The chain of causes to the first one, what happened on the way (takeovers too), what would move it, and what was
    late or ignored.

    Example: detent explain orders
    """
    if time:
        then = look.past.at_time(parse(time))
        question = ask(then, job_id, incarnation)
        unknown = look.unknown(job_id, then, f"at {clock(then.at)}") if question is None else None
    else:
        with look.model.now() as now:
            question = ask(now, job_id, incarnation)
            unknown = look.unknown(job_id, now) if question is None else None
    if question is None:
        assert unknown is not None
        raise unknown
    said = tell(look.past, question, clock)
    if look.as_json:
        say_json(said)
        return
    screen = console()
    colours = {"Why": "bold", "What it waits for": "bold yellow", "What happened": "bold", "Late or ignored": "bold"}
    for number_, line in enumerate(explanation_lines(said, clock, everything=everything)):
        if not screen.is_terminal:
            say(line)
            continue
        mark = line.strip().split("  ")[-1][:1] if line.startswith("  ") else ""
        style = {"!": "red", "↻": "magenta", "+": "green", "■": "bold"}.get(mark, colours.get(line, ""))
        screen.print(line, style="bold" if not number_ else style, markup=False)


@looks
def verify(
    look: Look,
    again: Annotated[
        bool, typer.Option("--again/--no-again", help="Make every decision again from the log, and compare.")
    ] = True,
    live: Annotated[
        bool, typer.Option("--live", help="A deadline that nobody keeps is a fault, too: for monitoring.")
    ] = False,
) -> None:
    """Check the whole log against the life-cycle tables and all that must hold, and decide everything again.

    Exit code 0 when it is sound, 7 when something is wrong. Nothing is changed, and no coordinator is asked.

    Example: detent verify --json
    """
    verdict = verify_cluster(look.cluster, look.codec, now_ms(), again=again)
    wrong = not verdict.sound or (live and any(each.kind == "overdue" for each in verdict.findings))
    if look.as_json:
        say_json(verdict)
    else:
        _say_verdict(verdict, wrong)
    raise typer.Exit(Exit.UNSOUND if wrong else Exit.OK)


def _say_verdict(verdict: Verdict, wrong: bool) -> None:
    records = sum(shard.records for shard in verdict.shards)
    decided = sum(shard.decided_again for shard in verdict.shards)
    gaps = sum(shard.gaps for shard in verdict.shards)
    if verdict.findings:
        table(
            ["kind", "shard", "offset", "key", "what"],
            [[each.kind, str(each.shard), str(each.offset), each.key, each.what] for each in verdict.findings],
        )
        if verdict.left_off:
            say(f"… and {verdict.left_off:,} more")
        say("")
    looked = f"{count(records, 'record')} of {count(len(verdict.shards), 'shard')}, in {duration(verdict.took_ms)}"
    again = f", {count(decided, 'decision')} made again" if decided else ""
    say(f"{'Something is wrong' if wrong else 'The log is sound'}: {looked}{again}.")
    if gaps:
        say(f"Compaction has taken records at {count(gaps, 'place')}; nothing is said about what was there.")
