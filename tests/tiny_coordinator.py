"""A coordinator small enough to see through, for tests of workers: one job with one pipeline, from its deployment to
the removal of its staging. It orders as the real one does, repeats what is not answered and never forgets.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from events import records as r
from workers.happenings import Withdrawn

REPEAT_S = 0.5
COMMIT_TASK = STAGING = -1


@dataclass
class TinyCoordinator:
    specification: str
    tasks: int
    give: Callable[[r.Order | Withdrawn], None]
    worker: str = "w1"
    job: str = "job"
    incarnation: int = 1
    interval_s: float = 0.1

    attempts: dict[int, int] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    positions: dict[int, bytes] = field(default_factory=dict)
    checkpoint: int = 0  # the last one triggered
    completed: int = 0
    purpose: str = ""  # of the one in flight; empty for none
    acks: dict[int, r.CheckpointAcked] = field(default_factory=dict)
    staged: tuple[r.Staged, ...] | None = None  # of the completed one, while it is not committed
    committed: list[int] = field(default_factory=list)
    finishing: bool = False
    removed: bool = False
    restarts: int = 0
    heard: list[r.Report] = field(default_factory=list)
    _repeat_at: float = 0.0
    _trigger_at: float = 0.0

    # Orders ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        for task in range(self.tasks):
            self.positions[task] = b""
            self.deploy(task)

    def order(self, action: r.OrderAction, task: int, attempt: int = 0, pipeline: int = 0) -> None:
        self.give(
            r.Order(
                epoch=1, incarnation=self.incarnation, job=self.job, pipeline=pipeline, task=task, attempt=attempt,
                worker=self.worker, time=0, action=action,
            )
        )  # fmt: skip

    def deploy(self, task: int) -> None:
        """A new attempt, from where the last completed checkpoint has come to."""
        self.attempts[task] = self.attempts.get(task, 0) + 1
        self.states[task] = "DEPLOYING"
        self._deploy(task)

    def _deploy(self, task: int) -> None:
        action = r.Deploy(
            specification=self.specification,
            checkpoint=self.completed,
            position=self.positions[task],
            next_checkpoint=self.checkpoint + 1,
        )
        self.order(action, task, self.attempts[task])

    def tend(self) -> None:
        """To be called again and again: what is due, and what has not been answered."""
        now = time.monotonic()
        running = all(state in ("RUNNING", "READY") for state in self.states.values())
        if running and not self.purpose and self.staged is None and not self.finishing and now >= self._trigger_at:
            ready = all(state == "READY" for state in self.states.values())
            self.checkpoint += 1
            self.purpose, self.acks = "FINAL" if ready else "PERIODIC", {}
            self._repeat_at = 0.0
        if now < self._repeat_at:
            return
        self._repeat_at = now + REPEAT_S
        if self.finishing:
            self._remove()
        if self.staged is not None:
            self._commit()
        for task, state in self.states.items():
            if state == "DEPLOYING":
                self._deploy(task)
            elif self.purpose and task not in self.acks:
                trigger = r.TriggerCheckpoint(
                    checkpoint=self.checkpoint, completed=self.completed, purpose=self.purpose
                )
                self.order(trigger, task, self.attempts[task])

    def _commit(self) -> None:
        assert self.staged is not None
        action = r.CommitCheckpoint(checkpoint=self.completed, specification=self.specification, staged=self.staged)
        self.order(action, COMMIT_TASK)

    def _remove(self) -> None:
        for task, state in self.states.items():
            if state != "ENDED":
                self.order(r.StopTask(reason="finished"), task, self.attempts[task])
        if not self.removed:
            self.order(r.RemoveStaging(specification=self.specification), COMMIT_TASK, pipeline=STAGING)

    # Reports ---------------------------------------------------------------------------------------------------------

    def hear(self, report: r.Report) -> None:
        self.heard.append(report)
        said, task = report.happening, report.task
        if report.job != self.job or report.incarnation != self.incarnation:
            return
        if isinstance(said, r.CheckpointCommitted):
            self._committed(said)
        elif isinstance(said, r.StagingRemoved):
            self.removed = True
        elif self.attempts.get(task) != report.attempt:
            return
        elif isinstance(said, r.TaskRunning) and self.states[task] == "DEPLOYING":
            self.states[task] = "RUNNING"
        elif isinstance(said, r.TaskReady):
            self.states[task] = "READY"
        elif isinstance(said, r.CheckpointAcked) and self.purpose and said.checkpoint == self.checkpoint:
            self._acked(task, said)
        elif isinstance(said, r.CheckpointFailed):
            self.purpose = ""
        elif isinstance(said, r.TaskFailed | r.TaskStopped):
            self._ended(task)

    def _acked(self, task: int, said: r.CheckpointAcked) -> None:
        self.acks[task] = said
        if len(self.acks) == self.tasks:
            self.completed = self.checkpoint
            self.positions = {number: ack.position for number, ack in self.acks.items()}
            self.staged = tuple(piece for _, ack in sorted(self.acks.items()) for piece in ack.staged)
            self._repeat_at = 0.0

    def _committed(self, said: r.CheckpointCommitted) -> None:
        if self.staged is None or said.checkpoint != self.completed:
            return
        self.committed.append(said.checkpoint)
        self.finishing, self.purpose, self.staged = self.purpose == "FINAL", "", None
        self._trigger_at = time.monotonic() + self.interval_s
        self.give(Withdrawn(self.job, 0, COMMIT_TASK))

    def _ended(self, task: int) -> None:
        if self.states[task] == "ENDED":
            return
        self.give(Withdrawn(self.job, 0, task))
        if self.finishing:
            self.states[task] = "ENDED"
            return
        self.restarts += 1
        if self.staged is None:
            self.purpose = ""  # the one in flight is given up; what others have staged for it comes with the next
        self.deploy(task)

    @property
    def done(self) -> bool:
        return self.removed and all(state == "ENDED" for state in self.states.values())
