"""Writing: committed events per second from typed records, against a bare transactional producer of the same bytes.

    python -m bench.write --json

events: typed records in, encoded, written and committed in groups by Detent's writer. bare: librdkafka through its
Python client with the same settings, the bytes encoded beforehand, in the same groups; by single calls and by its batch
call, of which the faster is the one compared with.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import uuid

from confluent_kafka import Producer

from bench import harness, kafka, workload
from events.cluster import Cluster
from events.codec import Codec
from events.records import Event
from events.writer import TransactionalWriter, outgoing_events


def events(writer: TransactionalWriter, codec: Codec, groups: list[list[Event]]) -> float:
    started = time.perf_counter()
    for group in groups:
        writer.commit(outgoing_events(codec, 0, group))
    return sum(map(len, groups)) / (time.perf_counter() - started)


def bare(producer: Producer, topic: str, groups: list[list[tuple[bytes, bytes]]]) -> float:
    started = time.perf_counter()
    for group in groups:
        producer.begin_transaction()
        for key, value in group:
            producer.produce(topic, value, key, 0)
        producer.commit_transaction()
    return sum(map(len, groups)) / (time.perf_counter() - started)


def bare_batch(producer: Producer, topic: str, groups: list[list[tuple[bytes, bytes]]]) -> float:
    started = time.perf_counter()
    for group in groups:
        producer.begin_transaction()
        producer.produce_batch(topic, [{"key": key, "value": value} for key, value in group], 0)
        producer.commit_transaction()
    return sum(map(len, groups)) / (time.perf_counter() - started)


def bare_producer(cluster: Cluster) -> Producer:
    producer = cluster.producer(
        transactional_id=f"bare-{uuid.uuid4().hex}",
        transaction_timeout_ms=5000,
        message_timeout_ms=5000,
        queue_buffering_max_messages=1_000_000,
    )
    producer.init_transactions(30)
    return producer


def encoding(codec: Codec, groups: list[list[Event]]) -> float:
    started = time.perf_counter()
    for group in groups:
        codec.encode_all(group, "Event")
    return sum(map(len, groups)) / (time.perf_counter() - started)


def run(arguments: argparse.Namespace) -> harness.Result:
    codec = Codec()
    groups = list(workload.groups(arguments.events, arguments.keys))
    encoded = [[(event.entity.encode(), codec.encode(event)) for event in group] for group in groups]
    with kafka.fresh_cluster(arguments) as cluster:
        topic, producer = cluster.topic("events"), bare_producer(cluster)
        with TransactionalWriter(cluster, f"{cluster.prefix}-0") as writer:
            measured = harness.alternate(
                {
                    "events_per_s": lambda: events(writer, codec, groups),
                    "bare_per_s": lambda: bare(producer, topic, encoded),
                    "bare_batch_per_s": lambda: bare_batch(producer, topic, encoded),
                    "encoding_alone_per_s": lambda: encoding(codec, groups),
                },
                repetitions=arguments.repetitions,
            )
    figures = harness.medians(measured)
    best = max(("bare_per_s", "bare_batch_per_s"), key=figures.__getitem__)
    size = statistics.mean(len(value) for group in encoded for _, value in group)
    return harness.Result(
        "write",
        {"events": arguments.events, "group": workload.GROUP, "mean bytes": size, **figures},
        [harness.Bar("events/bare", harness.ratio(measured, "events_per_s", best), ">=", 0.4)],
    )


def main() -> int:
    options = harness.parser(__doc__ or "")
    kafka.add_options(options)
    options.add_argument("--events", type=int, default=200_000, help="events per measurement")
    options.add_argument("--keys", type=int, default=10_000, help="entities they are about")
    arguments = options.parse_args()
    return harness.report(run(arguments), as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
