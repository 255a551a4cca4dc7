"""Judges what goes with the events: that commands are answered, what workers are told, and what they have started."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from events import records as r
from events.codec import Codec
from tests.oracle.facts import Attempt, Facts, Finding, Inputs, Pipe, decoded
from tests.oracle.log import Log

MAX_NAME_BYTES = 512


def check_commands(log: Log, inputs: Inputs, facts: Facts, codec: Codec) -> list[Finding]:
    """Every command has one outcome; what can't be read is in dead letters."""
    found = []
    aside = {(x.topic, x.partition, x.offset) for letter in log.of("dead-letters")
             if (x := decoded(codec, letter, r.DeadLetter)) is not None}  # fmt: skip
    for (partition, offset), command in inputs.commands.items():
        place = f"commands/{partition}@{offset}"
        if command is None:
            if ("commands", partition, offset) not in aside:
                found.append(Finding("dead letter", place, "it can't be read and was not put aside"))
            continue
        usable = all(0 < len(name.encode(errors="replace")) <= MAX_NAME_BYTES for name in (command.job, command.id))
        times = facts.outcomes[command.job, command.id]
        if usable and times != 1 and ("commands", partition, offset) not in aside:
            found.append(Finding("outcome", place, f"command {command.id} of {command.job} has {times} outcomes"))
    for (partition, offset), report in inputs.reports.items():
        if report is None and ("reports", partition, offset) not in aside:
            found.append(
                Finding("dead letter", f"reports/{partition}@{offset}", "it can't be read and was not put aside")
            )
    return found


def check_orders(log: Log, facts: Facts, codec: Codec) -> list[Finding]:
    """An attempt is ordered of one worker, from one place; only what a completed checkpoint names is to be published;
    and nothing stands for jobs that are gone."""
    found: list[Finding] = []
    standing: dict[bytes, tuple[str, r.Order]] = {}
    ordered: set[Attempt] = set()
    for record in log.of("orders"):
        place, key = f"orders/{record.partition}@{record.offset}", record.key or b""
        if record.value is None:
            standing.pop(key, None)
            continue
        order = decoded(codec, record, r.Order)
        if order is None:
            found.append(Finding("readable", place, f"{key!r} can't be read"))
            continue
        standing[key] = (place, order)
        who = Attempt(order.job, order.incarnation, order.pipeline, order.task, order.attempt)
        if isinstance(order.action, r.Deploy):
            ordered.add(who)
            given = (order.worker, order.action.checkpoint, order.action.position)
            if facts.placed.get(who) != given:
                found.append(Finding("B2", place, f"{who} is to start as {given}, decided was {facts.placed.get(who)}"))
        elif isinstance(order.action, r.CommitCheckpoint):
            names = facts.named.get((Pipe(*who[:3]), order.action.checkpoint))
            if names != {piece.name for piece in order.action.staged}:
                found.append(
                    Finding(
                        "staged", place, f"{who} is to publish what checkpoint {order.action.checkpoint} does not name"
                    )
                )
    found += [
        Finding("order", "orders", f"{who} is DEPLOYING and no order tells so") for who in facts.placed.keys() - ordered
    ]
    for place, order in standing.values():
        if order.job not in facts.jobs and (order.job, order.incarnation) in facts.cleaned:
            found.append(
                Finding("B10", place, f"an order for {order.job}, which is gone, still stands: {order.action}"[:300])
            )
    return found


def check_starts(facts: Facts, starts: list[tuple[str, Attempt]]) -> list[Finding]:
    """No attempt is started twice, and none runs that was not started."""
    times = Counter(who for _, who in starts)
    found = [Finding("D1", "starts", f"{who} was started {count} times") for who, count in times.items() if count > 1]
    if starts:
        by = {(worker, who) for worker, who in starts}
        found += [Finding("D1", "starts", f"{who} ran on {worker} and was not started there")
                  for who, worker in facts.ran.items() if (worker, who) not in by]  # fmt: skip
    return found


def read_starts(directory: Path) -> list[tuple[str, Attempt]]:
    """What workers have started, from their directories and logs below this one: worker and attempt. The trial engine
    notes each start itself; of others, the logs of their processes tell."""
    found = []
    for file in sorted(directory.rglob("starts")):
        worker = unquote(file.parent.parent.name.removeprefix("id-"))
        for line in file.read_text().splitlines():
            said = json.loads(line)
            found.append((worker, Attempt(*(said[name] for name in Attempt._fields))))
    noting = {worker for worker, _ in found}
    for log in sorted(directory.glob("*.log")):
        if (worker := log.name.rpartition("-")[0]) not in noting:
            found += [(worker, who) for who in _told_starts(log.read_text(errors="replace"))]
    return found


def _told_starts(log: str) -> Iterator[Attempt]:
    for line in log.splitlines():
        if "logger=workers.decider message=Started " in line:
            said = dict(part.partition("=")[::2] for part in line.split())
            yield Attempt(said["job"], *(int(said[name]) for name in Attempt._fields[1:]))
