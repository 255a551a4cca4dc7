"""The oracle: judges a run by nothing but what is on the log and what was published. It reads as any consumer would,
knows SCENARIOS.md by tables of its own (rules.py), and calls none of the code that decides or folds.

    findings = check(read_log(cluster), starts=read_starts(directory))

Each finding says which rule is broken, where on the log, and what stands there. It can be asked at any time: a run need
not have ended, but every command that was sent must have had the time to be answered.
"""

from __future__ import annotations

from collections.abc import Iterable

from events.codec import Codec
from tests.oracle.beside import check_commands, check_orders, check_starts, read_starts
from tests.oracle.events import ShardOracle
from tests.oracle.facts import Attempt, Facts, Finding, Inputs
from tests.oracle.log import Log, Record, Recorder, differences, read_log
from tests.oracle.rows import Onlooker, check_rows

__all__ = [
    "Attempt",
    "Finding",
    "Log",
    "Onlooker",
    "Record",
    "Recorder",
    "check",
    "differences",
    "read_log",
    "read_starts",
]


def check(
    log: Log,
    *,
    starts: Iterable[tuple[str, Attempt]] = (),
    planted: Iterable[tuple[str, int, int]] = (),
    rows: bool = True,
    codec: Codec | None = None,
) -> list[Finding]:
    """All that is wrong with a run. `starts`: who started which attempt. `planted`: records of the events topic that a
    test wrote itself, as (topic, partition, offset). `rows`: whether output is looked at, where the jobs say it is."""
    codec = codec or Codec()
    inputs, facts = Inputs(log, codec), Facts()
    findings = []
    for shard in range(log.shards):
        oracle = ShardOracle(shard, codec, inputs, facts, frozenset(planted))
        for record in log.partition("events", shard):
            oracle.take(record)
        oracle.end()
        findings += oracle.findings
    findings += check_commands(log, inputs, facts, codec)
    findings += check_orders(log, facts, codec)
    findings += check_starts(facts, list(starts))
    if rows:
        findings += check_rows(facts)
    return findings
