"""Replay: from a log to the state, against the client library alone and against decoding everything.

    python -m bench.replay --events 1000000 --keys 50000 --json

raw: librdkafka through its Python client, records counted and dropped. replay: a fresh follower up to the state at the
end of the log. naive: every record decoded with fastavro and folded. All from the making of the consumer to the last
record, with the same consumer settings and batches. Replaying pauses Python's cycle collector, as it does in
production; `raw_collector_paused_per_s` is the client library with that advantage, too.
"""

from __future__ import annotations

import argparse
import io
import sys
import time

import fastavro
from confluent_kafka import TopicPartition

from bench import harness, kafka, workload
from events.cluster import Cluster
from events.codec import BODY, Codec
from events.collector import paused_collector
from events.follower import Follower
from events.reader import BATCH
from events.table import Table


def raw(cluster: Cluster, count: int) -> float:
    """Records per second of the client library: consumed, counted, dropped."""
    started, seen = time.perf_counter(), 0
    consumer = cluster.consumer(enable_partition_eof=False)
    consumer.assign([TopicPartition(cluster.topic("events"), 0, 0)])
    while seen < count:
        seen += len(consumer.consume(min(BATCH, count - seen), 1.0))
    took = time.perf_counter() - started
    consumer.close()
    return count / took


def raw_collector_paused(cluster: Cluster, count: int) -> float:
    with paused_collector():
        return raw(cluster, count)


def replay(cluster: Cluster, codec: Codec, count: int, keys: int) -> tuple[float, Table]:
    """Records per second from nothing to the state at the end of the log."""
    started = time.perf_counter()
    follower = Follower(cluster, Table("events", 0, codec))
    seen = follower.catch_up()
    took = time.perf_counter() - started
    follower.close()
    if seen != count or len(follower.table.values) != keys:
        raise SystemExit(f"replayed {seen} of {count} records, {len(follower.table.values)} of {keys} keys")
    return count / took, follower.table


def naive(cluster: Cluster, codec: Codec, count: int) -> float:
    """Records per second when each is decoded and folded as it comes."""
    schema = codec.book.parsed["Event"]
    started, seen = time.perf_counter(), 0
    consumer = cluster.consumer(enable_partition_eof=False)
    consumer.assign([TopicPartition(cluster.topic("events"), 0, 0)])
    state: dict[bytes, object] = {}
    with paused_collector():
        while seen < count:
            messages = consumer.consume(min(BATCH, count - seen), 1.0)
            for message in messages:
                value, key = message.value() or b"", message.key() or b""
                state[key] = fastavro.schemaless_reader(io.BytesIO(value[BODY:]), schema, None)
            seen += len(messages)
        took = time.perf_counter() - started
    consumer.close()
    return count / took


def run(arguments: argparse.Namespace) -> harness.Result:
    codec = Codec()
    with kafka.fresh_cluster(arguments) as cluster:
        kafka.write_log(cluster, codec, workload.groups(arguments.events, arguments.keys), arguments.events)
        _, table = replay(cluster, codec, arguments.events, arguments.keys + 1)
        fast = harness.alternate(
            {
                "raw_per_s": lambda: raw(cluster, arguments.events),
                "raw_collector_paused_per_s": lambda: raw_collector_paused(cluster, arguments.events),
                "replay_per_s": lambda: replay(cluster, codec, arguments.events, arguments.keys + 1)[0],
            },
            repetitions=arguments.repetitions,
        )
        slow = harness.alternate({"naive_per_s": lambda: naive(cluster, codec, arguments.events)}, repetitions=1)
    figures = harness.medians(fast) | harness.medians(slow)
    started = time.perf_counter()
    table.deadlines()
    timers_s = time.perf_counter() - started
    started = time.perf_counter()
    for key in table.values:
        table.read(key)
    decode_s = time.perf_counter() - started
    return harness.Result(
        "replay",
        {
            "events": arguments.events,
            "live keys": len(table.values),
            **figures,
            "replay/raw with the collector paused": harness.ratio(fast, "replay_per_s", "raw_collector_paused_per_s"),
            "heap of deadlines, ms": timers_s * 1000,
            "decoding every survivor, ms": decode_s * 1000,
        },
        [
            harness.Bar("replay/raw", harness.ratio(fast, "replay_per_s", "raw_per_s"), ">=", 0.8),
            harness.Bar("replay/naive", figures["replay_per_s"] / figures["naive_per_s"], ">=", 6),
        ],
    )


def main() -> int:
    options = harness.parser(__doc__ or "")
    kafka.add_options(options)
    options.add_argument("--events", type=int, default=1_000_000, help="records on the log")
    options.add_argument("--keys", type=int, default=50_000, help="entities they are about")
    arguments = options.parse_args()
    return harness.report(run(arguments), as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
