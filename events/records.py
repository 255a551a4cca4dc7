"""The typed records of every topic. Generated from schemas/*.avsc by `make records`; do not edit.

Values: frozen, compared by content, safe to share between threads.
"""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True, tag_field="type"):
    """What all records are. As JSON, each says its type."""


class Staged(Record, frozen=True, kw_only=True):
    """One piece of staged output: nothing of it is visible before its checkpoint is committed."""

    # Its name under the sink's staging.
    name: str
    # Rows in it.
    rows: int
    # Its size in bytes.
    size: int
    # What the sink needs to publish it.
    detail: bytes = b""


class Ack(Record, frozen=True, kw_only=True):
    """A task's part of a checkpoint.

    Each stands on the log by itself as it comes; the completed checkpoint carries all.
    """

    # The checkpoint's id.
    checkpoint: int
    # The task's number in its pipeline.
    task: int
    # The attempt that acknowledged.
    attempt: int
    # Where its source goes on.
    position: bytes
    # The output that this checkpoint publishes.
    staged: tuple[Staged, ...] = ()
    # When. Milliseconds since 1970 UTC.
    acked_at: int = 0
    # Rows that the attempt has read so far.
    rows: int = 0
    # Bytes that the attempt has read so far.
    bytes_read: int = 0


class ShardLed(Record, frozen=True, kw_only=True):
    """One shard that a coordinator leads."""

    # The shard.
    shard: int
    # The epoch of its reign.
    epoch: int
    # How long the first transaction of the reign took. Milliseconds.
    first_commit_ms: int = 0


class Beat(Record, frozen=True, kw_only=True):
    """A coordinator says that it lives."""

    # The coordinator's id.
    coordinator: str
    # This process of it; a restart is a new instance.
    instance: str
    # Its health address, host:port; standbys hold a connection to it.
    address: str = ""
    # Its software version.
    version: str = ""
    # When, by its own clock. Milliseconds since 1970 UTC.
    time: int
    # The shards it leads.
    shards: tuple[ShardLed, ...] = ()
    # The shards that it follows and could lead at once.
    standing_by: tuple[int, ...] = ()
    # The version of its decision logic.
    logic: int = 0
    # When this instance started, by its own clock. Milliseconds since 1970 UTC.
    started_at: int = 0


class Cancel(Record, frozen=True, kw_only=True):
    """End a job now; output that no completed checkpoint names is discarded."""

    # Why, for the record.
    reason: str = ""


class Cause(Record, frozen=True, kw_only=True):
    """Why an event was written: the input that was decided on, or what else led to it."""

    # INPUT (a record on a topic), TIMER (a deadline that came due), DETECTOR (the failure detector's verdict), STATE (a
    # state that calls for the next step), ELECTION (a new leader's first act).
    kind: str
    # The input's topic, without the prefix; empty when the cause is no record.
    topic: str = ""
    # The input's partition; -1 when the cause is no record.
    partition: int = -1
    # The input's offset; -1 when the cause is no record.
    offset: int = -1
    # What a person should know besides: the timer's entity, the detector's finding.
    note: str = ""


class RestorePoint(Record, frozen=True, kw_only=True):
    """Where the tasks of a pipeline go on from: the positions of a committed checkpoint."""

    # The pipeline's number in the job.
    pipeline: int
    # The checkpoint's number; 0 for the beginning.
    checkpoint: int
    # The position of each task, by its number.
    positions: tuple[bytes, ...] = ()


