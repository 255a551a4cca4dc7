"""Explaining a job of a cluster: gathers what `coordinator/explain.py` needs, from the answers of a moment, the job's
history and the reports topic. For the command line and for servers.
"""

from __future__ import annotations

import time

from coordinator.answers import Answers
from coordinator.explain import Explanation, When, explain
from coordinator.history import Seen
from coordinator.ignored import Ignored, Reported, ignored
from coordinator.past import Past
from coordinator.phrases import duration
from coordinator.views import JobDetail, ShardView
from coordinator.waits import waits
from events.cluster import Cluster
from events.codec import Codec
from events.errors import Place, UnreadableRecord
from events.keys import shard_of
from events.reader import PartitionReader, offset_of
from events.records import Cursor, Report

SILENT_MS = 5000  # a leader that has not been heard for as long may be gone
MOST_REPORTS = 200_000  # so many of the newest reports of a shard are looked through
PATIENCE_S = 30.0


def explain_job(past: Past, answers: Answers, job: str, when: When, incarnation: int = 0) -> Explanation | None:
    """None where there is no such job at that moment, nor its summary. `answers` may be of now or of the past."""
    detail = answers.job(job, incarnation)
    if detail is None:
        return None
    shard = shard_of(job, past.cluster.shards)
    history = [each for each in past.history(job) if each.offset < answers.offsets[shard] or answers.soft is not None]
    late = _ignored(past, answers, detail, history)
    leader = answers.shards()[shard]
    found = waits(detail, leader, answers.workers(), _silent(answers, leader))
    return explain(detail, history, answers.at, when, found, late)


def _silent(answers: Answers, shard: ShardView) -> str:
    """Why nobody seems to lead; empty when somebody does, or when it can't be known (the past)."""
    if shard.state != "LEADING":
        return f"shard {shard.shard} has no leader" + (f": {shard.reason}" if shard.reason else "")
    if answers.soft is None:
        return ""
    beat = answers.soft.beats.get(shard.leader)
    if beat is None:
        return f"nothing is heard of {shard.leader}, which led shard {shard.shard} last"
    silent_ms = answers.at - beat[1]
    if silent_ms > SILENT_MS:
        return f"{shard.leader}, which led shard {shard.shard} last, has not been heard for {duration(silent_ms)}"
    return ""


def _ignored(past: Past, answers: Answers, detail: JobDetail, history: list[Seen]) -> list[Ignored]:
    job, shard = detail.job, shard_of(detail.job.id, past.cluster.shards)
    cursor = answers.states[shard].cursor
    positions = cursor.state.positions if cursor is not None and isinstance(cursor.state, Cursor) else ()
    consumed = max((p.offset for p in positions if p.topic == "reports" and p.partition == shard), default=0)
    reports = read_reports(past.cluster, past.codec, job.id)
    if answers.soft is None:  # of the past: what had not come yet is not told
        reports = [each for each in reports if each.offset < consumed]
    return ignored(reports, history, job.id, job.incarnation, consumed)


def read_reports(cluster: Cluster, codec: Codec, job: str) -> list[Reported]:
    """What workers reported of a job, as far as it is kept. What can't be read is in dead letters."""
    shard, key, found = shard_of(job, cluster.shards), job.encode(), list[Reported]()
    with PartitionReader(cluster, "reports", shard) as reader:
        first, end = reader.start_and_end()
        reader.go_to(max(first, end - MOST_REPORTS))
        heard = time.monotonic()
        while reader.position < end:
            messages = reader.poll(0.1)
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > PATIENCE_S:
                raise cluster.no_answer(f"reading reports/{shard}", PATIENCE_S)
            for message in messages:
                if message.key() != key:
                    continue
                offset = offset_of(message)
                try:
                    report = codec.decode(message.value(), Report, Place("reports", shard, offset))
                except UnreadableRecord:
                    continue
                found.append(Reported(shard, offset, report))
    return found
