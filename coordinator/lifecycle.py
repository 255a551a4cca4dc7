"""Every life cycle, as literal tables: what may follow what. The one place to look a transition up.

Two things move an entity. An *input* does (a command, a report, a timer, the failure detector): `decide` looks it up
here. And a *state* does: "all tasks marked → completed point", "all tasks done → finish" are computed from the state
after every input (coordinator/settle.py), so that they can't be missed, whoever was leading when the last input came.

A row reads: transition, the states it may leave, the state it leads to. "" is not being there.
Pure data. docs/lifecycles.md is generated from it.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    leaves: tuple[str, ...]
    reaches: str


Table = dict[str, Row]

JOB: Table = {
    "submitted": Row(("",), "CREATED"),
    "restored": Row(("",), "CREATED"),
    "scheduled": Row(("CREATED",), "SCHEDULED"),
    "running": Row(("SCHEDULED",), "RUNNING"),
    "restarting": Row(("RUNNING",), "SCHEDULED"),
    "counted": Row(("CREATED", "SCHEDULED", "RUNNING", "SAVEPOINTING", "DRAINING", "PAUSING"), "="),
    "finished": Row(("SCHEDULED", "RUNNING", "DRAINING"), "FINISHED"),
    "failing": Row(("CREATED", "SCHEDULED", "RUNNING", "SAVEPOINTING", "DRAINING", "PAUSING"), "FAILING"),
    "failed": Row(("FAILING",), "FAILED"),
    "cancelling": Row(
        ("CREATED", "SCHEDULED", "RUNNING", "SAVEPOINTING", "DRAINING", "PAUSING", "PAUSED"), "CANCELLING"
    ),
    "canceled": Row(("CANCELLING",), "CANCELED"),
    "savepointing": Row(("SCHEDULED", "RUNNING", "PAUSED"), "SAVEPOINTING"),
    "savepointed": Row(("SAVEPOINTING",), "SAVEPOINTED"),
    "draining": Row(("SCHEDULED", "RUNNING"), "DRAINING"),
    "pausing": Row(("SCHEDULED", "RUNNING"), "PAUSING"),
    "paused": Row(("PAUSING",), "PAUSED"),
    "resumed": Row(("PAUSED",), "CREATED"),
    "repaired": Row(("CREATED", "SCHEDULED", "RUNNING", "SAVEPOINTING", "DRAINING", "PAUSING", "PAUSED"), "FAILING"),
    "quarantined": Row(
        (
            "",
            "CREATED",
            "SCHEDULED",
            "RUNNING",
            "SAVEPOINTING",
            "DRAINING",
            "PAUSING",
            "PAUSED",
            "CANCELLING",
            "FAILING",
        ),
        "FAILING",
    ),
}

PIPELINE: Table = {
    "created": Row(("",), "SCHEDULED"),
    "running": Row(("SCHEDULED",), "RUNNING"),
    "restarting": Row(("RUNNING",), "SCHEDULED"),
    "checkpointed": Row(("SCHEDULED", "RUNNING"), "="),
    "delayed": Row(("SCHEDULED", "RUNNING"), "="),
    "suspended": Row(("SCHEDULED", "RUNNING"), "SUSPENDED"),
    "resumed": Row(("SUSPENDED",), "SCHEDULED"),
    "finished": Row(("SCHEDULED", "RUNNING"), "FINISHED"),
    "failed": Row(("SCHEDULED", "RUNNING"), "FAILED"),
    "canceled": Row(("SCHEDULED", "RUNNING", "SUSPENDED"), "CANCELED"),
}

TASK: Table = {
    "created": Row(("",), "CREATED"),
    "waiting": Row(("CREATED",), "CREATED"),
    "placed": Row(("CREATED",), "DEPLOYING"),
    "repeated": Row(("DEPLOYING",), "DEPLOYING"),
    "refused": Row(("DEPLOYING",), "CREATED"),
    "running": Row(("DEPLOYING",), "RUNNING"),
    "stalled": Row(("DEPLOYING", "RUNNING"), "="),
    "recovered": Row(("RUNNING",), "="),
    "ready": Row(("DEPLOYING", "RUNNING"), "READY_TO_CLOSE"),
    "finished": Row(("DEPLOYING", "RUNNING", "READY_TO_CLOSE"), "FINISHED"),
    "failed": Row(("DEPLOYING", "RUNNING", "READY_TO_CLOSE"), "FAILED"),
    "repaired": Row(("DEPLOYING", "RUNNING", "READY_TO_CLOSE"), "FAILED"),
    "retried": Row(("FAILED",), "CREATED"),
    "suspended": Row(("CREATED", "DEPLOYING", "RUNNING", "READY_TO_CLOSE"), "SUSPENDED"),
    "resumed": Row(("SUSPENDED",), "CREATED"),
    "canceled": Row(("CREATED", "DEPLOYING", "RUNNING", "READY_TO_CLOSE", "FAILED", "SUSPENDED"), "CANCELED"),
}

READY: Table = {"marked": Row(("",), "READY")}

ACK: Table = {"acked": Row(("", "ACKED"), "ACKED")}

# The checkpoint in flight. At most one per pipeline.
PENDING: Table = {
    "triggered": Row(("", "ABORTED", "COMPLETED"), "TRIGGERED"),
    "aborted": Row(("TRIGGERED",), "ABORTED"),
    "repaired": Row(("TRIGGERED",), "ABORTED"),
    "completed": Row(("TRIGGERED",), "COMPLETED"),
}

# The newest completed one: what is restored from. Completing is the decision; committing repeats until it has happened,
# or until it is known that it has not and can't. `repaired` and `dropped` are what a person says of it.
CHECKPOINT: Table = {
    "completed": Row(("", "COMMITTED"), "COMPLETED"),
    "ordered": Row(("COMPLETED",), "COMPLETED"),
    "retried": Row(("COMPLETED",), "COMPLETED"),
    "committed": Row(("COMPLETED",), "COMMITTED"),
    "abandoned": Row(("COMPLETED",), "ABANDONED"),
    "repaired": Row(("COMPLETED",), "COMMITTED"),
    "dropped": Row(("COMPLETED",), "ABANDONED"),
    "restored": Row(("",), "COMMITTED"),
}

SAVEPOINT: Table = {
    "begun": Row(("",), "TAKING"),
    "added": Row(("TAKING",), "TAKING"),
    "kept": Row(("TAKING",), "KEPT"),
    "failed": Row(("TAKING",), "FAILED"),
}

CLEANUP: Table = {
    "promised": Row(("",), "PROMISED"),
    "begun": Row(("PROMISED",), "REMOVING"),
    "repeated": Row(("REMOVING",), "REMOVING"),
    "stuck": Row(("REMOVING",), "REMOVING"),
    "repaired": Row(("PROMISED", "REMOVING"), "REMOVED"),
}

COMMAND: Table = {"accepted": Row(("",), "ACCEPTED"), "refused": Row(("",), "REFUSED")}
SUMMARY: Table = {
    "listed": Row(("",), "LISTED"),
    "completed": Row(("LISTED",), "LISTED"),
    "extended": Row(("LISTED",), "LISTED"),
}
LEADER: Table = {
    "elected": Row(("", "LEADING", "VACANT"), "LEADING"),
    "resigned": Row(("LEADING",), "VACANT"),
}
CURSOR: Table = {"advanced": Row(("", "AT"), "AT")}
WORKER: Table = {"lost": Row(("", "BACK"), "LOST"), "returned": Row(("LOST",), "BACK")}
SPECIFICATION: Table = {"kept": Row(("", "KEPT"), "KEPT")}

TABLES: dict[str, Table] = {
    "job": JOB, "pipeline": PIPELINE, "task": TASK, "ready": READY, "ack": ACK, "pending": PENDING,
    "checkpoint": CHECKPOINT, "savepoint": SAVEPOINT, "cleanup": CLEANUP, "command": COMMAND, "summary": SUMMARY,
    "leader": LEADER, "cursor": CURSOR, "worker": WORKER, "specification": SPECIFICATION,
}  # fmt: skip

TERMINAL_JOB = frozenset({"FINISHED", "FAILED", "CANCELED", "SAVEPOINTED"})
ENDING_JOB = frozenset({"FAILING", "CANCELLING"})
ACTIVE_TASK = frozenset({"DEPLOYING", "RUNNING", "READY_TO_CLOSE"})
WORKING_TASK = frozenset({"RUNNING", "READY_TO_CLOSE"})
TERMINAL_TASK = frozenset({"FINISHED", "CANCELED"})


class IllegalTransition(Exception):
    """A programmer's error: a decision that the tables do not allow. It stops the shard before anything is written."""

    def __init__(self, kind: str, transition: str, state: str) -> None:
        super().__init__(f"{kind}: {transition!r} is not legal from {state or 'not being there'}")
        self.kind, self.transition, self.state = kind, transition, state