class Checkpoint(Record, frozen=True, kw_only=True):
    """A checkpoint of a pipeline.

    Pending and latest completed are entities of their own, so that the one in flight never hides the one to restore
    from.
    """

    # Its number in the pipeline; it only grows.
    id: int
    # PERIODIC, FINAL (the completed point of a bounded pipeline), SAVEPOINT, PAUSE or DRAIN.
    purpose: str = "PERIODIC"
    # When it was triggered. Milliseconds since 1970 UTC.
    triggered_at: int
    # When the last task had acknowledged. Milliseconds since 1970 UTC; 0 before.
    completed_at: int = 0
    # When its output was published. Milliseconds since 1970 UTC; 0 before.
    committed_at: int = 0
    # What the tasks have acknowledged so far.
    acks: tuple[Ack, ...] = ()
    # Tries at publishing its output.
    tries: int = 0
    # Workers that may still hold an order to publish it, to be withdrawn.
    held_by: tuple[str, ...] = ()
    # For each of them, the try that it was last told.
    held_tries: tuple[int, ...] = ()
    # Whether a worker has said that it can't be published, ever. The others that were told to are then asked.
    refused: bool = False
    # Workers that have said so since they were last told to publish it: none of them is at it any more.
    refused_by: tuple[str, ...] = ()
    # Until it is committed: the point of the committed one before it, if there is one.
    before: tuple[RestorePoint, ...] = ()
    # The last failure; empty without one.
    reason: str = ""
    # Rows that this incarnation has published of the pipeline when it is committed: its own, and those before.
    published_rows: int = 0


class CheckpointAcked(Record, frozen=True, kw_only=True):
    """The task's part of a checkpoint is staged."""

    # The checkpoint's id.
    checkpoint: int
    # Where its source goes on.
    position: bytes
    # The output to publish.
    staged: tuple[Staged, ...] = ()
    # Rows read so far.
    rows: int = 0
    # Bytes read so far.
    bytes_read: int = 0


class CheckpointCommitted(Record, frozen=True, kw_only=True):
    """The output of a checkpoint is published."""

    # The checkpoint's id.
    checkpoint: int
    # Rows published.
    rows: int = 0


class CheckpointFailed(Record, frozen=True, kw_only=True):
    """A checkpoint could not be staged or published."""

    # The checkpoint's id.
    checkpoint: int
    # Whether trying again is pointless.
    lasting: bool = False
    # Why.
    reason: str
    # As in the order to publish that it answers.
    tries: int = 0
    # As in the order that it answers.
    conclusive: bool = False


class Cleanup(Record, frozen=True, kw_only=True):
    """The promise to delete all keys and staged leftovers of an ended job. The event's due_at says when."""

    # The incarnation whose keys it may delete; nothing else, ever.
    owner: int
    # The job's terminal state; empty in a promise made again from its key.
    ended: str
    # Tries so far.
    tries: int = 0
    # Workers that may still hold an order to remove staging, to be withdrawn.
    held_by: tuple[str, ...] = ()
    # The last failure; empty without one.
    reason: str = ""


class Pause(Record, frozen=True, kw_only=True):
    """Stop a job's tasks after a checkpoint and keep their place."""

    # Why, for the record.
    reason: str = ""


class Repair(Record, frozen=True, kw_only=True):
    """Correct a stuck entity by an event that says who and why."""

    # The entity, as in the record's key.
    entity: str
    # The state it is moved to.
    to: str
    # Why. It is required.
    reason: str


class TaskPosition(Record, frozen=True, kw_only=True):
    """A position for a task to start from, named explicitly."""

    # The pipeline's number in the job.
    pipeline: int
    # The task's number in the pipeline.
    task: int
    # The position, in the form of its source; empty for the source's beginning.
    position: bytes


class Restore(Record, frozen=True, kw_only=True):
    """Run a job again from a kept position."""

    # The savepoint to start from; empty for the newest committed checkpoint.
    savepoint: str = ""
    # A changed specification as JSON; empty to keep the old one.
    specification: str = ""
    # Positions to start from instead: the explicit way past a position that the source can't serve any more.
    elsewhere: tuple[TaskPosition, ...] = ()


class Resume(Record, frozen=True, kw_only=True):
    """Let a paused job go on."""

    # Why, for the record.
    reason: str = ""


class Stop(Record, frozen=True, kw_only=True):
    """Drain a job: what it has read is published, then it is FINISHED."""

    # Why, for the record.
    reason: str = ""


