"""What a coordinator counts, for Prometheus. Labels are bounded: shards, topics, kinds; never a job's name, except for
the jobs whose checkpoint is oldest, and of those only so many."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.draft import Gone
from events.records import Event
from events.recovery import now_ms

MOST_JOBS = 50
LATENCIES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 20_000)
PHASES = ("detect", "fence", "replay", "first_commit")


class Metrics(Collector):
    """Counts. Safe for several threads."""

    def __init__(self, now_ms: Callable[[], int] = now_ms) -> None:
        self.registry = registry = CollectorRegistry()
        self._now_ms = now_ms
        self._checkpointed: dict[int, list[tuple[int, str]]] = {}  # by shard: when, which job
        registry.register(self)
        self.leading = Gauge("detent_leading", "1 where this process leads the shard", ["shard"], registry=registry)
        self.epoch = Gauge("detent_epoch", "The reign that the shard is in", ["shard"], registry=registry)
        self.takeovers = Counter("detent_takeovers", "Shards taken over by this process", ["shard"], registry=registry)
        self.takeover_seconds = Histogram("detent_takeover_seconds", "Time of a takeover by phase", ["phase"],
                                          buckets=LATENCIES, registry=registry)  # fmt: skip
        self.last_takeover = Gauge("detent_last_takeover_seconds", "Time of the last takeover by phase",
                                   ["shard", "phase"], registry=registry)  # fmt: skip
        self.replay_seconds = Gauge("detent_replay_seconds", "Time that the shard's replay took at the start",
                                    ["shard"], registry=registry)  # fmt: skip
        self.replayed = Gauge("detent_replayed_records", "Records read at the start", ["shard"], registry=registry)
        self.inputs = Counter("detent_inputs", "Inputs decided on", ["shard"], registry=registry)
        self.events = Counter("detent_events", "Events written", ["shard"], registry=registry)
        self.transitions = Counter("detent_transitions", "Events by kind of entity and transition",
                                   ["kind", "transition"], registry=registry)  # fmt: skip
        self.orphaned = Gauge("detent_orphans", "Jobs of which parts are left, as the last sweep counted them; to be 0",
                              ["shard"], registry=registry)  # fmt: skip
        self.transactions = Counter("detent_transactions", "Transactions committed", ["shard"], registry=registry)
        self.aborts = Counter("detent_transactions_aborted", "Transactions aborted", ["shard"], registry=registry)
        self.group_size = Histogram("detent_group_events", "Events in a transaction", buckets=SIZES, registry=registry)
        self.commit_seconds = Histogram("detent_commit_seconds", "Time from decision to durable", buckets=LATENCIES,
                                        registry=registry)  # fmt: skip
        self.notes = Counter("detent_ignored", "Inputs that led to nothing: late reports, and others",
                             ["shard", "kind"], registry=registry)  # fmt: skip
        self.dead = Counter("detent_dead_letters", "Records put aside", ["shard", "topic"], registry=registry)
        self.quarantines = Counter("detent_quarantined_jobs", "Jobs that could not be decided on", ["shard"],
                                   registry=registry)  # fmt: skip
        self.mirror_lag = Gauge("detent_mirror_lag_records", "Keys not yet in the mirror", ["shard"], registry=registry)
        self.mirror_failed = Gauge("detent_mirror_failed", "1 where the mirror can't be written", ["shard"],
                                   registry=registry)  # fmt: skip

    def page(self) -> bytes:
        return bytes(generate_latest(self.registry))

    def transaction(self, shard: int, inputs: int, events: Sequence[Event | Gone], took_s: float) -> None:
        name = str(shard)
        self.inputs.labels(name).inc(inputs)
        self.events.labels(name).inc(len(events))
        self.transactions.labels(name).inc()
        self.group_size.observe(len(events))
        self.commit_seconds.observe(took_s)
        kinds = Tally((e.entity.split("/", 1)[0], getattr(e, "transition", "deleted")) for e in events)
        for (kind, transition), count in kinds.items():
            self.transitions.labels(kind, transition).inc(count)

    def swept(self, shard: int, orphans: int, checkpointed: list[tuple[int, str]]) -> None:
        self.orphaned.labels(str(shard)).set(orphans)
        self._checkpointed[shard] = checkpointed

    def ignored(self, shard: int, notes: Sequence[str]) -> None:
        late = sum(note.startswith("late") for note in notes)
        self.notes.labels(str(shard), "late").inc(late)
        self.notes.labels(str(shard), "other").inc(len(notes) - late)

    def dead_letter(self, shard: int, topic: str) -> None:
        self.dead.labels(str(shard), topic).inc()

    def aborted(self, shard: int) -> None:
        self.aborts.labels(str(shard)).inc()

    def quarantined(self, shard: int) -> None:
        self.quarantines.labels(str(shard)).inc()

    def took_over(self, shard: int, epoch: int, phases: dict[str, float]) -> None:
        name = str(shard)
        self.takeovers.labels(name).inc()
        self.leads(shard, epoch)
        for phase, seconds in phases.items():
            self.takeover_seconds.labels(phase).observe(seconds)
            self.last_takeover.labels(name, phase).set(seconds)

    def leads(self, shard: int, epoch: int, yes: bool = True) -> None:
        if not yes:
            self._checkpointed.pop(shard, None)
        self.leading.labels(str(shard)).set(1 if yes else 0)
        self.epoch.labels(str(shard)).set(epoch)

    def watch_mirror(self, shard: int, lag: Callable[[], int], failed: Callable[[], bool]) -> None:
        self.mirror_lag.labels(str(shard)).set_function(lag)
        self.mirror_failed.labels(str(shard)).set_function(lambda: 1.0 if failed() else 0.0)

    def collect(self) -> Iterable[Metric]:
        """Seconds since the last checkpoint, of the jobs for which that is longest."""
        found = GaugeMetricFamily(
            "detent_seconds_since_checkpoint", f"Of the {MOST_JOBS} jobs with the oldest checkpoint", labels=["job"]
        )
        now = self._now_ms()
        oldest = sorted(each for checkpointed in list(self._checkpointed.values()) for each in checkpointed)
        for at, job in oldest[:MOST_JOBS]:
            found.add_metric([job], max(0, now - at) / 1000)
        yield found
