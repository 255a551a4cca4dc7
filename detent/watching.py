"""How a job gets on, live: a table that is drawn anew on a terminal, plain lines through a pipe, JSON for programs.

All of it is read from the log and from the workers' heartbeats; the coordinator is not asked anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coordinator.read_model import ReadModel
from coordinator.views import JobDetail, JobView, TaskView
from detent.client import NoSuchJob
from detent.output import console, say, say_json
from detent.stopping import Stopping
from events.cluster import Cluster
from events.codec import Codec

DRAW_S = 0.25
LINE_S = 2.0
MOST_TASKS = 20
COLOURS = {"RUNNING": "green", "FINISHED": "green", "FAILED": "red", "FAILING": "red", "CANCELED": "yellow",
           "DEPLOYING": "cyan", "READY_TO_CLOSE": "green"}  # fmt: skip


class StoppedWatching(Exception):
    """Ctrl-C: the job goes on."""


def watch_job(
    cluster: Cluster,
    codec: Codec,
    job: str,
    incarnation: int = 0,
    *,
    as_json: bool = False,
    meanwhile: Callable[[ReadModel, JobDetail], None] = lambda _model, _detail: None,
    on: Console | None = None,
) -> JobView:
    """Show the job until it has ended; how it ended. `meanwhile` is called again and again, with what is known.
    Raises NoSuchJob, and StoppedWatching after Ctrl-C."""
    with ReadModel(cluster, codec) as model, Stopping() as stopping:
        model.catch_up()
        first = model.job(job, incarnation)
        if first is None:
            raise NoSuchJob(job)
        number = first.job.incarnation
        screen = on or console()
        shown = _Json() if as_json else _Drawing(screen) if screen.is_terminal else _Lines()
        with shown:
            while True:
                model.advance(0.1)
                detail = model.job(job, number) or first
                shown.show(detail)
                meanwhile(model, detail)
                if detail.job.is_ended:
                    shown.show(detail, last=True)
                    return detail.job
                if stopping.asked:
                    raise StoppedWatching


class _Shown:
    """Something that shows a job again and again."""

    def __enter__(self) -> _Shown:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, detail: JobDetail, *, last: bool = False) -> None:
        raise NotImplementedError


class _Json(_Shown):
    """A line for each change of state, and every now and then."""

    def __init__(self) -> None:
        self._state, self._at = "", 0.0

    def show(self, detail: JobDetail, *, last: bool = False) -> None:
        if last or detail.job.state != self._state or time.monotonic() - self._at > LINE_S:
            self._state, self._at = detail.job.state, time.monotonic()
            say_json({"job": detail.job, "tasks": detail.tasks})


class _Lines(_Shown):
    """Plain lines: every change of a state, and every now and then how far it is."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}
        self._at = time.monotonic()

    def show(self, detail: JobDetail, *, last: bool = False) -> None:
        for task in detail.tasks:
            told = f"{task.state} on {task.worker}" if task.worker else task.state
            self._news(f"task {task.pipeline}/{task.task} attempt {task.attempt}", told, task.reason)
        self._news(detail.job.id, detail.job.state, detail.job.reason)
        if last or time.monotonic() - self._at > LINE_S:
            self._at = time.monotonic()
            say(f"{_clock()}  {progress_line(detail.job)}")

    def _news(self, what: str, told: str, reason: str) -> None:
        if self._said.get(what) != told:
            self._said[what] = told
            say(f"{_clock()}  {what}: {told}{f', {reason}' if reason else ''}")


class _Drawing(_Shown):
    """A table, drawn anew several times a second."""

    def __init__(self, screen: Console) -> None:
        self._live = Live(console=screen, auto_refresh=False)
        self._at = 0.0

    def __enter__(self) -> _Drawing:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, detail: JobDetail, *, last: bool = False) -> None:
        if last or time.monotonic() - self._at > DRAW_S:
            self._at = time.monotonic()
            self._live.update(drawn(detail), refresh=True)


def drawn(detail: JobDetail) -> Group:
    """A job as it is shown on a terminal."""
    job = detail.job
    head = Text.assemble(
        (job.id, "bold"), "  ", (job.state, COLOURS.get(job.state, "")), f"  {progress_line(job, short=True)}"
    )
    lines: list[Text | Table] = [head]
    if job.health == "UNHEALTHY" or job.reason:
        lines.append(Text(job.health_reason or job.reason, style="yellow"))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("task", "source", "state", "try", "worker"):
        table.add_column(column, no_wrap=True)
    for column in ("rows", "rows/s", "bytes"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", min_width=12)
    totals = totals_of(detail)
    for task in detail.tasks[:MOST_TASKS]:
        table.add_row(
            f"{task.pipeline}/{task.task}",
            task.source,
            Text(task.state, COLOURS.get(task.state, "")),
            str(task.attempt),
            task.worker,
            f"{task.rows:,}",
            f"{task.rows_per_second:,.0f}",
            size(task.bytes_read),
            _bar(task, totals.get((task.pipeline, task.task), 0)),
        )
    lines.append(table)
    if len(detail.tasks) > MOST_TASKS:
        lines.append(Text(f"and {len(detail.tasks) - MOST_TASKS} more tasks", style="dim"))
    return Group(*lines)


def _bar(task: TaskView, total: int) -> ProgressBar | Text:
    """How far it is, where that can be known."""
    if task.is_ready or task.state == "FINISHED":
        return ProgressBar(total=1, completed=1, width=20, finished_style="green")
    if total:
        return ProgressBar(total=total, completed=min(task.rows, total), width=20, complete_style="cyan")
    if task.state == "RUNNING":
        return ProgressBar(total=None, pulse=True, width=20)
    return Text("")


def totals_of(detail: JobDetail) -> dict[tuple[int, int], int]:
    """How many rows each task has to read, of sources whose options say it."""
    found: dict[tuple[int, int], int] = {}
    rows = {
        str(step.get("name")): step.get("options", {}).get("rows", 0)
        for step in detail.specification.get("source", ())
        if isinstance(step, dict)
    }
    for step in detail.graph:
        count = rows.get(step.name, 0)
        if step.role == "source" and isinstance(count, int) and count > 0:
            for share, task in enumerate(step.tasks):
                found[step.pipeline, task] = len(range(share, count, len(step.tasks)))
    return found


def progress_line(job: JobView, *, short: bool = False) -> str:
    """`hello RUNNING: 12,000 rows, 3,400 rows/s, 1.2 MB; checkpoint 3, 1.2 s ago`."""
    parts = [f"{job.rows:,} rows"]
    if job.rows_per_second and not job.is_ended:
        parts.append(f"{job.rows_per_second:,.0f} rows/s")
    if job.bytes_read:
        parts.append(size(job.bytes_read))
    told = ", ".join(parts)
    if job.last_checkpoint_id:
        age = job.seconds_since_last_checkpoint
        told += f"; checkpoint {job.last_checkpoint_id}"
        if age is not None and not job.is_ended:
            told += f", {age:.1f} s ago"
    elif not job.is_ended:
        told += "; no checkpoint yet"
    return told if short else f"{job.id} {job.state}: {told}"


def size(count: int) -> str:
    number = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def _clock() -> str:
    return datetime.now().strftime("%H:%M:%S")
