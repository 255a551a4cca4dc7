"""What goes into the worker's core and what comes out of it: happenings, effects, settings, outcome. Values only.

It decides nothing and never holds a live thing (a thread, a session, a connection): all here is frozen, compared by
content and safe to hand from thread to thread.
"""

from __future__ import annotations

import msgspec

from events import records
from workers.ledger import Change, Identity


class Value(msgspec.Struct, frozen=True, gc=False):
    """What all happenings and effects are."""


class Settings(Value, frozen=True, kw_only=True):
    """What a worker is and how patient it is. The caller may pass other values from one decision to the next."""

    worker: str
    instance: str = ""
    host: str = ""
    version: str = ""
    slots: int = 4
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    draining: bool = False
    # How long it may go without an answer from Kafka before it stops its own tasks.
    lease_ms: int = 10_000
    # How long an attempt may run without progress before it is reported as stalled.
    stall_ms: int = 60_000
    # How long an attempt may take to stop before it is given up.
    stop_patience_ms: int = 30_000
    # The first pause before a report is repeated; it doubles up to the cap.
    repeat_ms: int = 1_000
    repeat_cap_ms: int = 60_000


# Inputs besides records.Order ----------------------------------------------------------------------------------------


class Withdrawn(Value, frozen=True):
    """The order's key got a tombstone: nothing more is wanted of this task, and its end has been noted."""

    job: str
    pipeline: int
    task: int


class Started(Value, frozen=True):
    """The attempt's loop is about to read its first slice. It comes before all else that the loop says."""

    who: Identity


class Progressed(Value, frozen=True):
    """The loop has done something, if only looked at an idle source: silence is what a stall is seen by."""

    who: Identity
    rows: int
    bytes_read: int
    at: int


class Exhausted(Value, frozen=True):
    """The source is at its end. The loop stays, to take part in checkpoints until it is stopped."""

    who: Identity
    position: bytes


class Staged(Value, frozen=True):
    """The answer to StageCheckpoint: the slice is finished and `pieces` are all staged since the one before."""

    who: Identity
    checkpoint: int
    position: bytes
    pieces: tuple[records.Staged, ...]
    rows: int
    bytes_read: int


class StageFailed(Value, frozen=True):
    """The other answer to StageCheckpoint. The rows are still the loop's to stage with the next one; or it crashes."""

    who: Identity
    checkpoint: int
    reason: str
    lasting: bool = False


class Crashed(Value, frozen=True):
    """The loop has ended with an error."""

    who: Identity
    reason: str
    lasting: bool = False


class Stopped(Value, frozen=True):
    """The loop has ended without one: it was told to, or the process is shutting down."""

    who: Identity
    reason: str = ""


class Published(Value, frozen=True):
    """The answer to Publish: the checkpoint's output is visible, now or since an earlier try."""

    job: str
    incarnation: int
    pipeline: int
    checkpoint: int
    rows: int


class PublishFailed(Value, frozen=True):
    """The other answer to Publish."""

    job: str
    incarnation: int
    pipeline: int
    checkpoint: int
    reason: str
    # It is not there and can't be put there, ever: the sink was looked at. Without having looked, it is not lasting.
    lasting: bool = False
    tries: int = 0  # as in the effect
    conclusive: bool = False  # as in the effect


class StagingGone(Value, frozen=True):
    """The answer to RemoveStaging."""

    job: str
    incarnation: int
    removed: int


class StagingStuck(Value, frozen=True):
    """The other answer to RemoveStaging."""

    job: str
    incarnation: int
    reason: str


class Tick(Value, frozen=True):
    """Time has passed: repeat what is unsettled, look for stalls, check the lease."""


class Reached(Value, frozen=True):
    """Kafka has answered just now. What it answered may have been sent long before, by a process that was frozen, or
    over a network that was cut: whoever listens to the worker has heard it no later than that for certain."""

    sent_at: int = 0  # 0: now


class Restarted(Value, frozen=True):
    """The process starts with its predecessor's ledger (an empty one the first time). It comes before all else."""


TaskHappening = Started | Progressed | Exhausted | Staged | StageFailed | Crashed | Stopped
Input = (
    records.Order
    | Withdrawn
    | TaskHappening
    | Published
    | PublishFailed
    | StagingGone
    | StagingStuck
    | Tick
    | Reached
    | Restarted
)

# Effects -------------------------------------------------------------------------------------------------------------


class StartTask(Value, frozen=True):
    """Run the attempt's loop from the deploy order's position, with staging of its own."""

    who: Identity
    deploy: records.Deploy


class StopTask(Value, frozen=True):
    """End the attempt's loop, wherever it is. Answered by Stopped or Crashed; an attempt that is gone needs neither."""

    who: Identity
    reason: str


class StageCheckpoint(Value, frozen=True):
    """Let the loop finish its slice and stage its output. Answered by Staged or StageFailed."""

    who: Identity
    checkpoint: int


class Publish(Value, frozen=True):
    """Make staged output visible, idempotently. Answered by Published or PublishFailed."""

    job: str
    incarnation: int
    pipeline: int
    checkpoint: int
    specification: str
    staged: tuple[records.Staged, ...]
    lease: int = 0  # to be compared by `core.may_publish` right before output is made visible
    tries: int = 0  # to be given back with PublishFailed
    conclusive: bool = False  # to be given back with PublishFailed


class RemoveStaging(Value, frozen=True):
    """Remove what this incarnation of the job has in staging. Answered by StagingGone or StagingStuck."""

    job: str
    incarnation: int
    specification: str


Effect = StartTask | StopTask | StageCheckpoint | Publish | RemoveStaging


class Outcome(Value, frozen=True):
    """What a decision leads to. The caller keeps this order, and never begins the next decision in between:

    1. `changes`: applied to the ledger in memory and made durable, in one write. Soft ones (`SetPulse`, `SetReached`)
       need not be durable. The offset of the order belongs in the same write: an order read again after its
       withdrawal would look like a new one.
    2. `effects`, in their order. Performing one may be lost in a crash: the ledger then says what was under way, and
       `Restarted` reports it as lost or lets it be ordered again.
    3. `reports`, in their order. A report may be lost in a crash too: all that matter are kept in the ledger and
       repeated, or given again as the answer to the repeated order.

    The other way round, a crash could leave a task or a report that the ledger knows nothing of.
    """

    effects: tuple[Effect, ...] = ()
    reports: tuple[records.Report, ...] = ()
    changes: tuple[Change, ...] = ()
    # Why the input led to nothing, or to less than it asks for; to be counted and logged. Empty otherwise.
    ignored: str = ""


NOTHING = Outcome()


def ignored(reason: str) -> Outcome:
    return Outcome(ignored=reason)


def say(who: Identity, happening: records.ReportHappening, now_ms: int, settings: Settings) -> records.Report:
    return records.Report(
        incarnation=who.incarnation,
        job=who.job,
        pipeline=who.pipeline,
        task=who.task,
        attempt=who.attempt,
        worker=settings.worker,
        time=now_ms,
        happening=happening,
    )
