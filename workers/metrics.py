"""What a worker counts, for Prometheus. Labels are bounded: phases, kinds, outcomes; never a job's name."""

from __future__ import annotations

from collections import Counter as Tally

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from workers.ledger import Ledger, Phase

LATENCIES = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Metrics:
    """Safe for several threads, but for `measure`, which reads the ledger: only the thread that decides calls it."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, says: str, *labels: str) -> Counter:
            return Counter(f"detent_worker_{name}", says, labels, registry=registry)

        def gauge(name: str, says: str, *labels: str) -> Gauge:
            return Gauge(f"detent_worker_{name}", says, labels, registry=registry)

        self.tasks = gauge("tasks", "Attempts that the worker holds, by phase", "phase")
        self.slots = gauge("slots", "Attempts that it runs at most")
        self.publishing = gauge("publishing", "Checkpoints that it is publishing")
        self.ledger_entries = gauge("ledger_entries", "Entries of its ledger")
        self.silent = gauge("kafka_silent_seconds", "Since Kafka last acknowledged something")
        self.orders_position = gauge("orders_position", "The next order that it follows, as an offset")
        self.starts = counter("starts", "Attempts that were started")
        self.orders = counter("orders", "Orders for this worker, by what they ask", "action")
        self.orders_of_others = counter("orders_of_others", "Orders that were passed over")
        self.ignored = counter("ignored", "Orders and happenings that led to nothing, by kind", "kind")
        self.dead_letters = counter("dead_letters", "Orders that could not be read and were put aside")
        self.reports = counter("reports", "Reports sent, by kind", "kind")
        self.reports_unsent = counter("reports_unsent", "Reports that did not get to Kafka, by reason", "reason")
        self.heartbeats = counter("heartbeats", "Heartbeats, by outcome", "outcome")
        self.publications = counter("publications", "Publications of checkpoints, by outcome", "outcome")
        self.lease_losses = counter("lease_losses", "How often Kafka was not reached for longer than the lease")
        self.write_seconds = Histogram(
            "detent_worker_ledger_write_seconds",
            "Time to make a decision durable",
            buckets=LATENCIES,
            registry=registry,
        )

    def page(self) -> bytes:
        return bytes(generate_latest(self.registry))

    def measure(self, ledger: Ledger, entries: int, position: int, now_ms: int) -> None:
        phases = Tally(held.phase for held in ledger.tasks.values())
        for phase in Phase:
            self.tasks.labels(phase.value).set(phases[phase])
        self.publishing.set(sum(1 for publication in ledger.publications.values() if publication.publishing))
        self.ledger_entries.set(entries)
        self.orders_position.set(position)
        self.silent.set((now_ms - ledger.reached_at) / 1000)