class Submit(Record, frozen=True, kw_only=True):
    """Run a new job."""

    # The job's specification as JSON.
    specification: str


class TakeSavepoint(Record, frozen=True, kw_only=True):
    """Keep a checkpoint under a name."""

    # The savepoint's name.
    name: str
    # Whether the job ends with it (SAVEPOINTED).
    stop: bool = False


CommandAction = Submit | Cancel | TakeSavepoint | Restore | Stop | Pause | Resume | Repair


class Command(Record, frozen=True, kw_only=True):
    """What a service wants of a job.

    The client chooses the id, so asking again is safe and its outcome is always known.
    """

    # Chosen by the client, unique for the job; a UUID does well.
    id: str
    # The job's id, chosen by the client.
    job: str
    # Who asks: for the audit.
    by: str = ""
    # When it was sent, by the client's clock. Milliseconds since 1970 UTC.
    time: int = 0
    # What is asked for.
    action: CommandAction


class CommitCheckpoint(Record, frozen=True, kw_only=True):
    """Publish the output that the completed checkpoint names.

    It is idempotent by job, incarnation, pipeline and checkpoint, and repeated until reported. One worker does it for
    the whole pipeline, whether it runs a task of it or not.
    """

    # The checkpoint's id.
    checkpoint: int
    # The job's specification as JSON.
    specification: str
    # What to publish, and nothing else.
    staged: tuple[Staged, ...]
    # Which try this is: the answer names it.
    tries: int = 0
    # Whether nobody else can be publishing it any more: that it is not there and can't be is then the last word.
    conclusive: bool = False
    # The process of the worker that this is for, as its heartbeat said.
    instance: str = ""
    # The lease of that process that this is for, as its heartbeat said. A worker that was given up has another one when
    # it is back: what it was told before, others may have been told since.
    lease: int = 0


class Position(Record, frozen=True, kw_only=True):
    """How far an input has been consumed."""

    # The topic, without the prefix.
    topic: str
    # The partition.
    partition: int
    # The next offset to consume.
    offset: int


class Cursor(Record, frozen=True, kw_only=True):
    """The end of every transaction: what the shard has consumed and counted so far.

    A reader acts only on state at such a boundary.
    """

    # How far each input has been consumed.
    positions: tuple[Position, ...]
    # The last incarnation given to a job; it only grows.
    incarnations: int = 0


class DeadLetter(Record, frozen=True, kw_only=True):
    """A record that could not be used, whole, with the reason."""

    # The topic it was on, without the prefix.
    topic: str
    # The partition.
    partition: int
    # The offset; -1 when it is not known.
    offset: int
    # Its key as it was.
    key: bytes | None
    # Its value as it was.
    value: bytes | None
    # Why it could not be used.
    reason: str
    # Who put it aside.
    by: str = ""
    # When. Milliseconds since 1970 UTC.
    time: int = 0


class Deploy(Record, frozen=True, kw_only=True):
    """Run the task's attempt. For an attempt that is active or has ended it changes nothing and is answered again."""

    # The job's specification as JSON.
    specification: str
    # The checkpoint to start from; 0 to start at the beginning.
    checkpoint: int = 0
    # The source's position at that checkpoint.
    position: bytes = b""
    # The lowest checkpoint id that may follow.
    next_checkpoint: int = 1


class Job(Record, frozen=True, kw_only=True):
    """A job, from its submission to its terminal state."""

    # How many pipelines it has.
    pipelines: int
    # When its submission was accepted. Milliseconds since 1970 UTC.
    submitted_at: int
    # When it first ran. Milliseconds since 1970 UTC; 0 before.
    started_at: int = 0
    # When it became terminal. Milliseconds since 1970 UTC; 0 before.
    ended_at: int = 0
    # Restarts used up in the current window of its restart policy.
    restarts: int = 0
    # When that window began. Milliseconds since 1970 UTC; 0 when none is open.
    window_at: int = 0
    # The savepoint it is being ended with; empty without one.
    savepoint: str = ""
    # What it was restored from, in words; empty for a job that began anew.
    origin: str = ""
    # Whether it ends because something of it could not be read or decided: what it published last is then not known.
    quarantined: bool = False
    # Why it is in this state, in a sentence; empty when there is nothing to say.
    reason: str = ""


