"""Restarting: from the mirror, behind logs of different lengths with the same live state; and what an entity costs.

    python -m bench.restart --json

A restart here is `recover`: open the mirror, load it, ask the log for its end, read the tail. The mirror was written by
a process that followed the whole log as a standby does, and that was killed. The log of each length is written for
real, and the last thousand of its records came after the mirror.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench import harness, kafka, workload
from events.cluster import Cluster
from events.codec import Codec
from events.follower import Follower
from events.mirror import Mirror
from events.recovery import now_ms, recover
from events.table import Table
from events.topics import TopicFacts, ensure_topics

TAIL = 1000


def prepare(cluster: Cluster, codec: Codec, length: int, keys: int, directory: Path) -> TopicFacts:
    """A log of this length, and a mirror that knows all of it but the tail."""
    facts = ensure_topics(cluster)["events"]
    kafka.write_log(cluster, codec, workload.groups(length - TAIL, keys), length)
    mirror_in_another_process(cluster, facts, directory)
    kafka.write_log(cluster, codec, workload.groups(TAIL, TAIL // 2), TAIL)
    return facts


def mirror_in_another_process(cluster: Cluster, facts: TopicFacts, directory: Path) -> None:
    """Follow the whole log, mirror each transaction as it comes, and die without closing the mirror."""
    child = multiprocessing.get_context("spawn").Process(target=_mirror_and_die, args=(cluster, facts, directory))
    child.start()
    child.join()
    if child.exitcode:
        raise SystemExit("the mirror could not be written")


def _mirror_and_die(cluster: Cluster, facts: TopicFacts, directory: Path) -> None:
    mirror = Mirror(directory, facts.topic_id, 0, facts.delete_retention_ms)
    follower = Follower(cluster, Table("events", 0, Codec()))
    end = follower.reader.start_and_end()[1]
    mirror.replace(follower.table, now_ms())
    while follower.reader.position < end:
        for applied in follower.advance(0.1):
            mirror.record(applied.changed, follower.table, now_ms())
        harness.progress(f"mirroring the log: offset {follower.reader.position:,} of {end:,}")
    while mirror.mirrored_offset != follower.table.next_offset:
        if mirror.failure is not None:
            raise mirror.failure
        time.sleep(0.01)
    os._exit(0)


def restart(cluster: Cluster, codec: Codec, facts: TopicFacts, directory: Path, keys: int) -> float:
    """Seconds from a mirror on disk to the state at the end of the log. Each time on a fresh copy, as it was left."""
    with tempfile.TemporaryDirectory(prefix="detent-bench-") as scratch:
        copy = Path(scratch) / "mirror"
        shutil.copytree(directory, copy)
        mirror = Mirror(copy, facts.topic_id, 0, facts.delete_retention_ms)
        recovered = recover(cluster, 0, codec, mirror)
        if not recovered.from_mirror or recovered.replayed != TAIL or len(recovered.follower.table.values) != keys + 1:
            raise SystemExit(f"not the restart that was meant: {recovered}")
        recovered.follower.close()
        mirror.close()
    return recovered.took_s


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def memory_per_entity(entities: int) -> float:
    """Resident bytes per live entity of a table loaded from its mirror, in a process that did nothing else."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="detent-bench-") as scratch:
        for task in (_write_mirror, _load_mirror):
            with ProcessPoolExecutor(1, mp_context=context) as process:
                result = process.submit(task, Path(scratch) / "mirror", entities).result()
    return result


def _write_mirror(directory: Path, entities: int) -> float:
    codec, mirror = Codec(), Mirror(directory, "bench", 0, 10**12)
    table = Table("events", 0, codec)
    for group in workload.groups(entities + entities // 500, entities):
        table.values.update((event.entity.encode(), codec.encode(event)) for event in group)
    mirror.replace(table, now_ms())
    mirror.close()
    return len(table.values)


def _load_mirror(directory: Path, entities: int) -> float:
    codec, mirror = Codec(), Mirror(directory, "bench", 0, 10**12)
    before = resident_bytes()
    table = mirror.load("events", codec, now_ms())
    used = resident_bytes() - before
    mirror.close()
    if len(table.values) != entities + 1:
        raise SystemExit(f"{len(table.values)} of {entities + 1} entities loaded")
    return used / len(table.values)


def run(arguments: argparse.Namespace) -> harness.Result:
    codec, restarts, figures = Codec(), {}, dict[str, harness.Figure]()
    with kafka.fresh_cluster(arguments) as first, tempfile.TemporaryDirectory(prefix="detent-bench-") as scratch:
        for length in arguments.lengths:
            cluster = replace(first, prefix=f"{first.prefix}-{length}")
            directory = Path(scratch) / str(length)
            facts = prepare(cluster, codec, length, arguments.keys, directory)
            restarts[f"restart behind {length:,} records, s"] = partial(
                restart, cluster, codec, facts, directory, arguments.keys
            )
        measured = harness.alternate(restarts, warmups=2, repetitions=arguments.repetitions)
    times = harness.medians(measured)
    figures |= {"live keys": arguments.keys, "tail": TAIL, **times}
    for entities in arguments.entities:
        harness.progress(f"memory of {entities:,} entities")
        figures[f"bytes of memory per entity at {entities:,}"] = memory_per_entity(entities)
    harness.progress("")
    most = figures[f"bytes of memory per entity at {max(arguments.entities):,}"]
    return harness.Result(
        "restart",
        figures,
        [
            harness.Bar("slowest restart / fastest", max(times.values()) / min(times.values()), "<=", 1.3),
            harness.Bar(f"bytes per entity at {max(arguments.entities):,}", float(most), "<=", 500),
        ],
    )


def main() -> int:
    options = harness.parser(__doc__ or "")
    kafka.add_options(options)
    options.add_argument("--lengths", type=int, nargs="+", default=[100_000, 1_000_000, 4_000_000], help="of the logs")
    options.add_argument("--keys", type=int, default=50_000, help="live entities behind each log")
    options.add_argument("--entities", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="for the memory")
    options.set_defaults(repetitions=21)
    arguments = options.parse_args()
    return harness.report(run(arguments), as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
