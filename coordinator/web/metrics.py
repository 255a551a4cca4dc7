"""What the web's process counts, for Prometheus: requests, live connections, and the jobs as the log has them. Labels
are bounded: never a job's name, except for the jobs whose checkpoint is oldest, and of those only so many."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.web.window import Window

LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)


class WebMetrics(Collector):
    def __init__(self, window: Window) -> None:
        self.registry = registry = CollectorRegistry()
        self._window = window
        self.requests = Counter("detent_web_requests", "Requests by address and status", ["route", "status"],
                                registry=registry)  # fmt: skip
        self.seconds = Histogram("detent_web_request_seconds", "Time to the answer", ["route"], buckets=LATENCIES,
                                 registry=registry)  # fmt: skip
        self.live = Gauge("detent_web_live_connections", "Open live views", registry=registry)
        registry.register(self)

    def page(self) -> bytes:
        return bytes(generate_latest(self.registry))

    def answered(self, route: str, status: int, took_s: float) -> None:
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(took_s)

    def collect(self) -> Iterable[Metric]:
        """What the log says. An ended job is never among those that run."""
        ready = GaugeMetricFamily("detent_web_ready", "1 when the log is read and followed")
        ready.add_metric([], 1.0 if self._window.is_open else 0.0)
        yield ready
        if not self._window.is_open:
            return
        model = self._window.model
        jobs = GaugeMetricFamily("detent_jobs", "Jobs by state", labels=["state"])
        for state, count in model.jobs(limit=0).counts.items():
            jobs.add_metric([state], count)
        yield jobs
        unhealthy = GaugeMetricFamily("detent_unhealthy_jobs", "Jobs that are not well")
        unhealthy.add_metric([], len(model.unhealthy()))
        yield unhealthy
        offsets = GaugeMetricFamily("detent_web_offset", "How far the shard's log is read", labels=["shard"])
        for shard, offset in model.offsets().items():
            offsets.add_metric([str(shard)], offset)
        yield offsets
