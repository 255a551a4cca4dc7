"""Live views: one thing listens to the read model and gathers what changes; every open connection is told a few times a
second, however much happens. A connection that is slow misses nothing but steps in between."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Literal

import msgspec
from fastapi import Query, Request
from starlette.responses import StreamingResponse

from coordinator.read_model import Change, ReadModel
from coordinator.web.contract import Contract
from coordinator.web.looking import window_of
from coordinator.web.problems import Refused
from coordinator.web.shapes import LiveChange, LiveHello
from coordinator.web.window import Window
from events.keys import MAX_NAME_BYTES
from events.recovery import now_ms

LIVE = Contract()
PERIOD_S = 0.25
TICK_S = 5.0
MOST_NAMED = 100
MOST_CONNECTIONS = 1000


class Changes:
    """What has changed since each connection was told last. `hear` is called by the thread that follows the log, all
    else by the event loop."""

    def __init__(self, ending: threading.Event) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, bool] = {}  # whether it is on the log
        self._changed = False
        self._open: set[Mailbox] = set()
        self._ending = ending

    def hear(self, change: Change) -> None:
        with self._lock:
            for job in change.jobs:
                self._jobs[job] = self._jobs.get(job, False) or change.shard is not None
            self._changed = True

    def __len__(self) -> int:
        return len(self._open)

    async def spread(self) -> None:
        """For as long as the server runs. Then every connection ends; who wants to go on connects again, here or
        elsewhere."""
        while not self._ending.is_set():
            await asyncio.sleep(PERIOD_S)
            with self._lock:
                jobs, changed = self._jobs, self._changed
                self._jobs, self._changed = {}, False
            if changed:
                for mailbox in self._open:
                    mailbox.put(jobs)
        self.end()

    def end(self) -> None:
        self._ending.set()
        for mailbox in self._open:
            mailbox.end()

    def connect(self) -> Mailbox:
        if self._ending.is_set():
            raise Refused(503, "Not available", "this server is about to end")
        if len(self._open) >= MOST_CONNECTIONS:
            raise Refused(503, "Too many connections", f"there are {MOST_CONNECTIONS} live connections; close some")
        made = Mailbox()
        self._open.add(made)
        return made

    def leave(self, mailbox: Mailbox) -> None:
        self._open.discard(mailbox)


class Mailbox:
    """Of one connection."""

    def __init__(self) -> None:
        self._jobs: dict[str, bool] = {}
        self._full = asyncio.Event()
        self.ended = False

    def put(self, jobs: Mapping[str, bool]) -> None:
        for job, logged in jobs.items():
            self._jobs[job] = self._jobs.get(job, False) or logged
        self._full.set()

    def end(self) -> None:
        self.ended = True
        self._full.set()

    async def take(self, wait_s: float) -> dict[str, bool] | None:
        """The jobs that changed (which may be none), and whether on the log; None when nothing has for so long."""
        try:
            await asyncio.wait_for(self._full.wait(), wait_s)
        except TimeoutError:
            return None
        self._full.clear()
        jobs, self._jobs = self._jobs, {}
        return jobs


@LIVE.stream("/live", tag="live")
async def follow_live(
    request: Request,
    view: Annotated[
        Literal["overview", "cluster", "job"], Query(description="What is looked at: `job` tells of one job only.")
    ] = "overview",
    job: Annotated[str, Query(max_length=MAX_NAME_BYTES, description="The job's id, for view=job.")] = "",
) -> StreamingResponse:
    """Server-sent events: `hello` (role, time, offsets), `changed` (which jobs), `job` (the followed job, as a line of
    the list) and `tick` (nothing new, and the connection lives). After an interruption connect again: the first answers
    tell all that there is."""
    window, changes = window_of(request), changes_of(request)
    role: str = request.state.role
    hello = LiveHello(role=role, now=now_ms(), offsets=window.model.offsets())
    mailbox = changes.connect()
    stream = _told(window, changes, mailbox, hello, job if view == "job" else "")
    return StreamingResponse(stream, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def changes_of(request: Request) -> Changes:
    changes: Changes = request.app.state.changes
    return changes


async def _told(
    window: Window, changes: Changes, mailbox: Mailbox, hello: LiveHello, followed: str
) -> AsyncIterator[bytes]:
    try:
        yield message("hello", hello)
        if followed:
            yield _line(window, followed)
        silent_since = time.monotonic()
        while not mailbox.ended:
            jobs = await mailbox.take(max(0.0, silent_since + TICK_S - time.monotonic()))
            if mailbox.ended:
                return
            if jobs is not None and followed and followed not in jobs:
                continue
            silent_since = time.monotonic()
            if jobs is None:
                yield message("tick", {"now": now_ms()})
                continue
            if followed:
                yield _line(window, followed)
            yield message("changed", _change(jobs, followed))
    finally:
        changes.leave(mailbox)


def _change(jobs: Mapping[str, bool], followed: str) -> LiveChange:
    named = (followed,) if followed else tuple(sorted(jobs)[:MOST_NAMED])
    logged = jobs[followed] if followed else any(jobs.values())
    return LiveChange(now=now_ms(), logged=logged, jobs=named, more=not followed and len(jobs) > len(named))


def _line(window: Window, job: str) -> bytes:
    model: ReadModel | None = window.model if window.is_open else None
    found = model.job_line(job) if model is not None else None
    return message("job", {"job": found}) if found is not None else b""


def message(event: str, data: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (event.encode(), msgspec.json.encode(data))
