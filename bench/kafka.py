"""A broker for a benchmark: the embedded one in a directory of its own, or one that is named."""

from __future__ import annotations

import argparse
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness import progress
from events.cluster import Cluster
from events.codec import Codec
from events.embedded import EmbeddedBroker
from events.records import Event
from events.topics import ensure_topics
from events.writer import TransactionalWriter, outgoing_events


def add_options(options: argparse.ArgumentParser) -> None:
    options.add_argument("--bootstrap-servers", help="a running cluster instead of the embedded broker")


@contextmanager
def fresh_cluster(arguments: argparse.Namespace) -> Iterator[Cluster]:
    """A cluster with one shard and topics of its own."""
    prefix = f"bench-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory(prefix="detent-bench-") as directory:
        if arguments.bootstrap_servers:
            cluster = Cluster(arguments.bootstrap_servers, prefix=prefix, shards=1)
            ensure_topics(cluster)
            yield cluster
            return
        with EmbeddedBroker(Path(directory)) as broker:
            cluster = Cluster(broker.bootstrap_servers, prefix=prefix, shards=1)
            ensure_topics(cluster)
            yield cluster


def write_log(cluster: Cluster, codec: Codec, groups: Iterable[list[Event]], total: int) -> None:
    """Write transactions as a leader does, and fence it then: a commit is visible only some milliseconds after it is
    answered, and whoever measures the end of the log must not come before that."""
    written = 0
    with TransactionalWriter(cluster, f"{cluster.prefix}-0") as writer:
        for group in groups:
            writer.commit(outgoing_events(codec, 0, group))
            written += len(group)
            progress(f"writing the log: {written:,} of {total:,} events")
    TransactionalWriter(cluster, f"{cluster.prefix}-0").close()
    progress("")