class Leader(Record, frozen=True, kw_only=True):
    """The leader of a shard: the first record of its reign."""

    # The coordinator's id.
    coordinator: str
    # Its health address, host:port.
    address: str = ""
    # Its software version.
    version: str = ""
    # The process of it.
    instance: str = ""
    # When it resigned: the coordinator that is to lead next; empty for whoever is first.
    successor: str = ""
    # Why it took over, or resigned.
    reason: str = ""
    # From the last sign of life of the leader before to the decision to take over. Milliseconds.
    detect_ms: int = 0
    # How long it took to fence the leader before. Milliseconds.
    fence_ms: int = 0
    # How long it took to read the log to its end after that. Milliseconds.
    replay_ms: int = 0


class Outcome(Record, frozen=True, kw_only=True):
    """The one answer to a command."""

    # SHA-256 of the command's content, hexadecimal: the same id with other content is refused.
    digest: str
    # What the command asked for.
    action: str
    # Who sent it.
    by: str = ""
    # Why it was refused or what it led to.
    reason: str = ""


class Pipeline(Record, frozen=True, kw_only=True):
    """One connected graph of a job; it checkpoints on its own.

    The event's due_at is when its next checkpoint is due.
    """

    # How many tasks it has.
    tasks: int
    # The id of its next checkpoint; it only grows.
    next_checkpoint: int = 1
    # Checkpoints failed in a row.
    failures: int = 0
    # The checkpoint its running attempts started from; 0 for none.
    restored: int = 0
    # Why it is in this state; empty when there is nothing to say.
    reason: str = ""


class ReadyMark(Record, frozen=True, kw_only=True):
    """A task's source is exhausted and the task is ready to close. It holds for the event's attempt only."""

    # The worker that reported it.
    worker: str
    # The source's final position.
    position: bytes = b""


class Savepoint(Record, frozen=True, kw_only=True):
    """A point of every pipeline, kept under a name to restore from."""

    # Its name, chosen by who asked for it.
    name: str
    # When it was asked for. Milliseconds since 1970 UTC.
    begun_at: int
    # For each pipeline, the last checkpoint that had been triggered then: only a later one counts.
    after: tuple[int, ...] = ()
    # The points that are taken, one for each pipeline in the end.
    points: tuple[RestorePoint, ...] = ()
    # When the last point was taken. Milliseconds since 1970 UTC; 0 before.
    kept_at: int = 0
    # Why it was not kept; empty otherwise.
    reason: str = ""


class Specification(Record, frozen=True, kw_only=True):
    """What was submitted, written once so that the job's transitions stay small."""

    # The version of the specification's model.
    format: int
    # The specification as JSON. Secrets are references, never values.
    body: str
    # SHA-256 of the body, hexadecimal.
    digest: str
    # Who submitted it.
    submitted_by: str = ""


class Summary(Record, frozen=True, kw_only=True):
    """What stays listed of an ended job after its cleanup."""

    # When it was submitted. Milliseconds since 1970 UTC.
    submitted_at: int
    # When it ended. Milliseconds since 1970 UTC.
    ended_at: int
    # Rows it published.
    rows: int = 0
    # Checkpoints it committed.
    checkpoints: int = 0
    # Restarts over its whole life.
    restarts: int = 0
    # The ids of the commands it was given: a late copy of one is known by them.
    commands: tuple[str, ...] = ()
    # What it was asked to do, as JSON; empty for a job that has nothing left to go on with.
    specification: str = ""
    # Its newest committed checkpoints, to restore it from; empty for a job that has nothing left to go on with.
    points: tuple[RestorePoint, ...] = ()
    # Its savepoints.
    savepoints: tuple[Savepoint, ...] = ()
    # Why it ended so.
    reason: str = ""


