"""What can be asked of the states of all shards at one moment: lists, jobs, workers, leaders. The same questions of now
(`coordinator/read_model.py`) and of any moment in the past (`coordinator/past.py`).

Touches no broker and changes nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.cluster_viewing import MOST_TAKEOVERS, coordinator_view, shard_view, takeover_view, worker_views
from coordinator.job_index import JobIndex, Listed
from coordinator.lines import Lines
from coordinator.soft_reading import FORGET_MS, SoftReading
from coordinator.state import State
from coordinator.viewing import NOTHING, Heard, checkpoint_views, command_views, ended_view, job_detail, job_view
from coordinator.views import (
    CheckpointView,
    ClusterView,
    CommandView,
    CoordinatorView,
    JobDetail,
    JobView,
    Page,
    ShardView,
    TakeoverView,
    WorkerView,
)
from events.keys import shard_of
from events.records import Event, Leader


@dataclass(frozen=True)
class Answers:
    """`soft` is None in the past: what workers said then is not on the log."""

    states: Sequence[State]
    index: JobIndex
    at: int
    offsets: Sequence[int]
    elections: Sequence[Sequence[Event]]
    soft: SoftReading | None = None
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    lease_ms: int = 0
    lines: Lines = field(default_factory=Lines)  # whoever moves the states drops those of jobs that change

    def state_of(self, job: str) -> State:
        return self.states[shard_of(job, len(self.states))]

    @property
    def _heard(self) -> Heard:
        return self.soft.progress if self.soft else NOTHING

    def jobs(
        self, states: Iterable[str] = (), search: str = "", start: int = 0, limit: int = 50, *, unhealthy: bool = False
    ) -> Page[JobView]:
        """A page of all jobs, newest first. `states` are states of the life cycle, or `running`, or `ended`."""
        if unhealthy:
            names = sorted(name for name in self.unhealthy if search in name)
            found, total = [Listed(0, n, self.index.newest(n)) for n in names[start : start + limit]], len(names)
        else:
            found, total = self.index.find(states, search, start, limit)
        items = tuple(view for each in found if (view := self._line(each)) is not None)
        return Page(items=items, total=total, start=start, counts=self.index.counts())

    def _line(self, listed: Listed) -> JobView | None:
        kept = self.lines.get(listed.job, listed.incarnation, self.at, unhealthy=listed.job in self.unhealthy)
        if kept is not None:  # since when the job has not changed
            return kept
        state = self.state_of(listed.job)
        job = state.jobs.get(listed.job)
        if job is not None and job.event is not None and job.event.incarnation == listed.incarnation:
            found = job_view(state, listed.job, self.at, self._heard)
            if found is not None:
                self.lines.put(found, self.at)
            return found
        summary = state.summaries.get(listed.job, {}).get(listed.incarnation)
        return ended_view(state, summary) if summary is not None else None

    def job(self, name: str, incarnation: int = 0) -> JobDetail | None:
        """All about a job, by default of the newest incarnation; None where there is none of this id."""
        return job_detail(self.state_of(name), name, self.at, self._heard, incarnation)

    def job_line(self, name: str) -> JobView | None:
        newest = self.index.newest(name)
        return self._line(Listed(0, name, newest)) if newest else None

    def checkpoints(self, name: str) -> list[CheckpointView]:
        """Those that the state knows: of each pipeline the newest completed one and the one in flight."""
        return checkpoint_views(self.state_of(name), name, self.at)

    def commands(self, name: str) -> list[CommandView]:
        return list(command_views(self.state_of(name), name))

    def workers(self) -> list[WorkerView]:
        heard = self.soft.workers_since(self.at - FORGET_MS) if self.soft else None
        return worker_views(self.states, heard, self.at, self.lease_ms)

    def coordinators(self) -> list[CoordinatorView]:
        beats = self.soft.beats if self.soft else {}
        known = [(beat, at) for _, (beat, at) in sorted(beats.items()) if self.at - at <= FORGET_MS]
        return [coordinator_view(beat, at, self.at) for beat, at in known]

    def shards(self) -> list[ShardView]:
        beats = self.soft.living_beats(self.at, self.lease_ms) if self.soft else []
        return [
            shard_view(state, self.takeovers(state.shard), beats, offset)
            for state, offset in zip(self.states, self.offsets, strict=True)
        ]

    def takeovers(self, shard: int) -> list[TakeoverView]:
        """The last elections of the shard, oldest first."""
        found, before = list[TakeoverView](), ""
        took = self.soft.first_commits if self.soft else {}
        for event in self.elections[shard]:
            if event.to == "LEADING" and isinstance(event.state, Leader):
                found.append(takeover_view(shard, event, before, took.get((shard, event.epoch), 0)))
                before = event.state.coordinator
        return found[-MOST_TAKEOVERS:]

    def cluster(self) -> ClusterView:
        return ClusterView(
            at=self.at,
            shards=tuple(self.shards()),
            coordinators=tuple(self.coordinators()),
            workers=tuple(self.workers()),
            jobs=self.index.counts(),
            unhealthy=len(self.unhealthy),
        )

    def rows_per_second(self) -> float:
        """Of all that runs, by what workers said last; 0 in the past."""
        return self.soft.rate(self.at, self.lease_ms) if self.soft else 0.0

    def near(self, name: str, limit: int = 3) -> list[str]:
        """Ids that look like this one, for who mistyped it."""
        names = self.index.names()
        begun = [each for each in names if each.startswith(name)][:limit]
        return begun or difflib.get_close_matches(name, names, limit, 0.5)
