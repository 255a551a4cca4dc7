"""Verifying a cluster: reads the whole log of every shard, and the inputs it was decided on, and gathers the findings.
For the command line and for monitoring; it never writes.
"""

from __future__ import annotations

import time

from coordinator.past import LogReader
from coordinator.rerun_log import Rerunner
from coordinator.verify import Finding, Verifier
from coordinator.views import View
from events.cluster import Cluster
from events.codec import Codec
from events.errors import Place, UnreadableRecord
from events.reader import PartitionReader, offset_of
from events.records import Command, Report

KINDS: dict[str, type[Command] | type[Report]] = {"commands": Command, "reports": Report}
MOST_FINDINGS = 1000
MOST_INPUTS = 1_000_000
PATIENCE_S = 30.0


class ShardVerdict(View, frozen=True):
    """What was looked at in a shard."""

    shard: int
    records: int
    transactions: int
    next_offset: int
    jobs: int
    gaps: int  # where compaction has taken records: nothing is said about what was there
    decided_again: int
    not_decided_again: int  # the input is no longer kept


class Verdict(View, frozen=True):
    """Sound when nothing was found but what is merely overdue or void."""

    sound: bool
    findings: tuple[Finding, ...]
    left_off: int  # findings beyond those that are listed
    shards: tuple[ShardVerdict, ...]
    took_ms: int


class InputBytes:
    """The inputs of a shard as far as they are kept, by offset; decoded when they are asked for."""

    def __init__(self, cluster: Cluster, codec: Codec, shard: int) -> None:
        self._codec, self._shard = codec, shard
        self._values = {topic: _read(cluster, topic, shard) for topic in KINDS}

    def get(self, topic: str, offset: int) -> Command | Report | None:
        value = self._values.get(topic, {}).get(offset)
        if value is None:
            return None
        try:
            return self._codec.decode(value, KINDS[topic], Place(topic, self._shard, offset))
        except UnreadableRecord:
            return None


def _read(cluster: Cluster, topic: str, shard: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    with PartitionReader(cluster, topic, shard) as reader:
        first, end = reader.start_and_end()
        reader.go_to(max(first, end - MOST_INPUTS))
        heard = time.monotonic()
        while reader.position < end:
            messages = reader.poll(0.1)
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > PATIENCE_S:
                raise cluster.no_answer(f"reading {topic}/{shard}", PATIENCE_S)
            found |= {offset_of(message): message.value() or b"" for message in messages}
    return found


def verify_cluster(cluster: Cluster, codec: Codec, now: int, *, again: bool = True) -> Verdict:
    """All shards. With `again`, every decision is made again from the log and compared."""
    began = time.monotonic()
    findings, shards = list[Finding](), list[ShardVerdict]()
    for shard in range(cluster.shards):
        log = LogReader(cluster, shard)
        try:
            verifier = Verifier(shard, cluster.shards, codec)
            rerunner = Rerunner(shard, cluster.shards, InputBytes(cluster, codec, shard).get) if again else None
            end = log.end()
            for records in log.read(0, end):
                counted = verifier.add(records)
                if rerunner is not None and not verifier.gaps:
                    rerunner.add(counted)
        finally:
            log.close()
        findings += verifier.finish(now)
        findings += rerunner.findings if rerunner is not None else []
        shards.append(_shard(verifier, rerunner, end))
    return Verdict(
        sound=not any(each.kind in ("violation", "difference") for each in findings),
        findings=tuple(findings[:MOST_FINDINGS]),
        left_off=max(0, len(findings) - MOST_FINDINGS),
        shards=tuple(shards),
        took_ms=round((time.monotonic() - began) * 1000),
    )


def _shard(verifier: Verifier, rerunner: Rerunner | None, end: int) -> ShardVerdict:
    return ShardVerdict(
        shard=verifier.shard,
        records=verifier.records,
        transactions=verifier.transactions,
        next_offset=end,
        jobs=len(verifier.state.jobs),
        gaps=verifier.gaps,
        decided_again=rerunner.decided if rerunner is not None else 0,
        not_decided_again=rerunner.skipped if rerunner is not None else 0,
    )