class Task(Record, frozen=True, kw_only=True):
    """One parallel instance of a pipeline. Its attempt is the event's."""

    # The worker it is placed on; empty while it waits for room.
    worker: str = ""
    # The process of that worker.
    instance: str = ""
    # When it entered this state. Milliseconds since 1970 UTC.
    since: int = 0
    # Rows it has read up to its last report.
    rows: int = 0
    # Bytes it has read up to its last report.
    bytes_read: int = 0
    # Workers that refused this attempt for want of room.
    refused_by: tuple[str, ...] = ()
    # Workers that may still hold an order for this task, to be withdrawn.
    held_by: tuple[str, ...] = ()
    # Why it is in this state; empty when there is nothing to say.
    reason: str = ""


class Worker(Record, frozen=True, kw_only=True):
    """A shard's verdict on a worker."""

    # The worker process it is about; a restart is a new instance.
    instance: str = ""
    # When it was last heard, by the leader's clock. Milliseconds since 1970 UTC.
    heard_at: int = 0
    # Why the verdict.
    reason: str = ""


EventState = (
    Job
    | Specification
    | Pipeline
    | Task
    | ReadyMark
    | Ack
    | Checkpoint
    | Cleanup
    | Outcome
    | Leader
    | Cursor
    | Worker
    | Summary
    | Savepoint
)


class Event(Record, frozen=True, kw_only=True):
    """The envelope of all events: one transition of one entity, and the entity's whole state after it.

    The order of the first fields is part of the format: readers see epoch, logic version, incarnation, attempt and
    deadline without decoding the rest.
    """

    # The reign of the leader that wrote it. A record of a lower epoch than one before it is void.
    epoch: int
    # The version of the decision logic that wrote it. A coordinator with older logic does not lead over it.
    logic: int
    # Which job of this id it belongs to: from the shard's own sequence, it only grows. 0 where the entity belongs to no
    # job.
    incarnation: int
    # The task's attempt; 0 where the entity is no task.
    attempt: int
    # When the entity wants to be looked at again (a deadline). Milliseconds since 1970 UTC; 0 when it waits for nothing
    # in time.
    due_at: int
    # The event's number in its shard. With the shard it is the event's id.
    sequence: int
    # When it was decided, by the leader's clock. Milliseconds since 1970 UTC.
    time: int
    # The entity, as in the record's key.
    entity: str
    # The transition's name, as in the life-cycle tables.
    transition: str
    # The entity's state before; empty when it did not exist.
    from_: str = msgspec.field(name="from")
    # The entity's state after.
    to: str
    # The job it belongs to; empty where it belongs to none.
    job: str
    # Why.
    cause: Cause
    # What else is known of the entity after the transition; the branch names the kind of entity.
    state: EventState


class TaskProgress(Record, frozen=True, kw_only=True):
    """One running task in a heartbeat."""

    # Which job of this id.
    incarnation: int
    # The job's id.
    job: str
    # The pipeline's number in the job.
    pipeline: int
    # The task's number in the pipeline.
    task: int
    # The attempt.
    attempt: int
    # Rows read so far.
    rows: int = 0
    # Bytes read so far.
    bytes_read: int = 0
    # When it last progressed. Milliseconds since 1970 UTC.
    progressed_at: int = 0


class Heartbeat(Record, frozen=True, kw_only=True):
    """A worker says that it lives, what room it has and what it runs."""

    # The worker's id.
    worker: str
    # This process of it; a restart is a new instance.
    instance: str
    # Where it runs.
    host: str = ""
    # Its software version.
    version: str = ""
    # When, by the worker's clock. Milliseconds since 1970 UTC.
    time: int
    # Tasks it can run at once.
    slots: int
    # What placement may ask for.
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    # Whether it wants no new tasks.
    draining: bool = False
    # What it runs.
    tasks: tuple[TaskProgress, ...] = ()
    # Which of its leases this is: the next begins when Kafka is reached again after one ran out.
    lease: int = 0


