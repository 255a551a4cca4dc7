"""The Python client: publishes commands, and awaits from the log what became of them.

    with Client("broker:9092") as client:
        client.submit(Job("hello").source("in", "generator", rows=1000).sink("out", "files", path="/data/hello"))
        print(client.wait("hello").state)  # FINISHED

Every command has an id. Whoever got no answer, for whatever reason, asks again with the same id and gets the one answer
that there is. Any thread may use a client.
"""

from __future__ import annotations

import getpass
import socket
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from coordinator.lifecycle import TERMINAL_JOB
from detent.jobs import Job
from events.asking import PATIENCE_S, Answer, Asker, shards_of
from events.cluster import Cluster
from events.codec import Codec
from events.embedded import EmbeddedBroker
from events.errors import DetentError
from events.follower import Follower
from events.keys import named, shard_of
from events.records import (
    Cancel,
    Command,
    CommandAction,
    Event,
    Pause,
    Repair,
    Restore,
    Resume,
    Stop,
    Submit,
    Summary,
    TakeSavepoint,
    TaskPosition,
)
from events.records import Job as JobState
from events.recovery import now_ms
from events.schema_topic import shared_codec
from events.table import Table

POLL_S = 0.1


@dataclass(eq=False)
class CommandRefused(DetentError):
    """The coordinator has decided not to do it. The refusal is on the log."""

    answer: Answer

    def message(self) -> str:
        return f"{self.answer.action} of job {self.answer.job} was refused: {self.answer.reason}."


@dataclass(eq=False)
class NoSuchJob(DetentError):
    job: str

    def message(self) -> str:
        return f"there is no job {self.job}, nor has one ended within its history. `detent jobs` lists those there are."


@dataclass(eq=False)
class StillGoing(DetentError):
    """Waiting was given up; the job goes on."""

    job: str
    state: str
    waited_s: float

    def message(self) -> str:
        return (
            f"job {self.job} is still {self.state} after {self.waited_s:g} s; it goes on. `detent explain` tells why."
        )


class Ended(NamedTuple):
    """How a job ended."""

    job: str
    incarnation: int
    state: str
    reason: str
    ended_at: int


