"""Fencing: how long a standby needs from deciding to take over until it owns the shard and can commit.

    python -m bench.fence --json

The leader before is another process that is killed with -9, inside an open transaction whose records are on the broker,
or between two transactions. stock: a new producer and librdkafka's own `init_transactions`. cold: a new
`TransactionalWriter`. warm: `WarmWriter.take_over`, made while the leader was alive. Every take-over is followed by a
commit (not in its time), so that none counts that would have been fenced itself.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection

from bench import harness, kafka
from events.cluster import Cluster
from events.writer import (
    MAX_RECORD_BYTES,
    TRANSACTION_TIMEOUT_MS,
    Outgoing,
    TransactionalWriter,
    WarmWriter,
    shard_producer,
)

LIMIT_S = 60.0
# What has to be done at the moment of the take-over; a commit proves that it worked.
TakeOver = Callable[[], Callable[[], None]]


def killed_leader(cluster: Cluster, transactional_id: str, *, inside: bool) -> None:
    """A leader of that id in a process of its own, killed inside a transaction or after one."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_lead_until_killed, args=(cluster, transactional_id, inside, theirs))
    child.start()
    theirs.close()  # so that a child that fails is an end of file, not a silence
    try:
        if not ours.poll(LIMIT_S):
            raise RuntimeError(f"the leader that was to be killed did not get to its place within {LIMIT_S:g} s")
        ours.recv()
    finally:
        child.kill()
        child.join()


def _lead_until_killed(cluster: Cluster, transactional_id: str, inside: bool, ready: Connection) -> None:
    producer = shard_producer(cluster, transactional_id, MAX_RECORD_BYTES, TRANSACTION_TIMEOUT_MS)
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    for topic in ("events", "orders"):
        producer.produce(cluster.topic(topic), b"of the dead", b"job/dead", 0)
    if inside:
        producer.flush(LIMIT_S)
    else:
        producer.commit_transaction()
    ready.send(None)
    signal.pause()


def stock(cluster: Cluster, transactional_id: str) -> TakeOver:
    def take_over() -> Callable[[], None]:
        producer = shard_producer(cluster, transactional_id, MAX_RECORD_BYTES, TRANSACTION_TIMEOUT_MS)
        producer.init_transactions(LIMIT_S)

        def commit() -> None:
            producer.begin_transaction()
            producer.produce(cluster.topic("events"), b"of the living", b"job/living", 0)
            producer.commit_transaction()

        return commit

    return take_over


def cold(cluster: Cluster, transactional_id: str) -> TakeOver:
    return lambda: partial(commit_once, TransactionalWriter(cluster, transactional_id))


def warm(cluster: Cluster, transactional_id: str) -> TakeOver:
    standby = WarmWriter(cluster, transactional_id)
    if not standby.tend(LIMIT_S):
        raise RuntimeError(f"the standby did not become warm within {LIMIT_S:g} s")
    return lambda: partial(commit_once, standby.take_over())


def commit_once(writer: TransactionalWriter) -> None:
    with writer:
        writer.commit([Outgoing("events", 0, b"job/living", b"of the living")])


def measure(cluster: Cluster, prepare: Callable[[Cluster, str], TakeOver], inside: bool) -> float:
    """Milliseconds to own the shard of a leader that was just killed."""
    transactional_id = f"{cluster.prefix}-{uuid.uuid4().hex[:8]}"
    take_over = prepare(cluster, transactional_id)
    killed_leader(cluster, transactional_id, inside=inside)
    started = time.perf_counter()
    commit = take_over()
    took = time.perf_counter() - started
    commit()
    return 1000 * took


def run(arguments: argparse.Namespace) -> harness.Result:
    with kafka.fresh_cluster(arguments) as cluster:
        measured = harness.alternate(
            {
                f"{how.__name__}, {what}": partial(measure, cluster, how, inside)
                for inside, what in ((True, "inside a transaction"), (False, "between two"))
                for how in (stock, cold, warm)
            },
            repetitions=arguments.repetitions,
        )
    figures: dict[str, harness.Figure] = {}
    for name, median in harness.medians(measured).items():
        figures[f"{name}, ms"] = median
        figures[f"{name}, worst ms"] = max(measured[name])
    return harness.Result(
        "fence",
        figures,
        [
            harness.Bar(f"warm/stock, {what}", harness.ratio(measured, f"warm, {what}", f"stock, {what}"), "<=", bound)
            for what, bound in (("inside a transaction", 0.1), ("between two", 1.0))
        ],
    )


def main() -> int:
    options = harness.parser(__doc__ or "")
    kafka.add_options(options)
    options.set_defaults(repetitions=21)
    arguments = options.parse_args()
    return harness.report(run(arguments), as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