def reach(kind: str, transition: str, state: str) -> str:
    """The state that a transition leads to. Raises IllegalTransition."""
    row = TABLES[kind].get(transition)
    if row is None or state not in row.leaves:
        raise IllegalTransition(kind, transition, state)
    return state if row.reaches == "=" else row.reaches


def allows(kind: str, transition: str, state: str) -> bool:
    row = TABLES[kind].get(transition)
    return row is not None and state in row.leaves


def states(kind: str) -> list[str]:
    """All states of a kind, in the order the table names them."""
    seen = dict.fromkeys(
        state for row in TABLES[kind].values() for state in (*row.leaves, row.reaches) if state not in ("", "=")
    )
    return list(seen)


def diagram(kind: str) -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for name, row in TABLES[kind].items():
        for leaves in row.leaves:
            reaches = leaves if row.reaches == "=" else row.reaches
            lines.append(f"    {leaves or '[*]'} --> {reaches}: {name}")
    return "\n".join(lines)


def page() -> str:
    """docs/lifecycles.md."""
    parts = ["# Life cycles", "", "Generated from `coordinator/lifecycle.py` by `make docs`; a test keeps it current."]
    for kind in TABLES:
        parts += ["", f"## {kind}", "", "```mermaid", diagram(kind), "```"]
    return "\n".join(parts) + "\n"
