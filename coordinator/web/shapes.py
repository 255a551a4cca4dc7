"""Shapes of answers that only the web has; all others are coordinator/views.py. Pure."""

from __future__ import annotations

import msgspec

from coordinator.views import CauseView, View


class OverviewView(View, frozen=True):
    """The cluster in a few numbers. Times are milliseconds since 1970 UTC."""

    at: int
    jobs: dict[str, int]  # by state
    unhealthy: int
    rows_per_second: float
    workers: int
    slots: int
    slots_used: int
    shards: int
    shards_led: int


class SentCommand(View, frozen=True):
    """A command is on the log. It is decided on in its turn; its outcome can be asked for, and any read waits for it
    with `after`."""

    job: str
    id: str
    shard: int
    offset: int  # of the command, on the topic of commands
    after: str  # for ?after= of reads


class CommandOutcome(View, frozen=True):
    """What became of a command: PENDING until it is decided on, then ACCEPTED or REFUSED. ENDED: it was given to a job
    that has ended since, and its outcome went with it."""

    job: str
    id: str
    state: str
    action: str = ""
    by: str = ""
    reason: str = ""
    decided_at: int | None = None
    cause: CauseView | None = None


class Mark(View, frozen=True):
    """A moment worth seeing."""

    at: int
    kind: str  # takeover or failed
    text: str
    job: str = ""
    shard: int | None = None


class TimelineView(View, frozen=True):
    """From when to when the log tells, and how much happened meanwhile."""

    from_: int | None = msgspec.field(name="from")
    to: int | None
    buckets: tuple[int, ...] = ()  # transactions in each equal part of the time
    marks: tuple[Mark, ...] = ()


class LiveHello(View, frozen=True):
    """The first message of a live connection."""

    role: str
    now: int
    offsets: dict[int, int]


class LiveChange(View, frozen=True):
    """Something has changed. `jobs` names some of those that it is about; `more` says that there are others. `logged`:
    on the log, and not only in what workers say."""

    now: int
    logged: bool
    jobs: tuple[str, ...]
    more: bool