class RemoveStaging(Record, frozen=True, kw_only=True):
    """Remove what the ended job left in staging: idempotent, repeated until reported."""

    # The job's specification as JSON.
    specification: str


class StopTask(Record, frozen=True, kw_only=True):
    """Stop the attempt. Cancelling is not fencing: what it still writes is never published."""

    # Why, for the record.
    reason: str = ""


class TriggerCheckpoint(Record, frozen=True, kw_only=True):
    """Finish the slice and acknowledge position and all output staged since the last completed checkpoint."""

    # The checkpoint's id.
    checkpoint: int
    # The last completed checkpoint; 0 for none. Output acknowledged up to it is not acknowledged again.
    completed: int = 0
    # As in Checkpoint.
    purpose: str = "PERIODIC"


OrderAction = Deploy | TriggerCheckpoint | CommitCheckpoint | StopTask | RemoveStaging


class Order(Record, frozen=True, kw_only=True):
    """What the coordinator wants of a worker for one task."""

    # The reign of the leader that gave it. A lower one than the worker has seen for the job is void.
    epoch: int
    # Which job of this id.
    incarnation: int
    # The job's id.
    job: str
    # The pipeline's number in the job.
    pipeline: int
    # The task's number in the pipeline.
    task: int
    # The attempt it is about.
    attempt: int
    # The worker it is for.
    worker: str
    # When it was decided. Milliseconds since 1970 UTC.
    time: int
    # What is wanted.
    action: OrderAction


class StagingFailed(Record, frozen=True, kw_only=True):
    """What a job has in staging could not be removed. It is tried again."""

    # What went wrong.
    reason: str


class StagingRemoved(Record, frozen=True, kw_only=True):
    """Nothing of the job is left in staging."""

    # Pieces removed.
    removed: int = 0


class TaskFailed(Record, frozen=True, kw_only=True):
    """The attempt ended with an error."""

    # Whether a new attempt is pointless (a position that the source can't serve, a specification that can't work).
    lasting: bool = False
    # What went wrong.
    reason: str


class TaskFinished(Record, frozen=True, kw_only=True):
    """The attempt has done all its work."""

    # Rows read in all.
    rows: int = 0
    # Bytes read in all.
    bytes_read: int = 0


class TaskReady(Record, frozen=True, kw_only=True):
    """Its source is exhausted."""

    # The source's final position.
    position: bytes = b""


class TaskRefused(Record, frozen=True, kw_only=True):
    """The worker does not take the attempt."""

    # Why: no room, a stale attempt, a label that does not fit.
    reason: str


class TaskRunning(Record, frozen=True, kw_only=True):
    """The attempt runs; also the answer to a deploy of an attempt that already does."""

    # When it started. Milliseconds since 1970 UTC.
    started_at: int = 0


class TaskStalled(Record, frozen=True, kw_only=True):
    """The attempt is alive but makes no progress."""

    # When it last progressed. Milliseconds since 1970 UTC.
    progressed_at: int
    # What it was doing.
    reason: str = ""


class TaskStopped(Record, frozen=True, kw_only=True):
    """The attempt has stopped because it was told to or because it was fenced."""

    # Why.
    reason: str = ""


ReportHappening = (
    TaskRunning
    | TaskReady
    | CheckpointAcked
    | CheckpointCommitted
    | CheckpointFailed
    | TaskFinished
    | TaskFailed
    | TaskStopped
    | TaskRefused
    | TaskStalled
    | StagingRemoved
    | StagingFailed
)


class Report(Record, frozen=True, kw_only=True):
    """What a worker says of one task's attempt."""

    # Which job of this id.
    incarnation: int
    # The job's id.
    job: str
    # The pipeline's number in the job.
    pipeline: int
    # The task's number in the pipeline.
    task: int
    # The attempt it is about.
    attempt: int
    # The worker that says so.
    worker: str
    # When, by the worker's clock. Milliseconds since 1970 UTC.
    time: int
    # What happened.
    happening: ReportHappening
