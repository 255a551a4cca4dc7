"""What a leader says in its log file of what it has written: each transition a line with the facts in fields. All of it
at debug level; at info level what an operator wants to know without asking."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from coordinator.draft import Gone
from coordinator.state import entity_of
from events.records import Event, Task, Worker

LOG = logging.getLogger(__name__)
# Kind of entity and transition.
WORTH_TELLING = frozenset(
    {
        *(("job", name) for name in ("failing", "failed", "canceled", "finished", "savepointed", "quarantined",
                                     "repaired", "restored")),
        *(("task", name) for name in ("failed", "stalled", "repaired")),
        *(("checkpoint", name) for name in ("abandoned", "dropped", "repaired")),
        *(("worker", name) for name in ("lost", "returned")),
        ("cleanup", "stuck"), ("cleanup", "repaired"), ("savepoint", "failed"), ("leader", "resigned"),
    }
)  # fmt: skip
NAMES = frozenset(transition for _, transition in WORTH_TELLING)


def tell(shard: int, events: Sequence[Event | Gone], notes: Sequence[str]) -> None:
    everything = LOG.isEnabledFor(logging.DEBUG)
    for event in events:
        if isinstance(event, Event) and (everything or event.transition in NAMES):
            entity = entity_of(event.entity)
            told = (entity.kind, event.transition) in WORTH_TELLING
            if told or everything:
                LOG.log(logging.INFO if told else logging.DEBUG, "%s %s: %s to %s", event.entity, event.transition,
                        event.from_ or "nothing", event.to, extra=fields(shard, event))  # fmt: skip
    if everything:
        for note in notes:
            LOG.debug("ignored: %s", note, extra={"shard": shard})


def fields(shard: int, event: Event) -> dict[str, object]:
    """What every line about an event carries."""
    entity, state = entity_of(event.entity), event.state
    found: dict[str, object] = {"shard": shard, "epoch": event.epoch}
    if event.job:
        found |= {"job": event.job, "incarnation": event.incarnation}
    if entity.kind in ("pipeline", "task", "ready", "ack", "pending", "checkpoint"):
        found["pipeline"] = entity.parts[1]
    if entity.kind in ("task", "ready", "ack"):
        found |= {"task": entity.parts[2], "attempt": event.attempt}
    if isinstance(state, Task):
        found["worker"] = state.worker
    if isinstance(state, Worker):
        found["worker"] = entity.parts[0]
    if reason := getattr(state, "reason", ""):
        found["reason"] = reason
    return found
