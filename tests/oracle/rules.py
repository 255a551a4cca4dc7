"""What may follow what, as the oracle knows it: written by hand from DESIGN.md ("The life of a job") and SCENARIOS.md.

It repeats what the coordinator has tables for, and that is the point: whoever changes one of them has to say here that
it was meant. Nothing of the code under test is imported.
"""

from __future__ import annotations

TERMINAL = frozenset({"FINISHED", "FAILED", "CANCELED", "SAVEPOINTED"})
GOING = frozenset({"SCHEDULED", "RUNNING"})
ACTIVE = frozenset({"DEPLOYING", "RUNNING", "READY_TO_CLOSE"})
# At most one of these per pipeline: triggered and not completed, or completed and not committed.
IN_FLIGHT = frozenset({("pending", "TRIGGERED"), ("checkpoint", "COMPLETED")})
# Kinds of keys that go with their job, and only with it.
OF_JOB = frozenset({"specification", "pipeline", "task", "pending", "checkpoint", "savepoint"})
ALWAYS_THERE = frozenset({"leader", "cursor"})

ON_THEIR_WAY = frozenset({"FAILING", "CANCELLING", "SAVEPOINTING", "DRAINING", "PAUSING"})

# kind → state → states that may follow it. "" is not being there. Deleting is looked at apart.
MAY_FOLLOW: dict[str, dict[str, set[str]]] = {
    "job": {
        "": {"CREATED", "FAILING"},  # FAILING: what was known of it could not be read
        "CREATED": {"CREATED", "SCHEDULED", "FAILING", "CANCELLING"},
        "SCHEDULED": {"SCHEDULED", "RUNNING", "FINISHED", *ON_THEIR_WAY},
        "RUNNING": {"RUNNING", "SCHEDULED", "FINISHED", *ON_THEIR_WAY},
        "SAVEPOINTING": {"SAVEPOINTING", "SAVEPOINTED", "FAILING", "CANCELLING"},
        "DRAINING": {"DRAINING", "FINISHED", "FAILING", "CANCELLING"},
        "PAUSING": {"PAUSING", "PAUSED", "FAILING", "CANCELLING"},
        "PAUSED": {"CREATED", "SAVEPOINTING", "FAILING", "CANCELLING"},
        "FAILING": {"FAILED"},
        "CANCELLING": {"CANCELED"},
        "FINISHED": set(),
        "FAILED": set(),
        "CANCELED": set(),
        "SAVEPOINTED": set(),
    },
    "pipeline": {
        "": {"SCHEDULED"},
        "SCHEDULED": {"RUNNING", "CANCELED"},
        "RUNNING": {"RUNNING", "SCHEDULED", "SUSPENDED", "FINISHED", "CANCELED"},
        "SUSPENDED": {"SCHEDULED", "CANCELED"},
        "FINISHED": set(),
        "CANCELED": set(),
    },
    "task": {
        "": {"CREATED"},
        "CREATED": {"CREATED", "DEPLOYING", "CANCELED"},
        "DEPLOYING": {"DEPLOYING", "CREATED", "RUNNING", "FAILED", "CANCELED"},
        "RUNNING": {"RUNNING", "READY_TO_CLOSE", "FINISHED", "FAILED", "SUSPENDED", "CANCELED"},
        "READY_TO_CLOSE": {"FINISHED", "FAILED", "SUSPENDED", "CANCELED"},
        "FAILED": {"CREATED", "CANCELED"},
        "SUSPENDED": {"CREATED", "CANCELED"},
        "FINISHED": set(),
        "CANCELED": set(),
    },
    "ready": {"": {"READY"}, "READY": set()},
    "ack": {"": {"ACKED"}, "ACKED": {"ACKED"}},
    "pending": {
        "": {"TRIGGERED"},
        "TRIGGERED": {"ABORTED", "COMPLETED"},
        "ABORTED": {"TRIGGERED"},
        "COMPLETED": {"TRIGGERED"},
    },
    "checkpoint": {
        "": {"COMPLETED", "COMMITTED"},  # COMMITTED: what a restored job begins with
        "COMPLETED": {"COMPLETED", "COMMITTED", "ABANDONED"},
        "COMMITTED": {"COMPLETED"},
        "ABANDONED": set(),
    },
    "savepoint": {"": {"TAKING"}, "TAKING": {"TAKING", "KEPT", "FAILED"}, "KEPT": set(), "FAILED": set()},
    "cleanup": {
        "": {"PROMISED"},
        "PROMISED": {"REMOVING", "REMOVED"},
        "REMOVING": {"REMOVING", "REMOVED"},
        "REMOVED": set(),
    },
    "command": {"": {"ACCEPTED", "REFUSED"}, "ACCEPTED": set(), "REFUSED": set()},
    "summary": {"": {"LISTED"}, "LISTED": {"LISTED"}},
    "specification": {"": {"KEPT"}, "KEPT": set()},
    "leader": {"": {"LEADING"}, "LEADING": {"LEADING", "VACANT"}, "VACANT": {"LEADING"}},
    "cursor": {"": {"AT"}, "AT": {"AT"}},
    "worker": {"": {"LOST"}, "LOST": {"BACK"}, "BACK": {"LOST"}},
}

# A task gets a new attempt exactly when it goes back to CREATED from one of these.
NEW_ATTEMPT_FROM = frozenset({"DEPLOYING", "FAILED", "SUSPENDED"})

# What a worker must have said for an entity to become so: kind and state → the happenings that say it.
SAID_BY: dict[tuple[str, str], frozenset[str]] = {
    ("ready", "READY"): frozenset({"TaskReady"}),
    ("ack", "ACKED"): frozenset({"CheckpointAcked"}),
}
# Any word of an attempt at work says that it runs.
SAYS_RUNNING = frozenset({"TaskRunning", "TaskReady", "CheckpointAcked"})