def whoever_this_is() -> str:
    """Who asks, for the audit, unless they say otherwise."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a process without a user of its own
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


class Client:
    """Speaks to one Detent. Without `bootstrap_servers` it uses the embedded broker of `state_dir`."""

    def __init__(
        self,
        bootstrap_servers: str = "",
        *,
        topic_prefix: str = "detent",
        properties: Mapping[str, str | int | float | bool] | None = None,
        state_dir: Path | str | None = None,
        by: str = "",
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`properties` are the Kafka client's own (TLS, SASL); `by` is who asks, for the audit; `patience_s` is how
        long an outcome is waited for."""
        self._held = ExitStack()
        self.by, self.patience_s = by or whoever_this_is(), patience_s
        try:
            if not bootstrap_servers:
                bootstrap_servers = self._held.enter_context(EmbeddedBroker(state_dir)).bootstrap_servers
            self._connect(Cluster(bootstrap_servers, topic_prefix, properties=properties or {}))
        except BaseException:
            self._held.close()
            raise

    @classmethod
    def on(cls, cluster: Cluster, *, by: str = "", patience_s: float = PATIENCE_S) -> Client:
        """For whoever has a cluster at hand."""
        made = cls.__new__(cls)
        made._held, made.by, made.patience_s = ExitStack(), by or whoever_this_is(), patience_s
        made._connect(cluster)
        return made

    def _connect(self, cluster: Cluster) -> None:
        """The topics know how many shards there are."""
        shards = shards_of(cluster)
        self.cluster = Cluster(cluster.bootstrap_servers, cluster.prefix, shards, cluster.properties)
        self.codec: Codec = shared_codec(self.cluster)
        self._asker = Asker(self.cluster, self.codec)

    def close(self) -> None:
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Commands --------------------------------------------------------------------------------------------------------

    def submit(self, job: Job | Path | str, *, name: str = "", command_id: str = "") -> Answer:
        """Run a new job: one built in Python, or a job file. Raises JobRefused or JobFileError before anything is
        sent, CommandRefused when there is a job of that name."""
        built = job if isinstance(job, Job) else Job.from_file(job)
        return self.ask(name or built.name, Submit(specification=built.body), command_id)

    def cancel(self, job: str, reason: str = "", *, command_id: str = "") -> Answer:
        """End a job now; output that no completed checkpoint names is discarded."""
        return self.ask(job, Cancel(reason=reason), command_id)

    def savepoint(self, job: str, name: str, *, stop: bool = False, command_id: str = "") -> Answer:
        """Keep a checkpoint under a name; with `stop` the job ends with it."""
        return self.ask(job, TakeSavepoint(name=name, stop=stop), command_id)

    def restore(
        self,
        job: str,
        savepoint: str = "",
        *,
        specification: Job | Path | str | None = None,
        elsewhere: Mapping[tuple[int, int], bytes] | None = None,
        command_id: str = "",
    ) -> Answer:
        """Run an ended job again: from a savepoint, or from its newest committed checkpoint. `elsewhere` gives tasks
        (pipeline, task) positions of your own: the explicit way past one that the source no longer has."""
        body = ""
        if specification is not None:
            body = (specification if isinstance(specification, Job) else Job.from_file(specification)).body
        moved = tuple(
            TaskPosition(pipeline=pipeline, task=task, position=position)
            for (pipeline, task), position in sorted((elsewhere or {}).items())
        )
        return self.ask(job, Restore(savepoint=savepoint, specification=body, elsewhere=moved), command_id)

    def stop(self, job: str, reason: str = "", *, command_id: str = "") -> Answer:
        """Drain a job: what it has read is published, then it is FINISHED."""
        return self.ask(job, Stop(reason=reason), command_id)

    def pause(self, job: str, reason: str = "", *, command_id: str = "") -> Answer:
        """Stop a job's tasks after a checkpoint and keep their place."""
        return self.ask(job, Pause(reason=reason), command_id)

    def resume(self, job: str, reason: str = "", *, command_id: str = "") -> Answer:
        """Let a paused job go on."""
        return self.ask(job, Resume(reason=reason), command_id)

    def repair(self, job: str, entity: str, to: str, reason: str, *, command_id: str = "") -> Answer:
        """Correct a stuck entity, by an event that says who and why."""
        return self.ask(job, Repair(entity=entity, to=to, reason=reason), command_id)

    def ask(self, job: str, action: CommandAction, command_id: str = "") -> Answer:
        """Any command. With an id that was used before, its first answer comes back and nothing is done twice.
        Raises CommandRefused, and NotAnswered when no coordinator decides in time."""
        chosen = command_id or uuid.uuid4().hex
        command = Command(id=chosen, job=job, by=self.by, time=now_ms(), action=action)
        answer = self._asker.ask(command, again=bool(command_id), patience_s=self.patience_s)
        if answer.state == "REFUSED":
            raise CommandRefused(answer)
        return answer

    def outcome(self, job: str, command_id: str) -> Answer | None:
        """What became of a command; None when nothing has yet, or when its history is over."""
        return self._asker.outcome(job, command_id)

    # Waiting ---------------------------------------------------------------------------------------------------------

    def wait(self, job: str, *, incarnation: int = 0, timeout_s: float | None = None) -> Ended:
        """Wait until a job has ended: this incarnation of it, or the newest. Raises NoSuchJob, StillGoing."""
        shard = shard_of(job, self.cluster.shards)
        follower = Follower(self.cluster, Table("events", shard, self.codec))
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            follower.catch_up()
            while True:
                state, ended = _end_of(follower.table, job, incarnation)
                if ended is not None:
                    return ended
                if not state and not incarnation:
                    raise NoSuchJob(job)
                if deadline is not None and time.monotonic() > deadline:
                    raise StillGoing(job, state or "not there", timeout_s or 0)
                follower.advance(POLL_S)
        finally:
            follower.close()


def _end_of(table: Table, job: str, incarnation: int) -> tuple[str, Ended | None]:
    """The job's state, empty where there is none, and its end if it has ended."""
    event = table.read(named("job", job).key)
    if event is not None and event.incarnation >= incarnation and isinstance(event.state, JobState):
        if event.to not in TERMINAL_JOB:
            return event.to, None
        return event.to, Ended(job, event.incarnation, event.to, event.state.reason, event.state.ended_at)
    prefix = named("summary", job, 0).key[:-1]
    keys = [key for key in table.values if key.startswith(prefix)]
    listed = [found for key in keys if (found := table.read(key)) is not None]
    newest: Event | None = max(listed, key=lambda found: found.incarnation, default=None)
    if newest is None or newest.incarnation < incarnation or not isinstance(newest.state, Summary):
        return "", None
    state, _, reason = newest.state.reason.partition(": ")
    return state, Ended(job, newest.incarnation, state, reason, newest.state.ended_at)
